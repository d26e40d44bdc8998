"""What a command is about: a pipeline's folder (or the built-in demo), one component of it, or a plan file."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import demo
from ...compiler.checkpoints.names import check_names
from ...compiler.errors import UsageError, WeightError
from ...conventions.checked import PATH
from ...conventions.hub import INDEX, configs_of, download, read_index, remote_index
from ...conventions.roles import role_for
from .source import AS_IT_IS, Source

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_CHECKPOINTS = (".safetensors", ".gguf", ".ckpt", ".pt", ".pth")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

Subject = Annotated[
    str,
    typer.Argument(
        metavar="[FOLDER|FILE|PLAN]",
        help="A pipeline's folder or single file, a component's folder, or a plan file; else the demo.",
    ),
]
Whole = Annotated[
    str,
    typer.Argument(metavar="[FOLDER|FILE]", help="A pipeline's folder, single file or hub id; else the demo."),
]
Component = Annotated[str, typer.Option("--component", metavar="NAME", help="This component alone: transformer, vae …")]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be loaded: its folder or hub id, its components with their roles, and its class's name.

    Of one in a single ``file``, ``place`` has the configs. ``only`` is the component whose folder was named.
    """

    place: str
    components: Mapping[str, str]
    kind: str = ""
    only: str = ""
    defaults: Mapping[str, Any] | None = None
    dtype: str | None = None
    file: str = ""
    source: Source = AS_IT_IS

    @property
    def variant(self) -> str | None:
        """Which files of its weights."""
        return self.source.variant


def find_pipeline(name: str, source: Source = AS_IT_IS) -> Pipeline:
    """The pipeline of a folder, a component's folder, a single file or a hub id; the demo when no name is given.

    Raises UsageError, saying what was looked for, when there is none.
    """
    if not name:
        source.check_folder("the demo")
        return Pipeline(
            str(demo.folder()),
            *_read_index(demo.folder()),
            defaults=demo.CALL_DEFAULTS,
            dtype=demo.DTYPE,
            source=source,
        )
    check_path(name)
    refuse_config(name)
    folder = Path(name)
    if is_checkpoint(folder):
        return _of_file(name, source)
    if (folder / INDEX).is_file():
        source.check_folder(name)
        return Pipeline(name, *_read_index(folder), source=source)
    parent = folder.resolve().parent
    if (folder / "config.json").is_file() and (parent / INDEX).is_file():
        source.check_folder(name)
        place = folder.parent if folder.name == folder.resolve().name else parent  # as it was typed, if it says so
        return Pipeline(str(place), *_read_index(parent), only=folder.resolve().name, source=source)
    if folder.exists():
        raise UsageError(f"{name} is no pipeline: it has no {INDEX}; name the folder that save_pretrained wrote")
    if _HUB_ID.fullmatch(name):
        source.check_whole(name)
        index = remote_index(name, source.hub)
        return Pipeline(name, _parts(index), index["_class_name"], source=source)
    raise UsageError(f"there is no folder {name}: name a pipeline's folder or a hub id, or leave it out for the demo")


def whole(pipeline: Pipeline, model: str) -> Pipeline:
    """A whole pipeline; raises UsageError where one component's folder was named."""
    if pipeline.only:
        place, weights = shlex.quote(str(pipeline.place)), shlex.quote(f"{pipeline.only}={model}")
        raise UsageError(
            f"{model} is one component: name its pipeline, --model {place}, and take from that folder what another "
            f"pipeline is to have: --weights {weights}"
        )
    return pipeline


def check_path(name: str) -> None:
    """Raises UsageError for what no file or folder can be called."""
    if not PATH.accepts(name):
        raise UsageError(f"no folder can be called {name[:40]}…: name a pipeline's folder, a file or a hub id")


def refuse_config(name: str) -> None:
    """Raises UsageError, with the folder to name instead, for a file that says what a pipeline or a part of it is."""
    path = Path(name)
    is_config = path.name == INDEX or (path.name.endswith("config.json") and path.is_file())
    if not is_config or is_plan(path):
        return
    folder = path.parent if path.parent.name == path.parent.resolve().name else path.parent.resolve()  # as it was typed
    if path.name == INDEX:
        raise UsageError(f"{name} says what a folder holds: name the folder, {folder}")
    if (folder.parent / INDEX).is_file():
        raise UsageError(
            f"{name} is the config of one part of a pipeline, {folder.name}: name the folder of the pipeline, "
            f"{folder.parent}"
        )
    raise UsageError(f"{name} is the config of one model: name the folder of its pipeline, which has a {INDEX}")


def is_plan(path: str | Path) -> bool:
    """Whether a file is a plan, by how it begins."""
    from ...compiler.text.plan_file import is_plan as begins_so

    return begins_so(path)


def is_checkpoint(path: Path) -> bool:
    """Whether a name is that of a single file with the weights of a pipeline, by its ending."""
    return path.suffix.lower() in _CHECKPOINTS and not path.is_dir()


def _of_file(name: str, source: Source) -> Pipeline:
    """The pipeline of a single file, whose configs are those that were named, or are downloaded."""
    from ...weights.files import refuse_address

    source.check_file(name)
    refuse_address(name)
    if not Path(name).is_file():
        raise UsageError(f"there is no file {name}: name a pipeline's file or folder, or a hub id")
    quiet_libraries()
    from ...pipelines.loading.single_file import OPTIONAL, configs_for

    folder = configs_for(name, source.config or None, source.hub)
    components, kind = _read_index(folder)
    components = {part: role for part, role in components.items() if part not in OPTIONAL}
    return Pipeline(str(folder), components, kind, file=name, source=source)


def _read_index(folder: Path) -> tuple[dict[str, str], str]:
    """The components that have weights (a config.json) with their roles, and the name of the pipeline's class."""
    index = read_index(folder / INDEX)
    parts = _parts(index)
    check_names(folder, parts)
    there = {name: role for name, role in parts.items() if (folder / name / "config.json").is_file()}
    return there, index["_class_name"]


def _parts(index: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a pipeline that model_index.json names, with their roles."""
    named = ((name, value) for name, value in index.items() if isinstance(value, list) and value and value[0])
    return {name: role_for(name, str(value[0]), str(value[-1])) for name, value in named}


def check_component(pipeline: Pipeline, component: str) -> str:
    """The component that was asked for, or nothing for all of them; raises UsageError when there is none such."""
    wanted = component or pipeline.only
    if wanted and pipeline.components and wanted not in pipeline.components:
        raise UsageError(f"{pipeline.place} has no component {wanted!r}; it has {', '.join(pipeline.components)}")
    return wanted


def located(pipeline: Pipeline, *, with_weights: bool = True) -> Pipeline:
    """The pipeline in its folder, downloaded as diffusers does it when it was named by its hub id.

    Of its weights those of its variant are downloaded, where there are such; to plan, its configs will do.
    """
    if Path(pipeline.place).is_dir():
        return pipeline
    quiet_libraries()
    if not with_weights:
        folder = str(configs_of(pipeline.place, pipeline.source.hub))
        return replace(find_pipeline(folder), source=pipeline.source)
    from diffusers import DiffusionPipeline

    downloaded = download(DiffusionPipeline, pipeline.place, pipeline.variant, pipeline.source.hub)
    return replace(find_pipeline(str(downloaded)), source=pipeline.source)


def dtype_of(pipeline: Pipeline, name: str | None = None) -> torch.dtype:
    """The dtype to compute in: the one asked for, or that of the largest file of the components, or of the variant.

    Where there is no file of weights, which is enough for a plan, it is bfloat16, and this is said.
    """
    import torch

    if name or pipeline.dtype:
        return getattr(torch, name or pipeline.dtype or "")  # type: ignore[no-any-return]
    if pipeline.file:
        return _dtype_in(pipeline.file)
    place = Path(pipeline.place)
    files = [file for part in pipeline.components for file in place.glob(f"{part}/*.safetensors")]
    files = [file for file in files if pipeline.variant and f".{pipeline.variant}" in file.name] or files
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    if largest is None and not any(place.glob("*/*.bin")):
        logger.warning("%s has no safetensors files: planned as bfloat16; --dtype changes that", pipeline.place)
        return torch.bfloat16
    stored = _stored_dtypes(largest) if largest else set()
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in stored), torch.float32)


def _dtype_in(file: str) -> torch.dtype:
    """The dtype to compute in of a single file: where its weights are packed, bfloat16."""
    import torch

    from ...weights.files import open_weights

    entries = open_weights(file).values()
    stored = {torch.bfloat16 if entry.is_packed else entry.dtype for entry in entries}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in stored), torch.float32)


def _stored_dtypes(file: Path) -> set[torch.dtype]:
    """The dtypes of the tensors in a safetensors file, by its header; none of a damaged one, which loading reports."""
    from ...compiler.checkpoints.safetensors_header import read_safetensors

    try:
        return {entry.dtype for entry in read_safetensors(file)[0].values()}
    except WeightError:
        return set()


def quiet_libraries() -> None:
    """Keeps the progress bars and notices of diffusers, transformers and huggingface_hub off the terminal."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()

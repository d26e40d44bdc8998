"""What a command is about: a pipeline's folder (or the built-in demo), one component of it, or a plan file."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import demo
from ...compiler.checkpoints.names import check_names
from ...compiler.errors import UsageError, WeightError
from ...conventions.hub import INDEX, remote_index
from ...conventions.roles import role_for

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

Subject = Annotated[
    str,
    typer.Argument(
        metavar="[FOLDER|PLAN]", help="A pipeline's folder, one component's, or a plan file; else the demo."
    ),
]
Component = Annotated[str, typer.Option("--component", metavar="NAME", help="This component alone: transformer, vae …")]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be loaded: its folder or hub id, its components with their roles, and its class's name."""

    place: str
    components: Mapping[str, str]
    kind: str = ""
    only: str = ""
    defaults: Mapping[str, Any] | None = None
    dtype: str | None = None


def find_pipeline(name: str) -> Pipeline:
    """The pipeline of a folder, of a component's folder, or of a hub id; the demo when no name is given.

    Raises UsageError, saying what was looked for, when there is none.
    """
    if not name:
        return Pipeline(str(demo.folder()), *_read_index(demo.folder()), defaults=demo.CALL_DEFAULTS, dtype=demo.DTYPE)
    folder = Path(name)
    if (folder / INDEX).is_file():
        return Pipeline(name, *_read_index(folder))
    parent = folder.resolve().parent
    if (folder / "config.json").is_file() and (parent / INDEX).is_file():
        return Pipeline(str(parent), *_read_index(parent), only=folder.resolve().name)
    if folder.exists():
        raise UsageError(f"{name} is no pipeline: it has no {INDEX}; name the folder that save_pretrained wrote")
    if _HUB_ID.fullmatch(name):
        index = remote_index(name, {})
        return Pipeline(name, _parts(index), str(index.get("_class_name", "")))
    raise UsageError(f"there is no folder {name}: name a pipeline's folder or a hub id, or leave it out for the demo")


def _read_index(folder: Path) -> tuple[dict[str, str], str]:
    """The components that have weights (a config.json) with their roles, and the name of the pipeline's class."""
    try:
        index = json.loads((folder / INDEX).read_text())
        parts = _parts(index)
    except (OSError, ValueError, AttributeError, IndexError) as error:
        raise UsageError(f"cannot read {folder / INDEX}: {error}: is the download complete?") from error
    check_names(folder, parts)
    there = {name: role for name, role in parts.items() if (folder / name / "config.json").is_file()}
    return there, str(index.get("_class_name", ""))


def _parts(index: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a pipeline that model_index.json names, with their roles."""
    named = ((name, value) for name, value in index.items() if isinstance(value, list) and value[0])
    return {name: role_for(name, str(value[0]), str(value[-1])) for name, value in named}


def check_component(pipeline: Pipeline, component: str) -> str:
    """The component that was asked for, or nothing for all of them; raises UsageError when there is none such."""
    wanted = component or pipeline.only
    if wanted and pipeline.components and wanted not in pipeline.components:
        raise UsageError(f"{pipeline.place} has no component {wanted!r}; it has {', '.join(pipeline.components)}")
    return wanted


def located(pipeline: Pipeline, variant: str | None = None) -> Pipeline:
    """The pipeline in its folder, downloaded as diffusers does it when it was named by its hub id.

    Of its weights those of a variant are downloaded, where there are such.
    """
    quiet_libraries()
    if Path(pipeline.place).is_dir():
        return pipeline
    from diffusers import DiffusionPipeline

    try:
        return find_pipeline(DiffusionPipeline.download(pipeline.place, variant=variant))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot download {pipeline.place}: {error}") from error


def dtype_of(pipeline: Pipeline, name: str | None = None, variant: str | None = None) -> torch.dtype:
    """The dtype to compute in: the one asked for, or that of the largest file of the components, or of the variant.

    Where there is no file of weights, which is enough for a plan, it is bfloat16, and this is said.
    """
    import torch

    if name or pipeline.dtype:
        return getattr(torch, name or pipeline.dtype or "")  # type: ignore[no-any-return]
    place = Path(pipeline.place)
    files = [file for part in pipeline.components for file in place.glob(f"{part}/*.safetensors")]
    files = [file for file in files if variant and f".{variant}" in file.name] or files
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    if largest is None and not any(place.glob("*/*.bin")):
        logger.warning("%s has no safetensors files: it is taken in bfloat16 (--dtype)", pipeline.place)
        return torch.bfloat16
    stored = _stored_dtypes(largest) if largest else set()
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in stored), torch.float32)


def _stored_dtypes(file: Path) -> set[torch.dtype]:
    """The dtypes of the tensors in a safetensors file, by its header; none of a damaged one, which loading reports."""
    from ...compiler.checkpoints.safetensors_header import read_safetensors

    try:
        return {entry.dtype for entry in read_safetensors(file)[0].values()}
    except WeightError:
        return set()


def quiet_libraries() -> None:
    """Keeps the progress bars and notices of diffusers and transformers off the terminal."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()

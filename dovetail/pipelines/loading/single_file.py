"""Loads a pipeline whose weights are in one file, as ComfyUI and its like have them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...addons.addons import check_addons
from ...compiler.errors import UsageError
from ...conventions import libraries
from ...conventions.checked import FILES, NAMED_FILES, checked
from ...conventions.dtypes import Dtypes, one_dtype
from ...conventions.hub import INDEX, configs_of, read_index
from ...conventions.pretrained import sorted_out
from ...conventions.quiet_imports import without_notices
from ...conventions.spellings import Places
from ...quant import Quant
from ...runtime.store.store import Origins
from ...weights.files import Given, open_weights
from ..compile_pipeline import compile_opened, compile_pipeline
from .saved import open_pipeline

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

OPTIONAL = {"safety_checker"}
"""Components that are left out unless they are given, for no file of a pipeline has them."""


@checked(source=FILES, weights=NAMED_FILES)
@without_notices()
def load_single_file(
    source: str | os.PathLike[str],
    backend: Places | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    dtype: Dtypes = None,
    torch_dtype: Dtypes = None,
    pipeline_class: type[DiffusionPipeline] | None = None,
    components: Mapping[str, object] | None = None,
    weights: Mapping[str, Given] | None = None,
    quant: Quant | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool | None = None,
    **others: object,
) -> DiffusionPipeline:
    """Loads a pipeline from one file of weights, as ``from_single_file`` does, and compiles it.

    The file has the weights of all components, or of some: the others are those of ``config``, or are given. Each is
    read from where it lies in the file when a call needs it; a text encoder that only diffusers can take out of the
    file is read at once, into host memory, and this is said.

    Args:
        source: a safetensors or GGUF file.
        backend: devices, as for ``compile_pipeline``.
        config: a folder of a pipeline of this kind, or its name on the Hub: of it come the configs, tokenizers and the
            scheduler. Left out, it is asked of the Hub, by what the names in the file resemble.
        dtype, torch_dtype, pipeline_class, components, weights, quant, revision, token, cache_dir, local_files_only: as
            for ``load_pipeline``.
        others: the other arguments of ``compile_pipeline``; components by name, ``vae=…``.

    Returns:
        The pipeline, as for ``load_pipeline``.

    Raises:
        UsageError: there is no such config, or no such component.
        WeightError: the file is missing, damaged, a pickle or for another pipeline, or lacks what nothing else has.
        SpecError: a spec is wrong; the message points at the place.
    """
    placing: dict[str, Any] = {
        name: others.pop(name) for name in inspect.signature(compile_pipeline).parameters if name in others
    }
    check_addons(placing.get("attention"), placing.get("cache"))
    pretrained = sorted_out(others, "load_single_file")
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    hub = {**{name: value for name, value in hub.items() if value is not None}, **pretrained.hub}
    pipe, origins = open_single_file(
        source,
        configs_for(source, config, hub),
        dtype=one_dtype(dtype, torch_dtype),
        pipeline_class=pipeline_class,
        components={**(components or {}), **pretrained.components},
        weights=weights,
        quant=quant,
        loading=pretrained.loading,
    )
    return compile_opened(pipe, origins, backend=backend, **placing)


def open_single_file(
    source: Given, folder: str | os.PathLike[str], *, components: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Any, dict[str, Origins]]:
    """Builds the pipeline of a file without its weights, and says where they come from, by component.

    ``folder`` has the configs; ``options`` are those of `open_pipeline`. Raises as load_single_file does.
    """
    optional = dict.fromkeys(OPTIONAL & read_index(Path(folder) / INDEX).keys())
    parts = {**optional, **(components or {})}
    return open_pipeline(folder, components=parts, checkpoint=open_weights(source), **options)


def configs_for(source: Given, config: Any, hub: Mapping[str, Any]) -> Path:
    """The folder with the configs of the pipeline that a file is of: the one given, or what the Hub has.

    Raises UsageError where there is none.
    """
    index = open_weights(source)
    if config is not None and Path(config).is_dir():
        if (Path(config) / INDEX).is_file():
            return Path(config)
        raise UsageError(f"{config} has no {INDEX}: name the folder of a whole pipeline in config (--config)")
    if config is not None:
        return configs_of(os.fspath(config), hub)
    names = {name: torch.empty(entry.shape, device="meta") for name, entry in index.items()}
    repository = libraries.published_as(names)
    if repository is None:
        raise UsageError(
            f"{index.where} does not say which pipeline it is of: name its folder in config (--config), or take the "
            f"file for one component: --weights transformer={index.where} --model FOLDER"
        )
    try:
        return configs_of(repository, hub)
    except UsageError as error:
        raise UsageError(
            f"{index.where} looks like {repository}, whose configs are not here: name the folder of such a pipeline in "
            f"config (--config): {error}"
        ) from error

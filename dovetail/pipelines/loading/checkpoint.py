"""The components of a pipeline whose weights are in one file, as published: each is read from where it lies there."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...compiler.checkpoints.index import WeightIndex
from ...compiler.errors import UsageError, WeightError
from ...conventions import libraries
from ...conventions.dtypes import dtype_of
from ...quant import Packing
from ...runtime.store.origin import FileOrigin
from ...runtime.store.reader import WeightReader
from .building import Built, build, class_of

logger = logging.getLogger(__name__)


def built_from(
    checkpoint: WeightIndex,
    folder: Path,
    classes: Mapping[str, Any],
    dtypes: Any,
    packings: Mapping[str, Packing],
    *,
    needs_files: bool = True,
) -> dict[str, Built]:
    """The components whose weights a file has, without them, and where they lie in it.

    An encoder that only diffusers can take out of the file comes with its weights. What the file does not have is left
    out, if the folder has it, or if files are not needed.

    Args:
        checkpoint: the file.
        folder: has the components' configs.
        classes: library and class by component.
        dtypes: by component.
        packings: how weights are packed while they are loaded, by component.
        needs_files: whether weights must be there.

    Raises WeightError for a file that has none of them, for a component that neither has, and where two components are
    found in one place.
    """
    reader, built, lacking = WeightReader(), {}, {}
    for name, (library, cls) in classes.items():
        if (folder / name / "config.json").is_file():
            dtype, packing = dtype_of(dtypes, name), packings.get(name)
            one = _build(checkpoint, folder, name, library, cls, dtype, reader, packing)
            if isinstance(one, WeightError):
                lacking[name] = one
            elif one is not None:
                built[name] = one
    if classes and not built:
        why = next(iter(lacking.values()), None)
        raise WeightError(
            f"{checkpoint.where} has no weights of {folder}: name the folder of its pipeline in config"
            + (f" ({why})" if why else "")
        )
    for name, error in lacking.items():
        if needs_files:
            _check_folder_has(name, folder, checkpoint.where, next(iter(built)), error)
        logger.warning("%s is not in %s and is that of %s", name, checkpoint.where, folder)
    _check_apart(checkpoint.where, built)
    return built


def _build(
    checkpoint: WeightIndex,
    folder: Path,
    name: str,
    library: str,
    cls: str,
    dtype: Any,
    reader: WeightReader,
    packing: Packing | None,
) -> Built | WeightError | None:
    """A component out of a file, or why the file does not have it."""
    try:
        return build(library, cls, folder / name, None, dtype, checkpoint, reader, packing=packing)
    except WeightError as error:
        whole = dtype if isinstance(dtype, torch.dtype) else None
        module = _encoder_in(checkpoint.where, class_of(library, cls), folder, name, whole)
        if module is None:
            return error
        if packing is not None:
            raise UsageError(
                f"quant: {name} of {checkpoint.where} is loaded by diffusers and cannot be packed: leave out "
                f"{name}={packing.type_name.lower()}, or give a file of its weights (weights=…): {error}"
            ) from error
        logger.warning("%s of %s is loaded by diffusers, into host memory: %s", name, checkpoint.where, error)
        return module, {}


def _check_folder_has(name: str, folder: Path, file: Path, found: str, error: WeightError) -> None:
    """Raises WeightError where the folder of configs has no weights of a component that a file lacks either."""
    if any(any((folder / name).glob(f"*{end}")) for end in (".safetensors", ".bin")):
        return
    raise WeightError(
        f"{file} has {found} and no {name}, and {folder / name} has no weights either: name a folder that has them in "
        f"config (--config), which does the same as --weights {shlex.quote(f'{found}={file}')} --model FOLDER, or give "
        f"the component, {name}=… ({error})"
    ) from error


def _encoder_in(file: Path, cls: Any, folder: Path, name: str, dtype: torch.dtype | None) -> Any:
    """The text encoder that diffusers finds in a file; raises WeightError where it cannot load what it finds."""
    try:
        return libraries.encoder_in(file, cls, folder, name, dtype) if cls is not None else None
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise WeightError(f"diffusers cannot load {name} out of {file}: {why}: is it damaged?") from error


def _check_apart(file: Path, built: Mapping[str, Built]) -> None:
    """Raises WeightError where a file has the weights of two components in one place, as names alone tell."""
    places: dict[frozenset[Any], str] = {}
    for name, (_, origins) in built.items():
        place = frozenset(one.entry.pieces for one in origins.values() if isinstance(one, FileOrigin))
        if place and place in places:
            raise WeightError(
                f"{file} does not say which weights are those of {places[place]} and of {name}: give {name}=…"
            )
        places[place] = name

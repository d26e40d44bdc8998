"""The weights of a module in files that a person names, of any kind and any layout."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..compiler.checkpoints.entries import WeightEntry
from ..compiler.checkpoints.index import WeightIndex
from ..compiler.errors import NoWeightsError, WeightError
from ..compiler.ir.program import Program
from ..runtime.store.origins import origins_of
from .name_matching import Wanted, find_weights
from .single_file import Arranged

Given = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | WeightIndex
"""Files of weights: one, several, the JSON file that lists the parts of one checkpoint, or a folder of one."""

_PICKLES = (".bin", ".ckpt", ".pt", ".pth")


def open_weights(given: Given) -> WeightIndex:
    """The index of the weights in files, in their own names; safetensors and GGUF, which need not be told apart.

    Raises:
        WeightError: a file is missing, damaged, of another kind, or has a weight that another has too.
    """
    if isinstance(given, WeightIndex):
        return given
    if isinstance(given, (str, os.PathLike)):
        refuse_address(given)
        return _open_path(Path(given))
    indices = [_open_path(Path(path)) for path in given]
    if not indices:
        raise WeightError("the list of weight files is empty: name at least one")
    entries: dict[str, WeightEntry] = {}
    for index in indices:
        if both := entries.keys() & index.keys():
            raise WeightError(f"{index.where} has {min(both)}, which a file before it has too: give one of them")
        entries |= index
    return replace(indices[0], entries=entries)


def refuse_address(given: object) -> None:
    """Raises NoWeightsError for an address in the web in place of a file."""
    if isinstance(given, str) and "://" in given:
        raise NoWeightsError(
            f"{given} is an address, and files are read from this machine: download it, and name the file"
        )


def _open_path(path: Path) -> WeightIndex:
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() in _PICKLES:
        raise NoWeightsError(f"{path} is a pickle, which can run code and is not read: convert it to safetensors first")
    if not path.exists():
        raise NoWeightsError(f"{path} is missing: name a safetensors or GGUF file that is there")
    return WeightIndex.of_shards(path) if path.suffix.lower() == ".json" else WeightIndex.of_file(path)


def _open_folder(folder: Path) -> WeightIndex:
    """The one checkpoint in a folder."""
    listings = sorted(folder.glob("*.safetensors.index.json"))
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.gguf"))
    if len(listings) > 1 or not files:
        names = ", ".join(file.name for file in listings) or "no safetensors or GGUF file"
        raise NoWeightsError(f"{folder} should hold one checkpoint and has {names}: name the file")
    return _open_path(listings[0]) if listings else open_weights(files)


def under_names_of(wanted: Wanted, index: WeightIndex) -> WeightIndex | None:
    """The index under the first name of each weight that is wanted; they are read from the file as they lie there.

    None when the module's library does more than rename what the file has, and only it can load that.

    Raises:
        WeightError: the file is for another module, or lacks a weight, or has one in another shape.
    """
    shapes = {name: entry.shape for name, entry in index.items()}
    layout = find_weights(wanted, shapes, index.where, str(index.metadata.get("general.architecture", "")))
    if layout is None:
        return None
    return index.holding({name: _entry(name, weight, index) for name, weight in layout.items()})


def _entry(name: str, weight: Arranged, index: WeightIndex) -> WeightEntry:
    try:
        parts = [_flat(index[piece.name]).slice(piece.start, piece.stop) for piece in weight.pieces or ()]
        return WeightEntry.joined(parts).reshaped(weight.shape)
    except WeightError as error:
        raise WeightError(f"{index.where} has {name} in parts that do not fit together: {error}") from error


def _flat(entry: WeightEntry) -> WeightEntry:
    return entry.reshaped((math.prod(entry.shape),))


def index_for(wanted: Wanted, given: Given) -> WeightIndex:
    """The index of the weights that are wanted, in the files that a person gave for them; raises WeightError."""
    index = open_weights(given)
    named = under_names_of(wanted, index)
    if named is None:
        raise WeightError(
            f"{index.where} cannot be read for {wanted.title}: its library recombines weights while loading: load the "
            "module with it, and compile that"
        )
    return named


def types_of(program: Program, index: WeightIndex) -> dict[str, str]:
    """The GGUF types in which weights of a program rest in files, by name, but what is read as plain numbers."""
    origins = origins_of(index)
    found = ((weight, next((origins[name] for name in weight.names if name in origins), None))
             for weight in program.weights.values())  # fmt: skip
    return {weight.name: quant for weight, one in found if one and (quant := one.quant_of(weight))}


def set_types(program: Program, types: Mapping[str, str]) -> None:
    """Lets weights of a program that is new rest in GGUF types, by name."""
    for name in types.keys() & program.weights.keys():
        program.weights[name] = replace(program.weights[name], quant=types[name])

"""Origins by the names of weights: out of an index of files, out of a table of another process, and as such a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from ...compiler.checkpoints.entries import WeightEntry
from ...compiler.checkpoints.index import WeightIndex
from ...compiler.checkpoints.origin_table import NAMES, Located, OriginTable
from ...compiler.ir.program import Program
from .fetching import is_in_file
from .origin import FileOrigin, Origin, RoundedOrigin
from .reader import WeightReader
from .stored_weight import StoredWeight


def origins_of(index: WeightIndex, reader: WeightReader | None = None) -> dict[str, FileOrigin]:
    """Where weights come from that files have, by name; ``reader`` reads them, which shares open files and buffers."""
    reader = reader or WeightReader()
    return {name: FileOrigin(entry, reader, index.where) for name, entry in index.items()}


def origins_in(table: OriginTable, files: Iterable[Path]) -> dict[str, Origin]:
    """Where weights come from that a table names, by name, in files of this machine.

    Raises WeightError, which names the file, where none of these is one of the table's.
    """
    reader = WeightReader()
    return {name: _origin(entry, through, reader) for name, (entry, through) in table.located(files).items()}


def located(weights: Mapping[str, StoredWeight]) -> dict[str, Located]:
    """The bytes in files of those weights whose numbers these are now, as they are or rounded.

    What modules hold of them is compared with the file, which takes reading it where they have data.
    """
    found = ((name, _located(one)) for name, one in weights.items())
    return {name: one for name, one in found if one is not None}


def to_send(program: Program, table: OriginTable) -> list[str]:
    """The names of a program's weights that a table lacks, for no file has them: another process has to be sent these.

    They are constants, what a module made for itself or somebody wrote, weights with merged adapters, and the weights
    of adapters beside them, of which the scale is a Python number.
    """
    return [name for name, weight in program.weights.items() if table.weights.keys().isdisjoint(weight.names)]


def _origin(entry: WeightEntry, through: tuple[torch.dtype, ...], reader: WeightReader) -> Origin:
    where = entry.pieces[0].file.path if entry.pieces else Path("the table of weights")
    origin = FileOrigin(entry, reader, where)
    return RoundedOrigin(origin, through) if through else origin


def _located(one: StoredWeight) -> Located | None:
    """The bytes of a weight in files, if its numbers are theirs and nothing is added to them."""
    if not is_in_file(one):
        return None
    match one.read_from if one.is_here else one.origin:
        case FileOrigin(entry):
            return entry, ()
        case RoundedOrigin(FileOrigin(entry), through) if NAMES.keys() >= {*through}:
            return entry, through
    return None

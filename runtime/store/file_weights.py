"""Weights out of files: what a weight source gives when it reads a checkpoint instead of holding tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from ...compiler.checkpoints.entries import WeightEntry
from ...compiler.checkpoints.index import WeightIndex
from ...compiler.errors import WeightError
from ...compiler.ir.program import Program, Weight
from .reader import WeightReader
from .source import WeightSource


class FileWeights(WeightSource):
    """Weights that files hold, by the names that a program has for them; they are read when they are asked for.

    Args:
        index: the weights of the files.
        others: gives the weights that no file has: constants of the trace, buffers that are not saved.
        reader: reads the files; sources that share one share open files and buffers.
    """

    def __init__(self, index: WeightIndex, others: WeightSource, reader: WeightReader | None = None) -> None:
        self.index = index
        self.reader = reader or WeightReader()
        self._others = others

    def missing(self, program: Program) -> list[str]:
        """The names of weights that neither the files nor the others have."""
        others = self._others.missing(program)
        return [name for name in others if self._find(program.weights[name]) is None]

    def types(self, program: Program) -> Mapping[str, str]:
        """The GGUF types that a program's weights rest in, by name; what it reads as plain numbers is left out.

        That is what has the program's dtype in the file, and floats of another width unless they are a matrix: they
        are converted while they are read.
        """
        found = ((weight, self._find(weight)) for weight in program.weights.values())
        return {
            weight.name: entry.quant for weight, entry in found if entry is not None and rests_packed(weight, entry)
        }

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor that holds the weight on a device, as it is stored: a slice's rows, a packed weight's bytes.

        Floats of another width are converted, unless the weight rests in their GGUF type. Raises WeightError when the
        weight is missing, its file cannot be read, or it has another shape or type than the program was made for.
        """
        entry = self._find(weight)
        if entry is None:
            return self._others(weight, device)
        return self.reader.read(self._fitting(weight, entry), weight.stored[1], device)

    def read_into(self, weight: Weight, target: torch.Tensor) -> None:
        """Fills a tensor that is like the one which holds the weight; raises WeightError as a call does."""
        entry = self._find(weight)
        if entry is None:
            target.copy_(self._others(weight, target.device))
        else:
            self.reader.read_into(self._fitting(weight, entry), target)

    def advise(self, weights: Iterable[Weight]) -> None:
        """Has the system read weights ahead, which are asked for next."""
        self.reader.advise(self._entries(weights))

    def release(self, weights: Iterable[Weight], device: torch.device) -> None:
        """Lets go of the memory that views of weights take; they are read again when they are used again."""
        self.reader.release(self._entries(weights))

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views."""
        self.reader.check()

    def _find(self, weight: Weight) -> WeightEntry | None:
        return next((self.index[name] for name in weight.names if name in self.index), None)

    def _entries(self, weights: Iterable[Weight]) -> Iterator[WeightEntry]:
        for weight in weights:
            if (entry := self._find(weight)) is not None:
                yield self._fitting(weight, entry)

    def _fitting(self, weight: Weight, entry: WeightEntry) -> WeightEntry:
        """The entry of what the weight is of a checkpoint's weight: its rows, its bytes."""
        whole = entry.shape
        rows = entry if weight.rows is None else entry.slice(*weight.rows)
        if rows.shape != weight.shape:
            raise WeightError(
                f"{self.index.where} has {weight.whole} as {list(whole)}, where {weight.name} of {list(weight.shape)} "
                "is needed: the files belong to another configuration"
            )
        if weight.quant and entry.quant != weight.quant:
            raise self._unlike(weight, entry, f"the program was compiled for {weight.quant}")
        if not weight.quant and entry.is_packed:
            raise self._unlike(weight, entry, "the program was compiled for plain numbers")
        return rows.packed() if weight.quant else rows

    def _unlike(self, weight: Weight, entry: WeightEntry, wanted: str) -> WeightError:
        return WeightError(
            f"{self.index.where} has {weight.whole} as {entry.describe()}, but {wanted}: compile again for this file"
        )


def rests_packed(weight: Weight, entry: WeightEntry) -> bool:
    """Whether a weight stays in the GGUF type it has in its file."""
    if entry.is_packed or not entry.quant:
        return entry.is_packed
    return entry.dtype != weight.dtype and weight.dtype.is_floating_point and len(entry.shape) == 2

"""Packs the weights of one component while it is loaded, or says what they would be, for a plan.

What is packed is read from the packed file from then on; all else is read from where it lies. Names are those of the
module, whatever the files call their weights.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ..compiler.checkpoints.entries import Piece, StoredFile, WeightEntry
from ..compiler.checkpoints.index import WeightIndex
from ..compiler.checkpoints.quantized_types import FLOAT8
from ..compiler.errors import DovetailError, UsageError, WeightError
from ..compiler.units import format_bytes
from ..conventions.layerwise import cast_layerwise
from ..convert.types import PLAIN, Converted, choose
from ..progress.phases import phase
from ..runtime.store.source import tensors_of_module
from . import kept

logger = logging.getLogger(__name__)

_ALIGNMENT = 64
PACKING = "packing"


@dataclass(frozen=True)
class Packing:
    """How the weights of a component are packed: its name and the type; a ``dry`` one packs nothing, for a plan."""

    component: str
    quant: str
    dry: bool = False

    @property
    def type_name(self) -> str:
        """The type as a person names it."""
        return "f8" if self.quant == FLOAT8 else self.quant

    def packed(self, module: nn.Module, index: WeightIndex) -> WeightIndex:
        """An index in which the weights of a module lie packed that are to be, out of one under the module's names.

        Raises:
            UsageError: weights are packed already.
            DovetailError: a weight cannot be read, or has numbers that the type cannot hold, or there is nowhere room.
        """
        self._refuse_packed(index)
        weights = self._chosen(module, index)
        if not weights:
            self._tell_of_none(module)
            return index
        key = kept.key_of(weights)
        there = kept.found(key, weights)
        if there is None and not self.dry:
            there = self._made(key, module, weights)
        entries = _would_be(weights, key) if there is None else _taken(weights, there)
        return index.holding({**index, **entries})

    def planned(self, module: nn.Module) -> WeightIndex:
        """What `packed` would give for a module of which no file of weights is there: its parameters."""
        nowhere = StoredFile(Path(self.component), 0, 0)
        entries, start = dict[str, WeightEntry](), 0
        for name, one in tensors_of_module(module).items():
            if isinstance(one, nn.Parameter):  # what lies in one place is taken for one weight
                lies = (Piece(nowhere, start, start + one.nbytes),)
                entries[name], start = WeightEntry(lies, one.dtype, tuple(one.shape)), _after(start + one.nbytes)
        index = WeightIndex(entries, nowhere.path)
        weights = self._chosen(module, index)
        return index.holding({**index, **_would_be(weights, kept.key_of(weights))})

    def _refuse_packed(self, index: WeightIndex) -> None:
        packed = next(((name, entry) for name, entry in index.items() if entry.is_packed), None)
        if packed:
            raise UsageError(
                f"quant: {self.component} is packed already, {packed[0]} as {packed[1].quant} in {index.where}: leave "
                f"out {self.component}={self.type_name.lower()}, or name its original weights"
            )

    def _chosen(self, module: nn.Module, index: WeightIndex) -> list[Converted]:
        """The weights that are packed, each with the type that it gets."""
        tensors = tensors_of_module(module)
        if self.quant == FLOAT8:
            names = [name for name in cast_layerwise(module) if name in index and index[name].shape]
            return [Converted(name, index[name], FLOAT8, through=tensors[name].dtype) for name in names]
        chosen = [choose(name, entry, self.quant, (), True) for name, entry in index.items()]
        packed = [one for one in chosen if one.quant and one.quant not in PLAIN]
        return [one for one in packed if isinstance(tensors.get(one.name), nn.Parameter)]

    def _tell_of_none(self, module: nn.Module) -> None:
        logger.warning(
            "no weight of %s is packed as %s: %s has none that would be (matrices of 256 rows and columns or more)",
            *(self.component, self.type_name, type(module).__name__),
        )

    def _made(self, key: str, module: nn.Module, weights: Sequence[Converted]) -> WeightIndex:
        """Packs, and says so, for it takes as long as the source is large."""
        before, after = (sum(sizes) for sizes in zip(*((one.entry.nbytes, one.nbytes) for one in weights), strict=True))
        logger.warning(
            "packing %s as %s, once: %s become %s, kept in %s",
            *(self.component, self.type_name, format_bytes(before), format_bytes(after), kept.place()),
        )
        started = time.perf_counter()
        try:
            with phase(PACKING):
                made = kept.made(key, f"{type(module).__name__} {self.type_name}", weights, lambda: None)
        except WeightError as error:
            raise DovetailError(f"{self.component} cannot be packed as {self.type_name}: {error}") from error
        logger.info("packed %s in %.1f s", self.component, time.perf_counter() - started)
        return made


def _taken(weights: Sequence[Converted], index: WeightIndex) -> dict[str, WeightEntry]:
    """The weights as they lie in a packed file."""
    return {one.name: replace(_entry(one), pieces=index[one.name].pieces) for one in weights}


def _would_be(weights: Sequence[Converted], key: str) -> dict[str, WeightEntry]:
    """The weights as they would lie in a packed file that is not there."""
    file = StoredFile(kept.path_of(key), 0, 0)
    found, start = dict[str, WeightEntry](), 0
    for one in weights:
        found[one.name] = replace(_entry(one), pieces=(Piece(file, start, start + one.nbytes),))
        start = _after(start + one.nbytes)
    return found


def _after(end: int) -> int:
    """Where the next weight of a file begins."""
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _entry(one: Converted) -> WeightEntry:
    return WeightEntry((), torch.uint8, one.entry.shape, one.quant)


def packed_bytes(entries: Iterable[WeightEntry]) -> dict[str, int]:
    """The bytes of weights, by type, that are read from packed files of the cache, or would be."""
    found: Counter[str] = Counter()
    for entry in entries:
        if entry.pieces and entry.pieces[0].file.path.parent == kept.place():
            found["f8" if entry.quant == FLOAT8 else entry.quant] += entry.nbytes
    return dict(found)

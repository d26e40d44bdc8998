"""Where the numbers of a weight come from: a tensor, a range of files, or one of these with updates, or rounded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from ...compiler.checkpoints.entries import WeightEntry
from ...compiler.errors import WeightError
from ...compiler.ir.part import Part
from ...compiler.ir.weight import Weight
from .. import quantized as quantized  # registers what unpacks packed weights
from ..devices.transfers import land, moved
from .reader import WeightReader

HOST = torch.device("cpu")


class Origin(Protocol):
    """Gives the numbers of one weight of a checkpoint, whole or as a program takes them."""

    @property
    def file(self) -> FileOrigin | None:
        """The range of files that has its bytes, or None where they are in memory."""

    def quant_of(self, weight: Weight) -> str:
        """The GGUF type in which a weight that is compiled for this origin rests, or nothing for plain numbers."""

    def check(self, weight: Weight) -> None:
        """Raises WeightError where this cannot be what a program knows as a weight: its shape or type is another."""

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight, on a device: all of it, a part, or packed bytes; raises WeightError."""

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """Fills memory on a device with what a program knows as a weight, and takes none there; raises WeightError."""

    def whole(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """All numbers on a device, in a dtype; what is packed is unpacked."""


@dataclass(frozen=True)
class TensorOrigin:
    """A tensor in memory, on any device: a module's, one of a state dict, or a constant of the trace."""

    tensor: torch.Tensor

    @property
    def file(self) -> FileOrigin | None:
        """None."""
        return None

    def quant_of(self, weight: Weight) -> str:
        """Nothing: it is taken as it is."""
        return ""

    def check(self, weight: Weight) -> None:
        """Raises WeightError where the tensor cannot hold the weight, or have its part."""
        shape, dtype = weight.stored
        found, part = tuple(self.tensor.shape), weight.stored_part
        if part and part.lies_in(found):
            found = part.shape(found)
        if found != shape or self.tensor.dtype != dtype:
            raise WeightError(
                f"weight {weight.name} is {self.tensor.dtype}{list(self.tensor.shape)}, "
                f"but the program was traced with {dtype}{list(shape)}: compile again"
            )

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor on a device, or a copy of its part alone; itself where it is there already.

        What comes out of pinned host memory is on its way when this returns, on the device's current stream.
        """
        self.check(weight)
        part = weight.of(self.tensor.detach())
        is_view = weight.which is not None and len(weight.which.ranges) == 1
        if is_view and (part.device == device or not part.is_contiguous()):  # a copy of a view may take what it spans
            part = part.clone()
        return moved(part, device)

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """Copies the tensor, or its part."""
        land(self.read(weight, self.tensor.device), place)

    def whole(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The tensor on a device."""
        return moved(self.tensor if self.tensor.dtype == dtype else self.tensor.to(dtype), device)


@dataclass(frozen=True)
class FileOrigin:
    """A range of files; ``where`` names the checkpoint in messages."""

    entry: WeightEntry
    reader: WeightReader
    where: Path

    @property
    def file(self) -> FileOrigin:
        """Itself."""
        return self

    def quant_of(self, weight: Weight) -> str:
        """The type that it has in the file, unless it is read as plain numbers.

        That is what has the weight's dtype, and floats of another width unless they are a matrix: they are converted
        while they are read.
        """
        entry = self.entry
        if entry.is_packed or not entry.quant:
            return entry.quant
        is_matrix = weight.dtype.is_floating_point and len(entry.shape) == 2
        return entry.quant if is_matrix and entry.dtype != weight.dtype else ""

    def check(self, weight: Weight) -> None:
        """Raises WeightError where the file has another shape or type."""
        self.fitting(weight)

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """What the file has of it on a device; on the host a view of the file, where no dtype is changed."""
        return self.reader.read(self.fitting(weight), weight.stored[1], device)

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """Reads straight into the memory, through pinned memory where the host cannot write it."""
        self.reader.read_into(self.fitting(weight), place)

    def bring_view(self, weight: Weight) -> torch.Tensor | None:
        """What a program knows as a weight as a view of the file, in memory by now; None where it has to be copied."""
        return self.reader.bring_view(self.fitting(weight), weight.stored[1])

    def whole(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """All numbers of it."""
        if not self.entry.is_packed:
            return self.reader.read(self.entry, dtype, device)
        packed = self.reader.read(self.entry.packed(), torch.uint8, HOST)
        dense: torch.Tensor = torch.ops.dovetail.dequantize(packed, self.entry.quant, dtype)
        return moved(dense, device)

    def can_view(self, dtype: torch.dtype) -> bool:
        """Whether all of it in a dtype, in host memory, is a view of the file, which takes none."""
        return self.reader.can_view(self.entry, dtype)

    def is_exact_in(self, dtype: torch.dtype) -> bool:
        """Whether a dtype has all numbers that the file may have; what is packed is unpacked in any."""
        return self.entry.is_packed or torch.promote_types(self.entry.dtype, dtype) == dtype

    def fitting(self, weight: Weight) -> WeightEntry:
        """The range of what a program knows as a weight: its part, its bytes."""
        entry = self.entry
        part = entry if weight.which is None else entry.part(weight.which.axis, weight.which.ranges)
        if part.shape != weight.shape:
            raise WeightError(
                f"{self.where} has {weight.whole} as {list(entry.shape)}, where {weight.name} of {list(weight.shape)} "
                "is needed: the files belong to another configuration"
            )
        if weight.quant and entry.quant != weight.quant:
            raise self._unlike(weight, f"the program was compiled for {weight.quant}")
        if not weight.quant and entry.is_packed:
            raise self._unlike(weight, "the program was compiled for plain numbers")
        return part.packed() if weight.quant else part

    def _unlike(self, weight: Weight, wanted: str) -> WeightError:
        return WeightError(
            f"{self.where} has {weight.whole} as {self.entry.describe()}, but {wanted}: compile again for this file"
        )


class Update(Protocol):
    """Something that is added to a weight."""

    def part(self, part: Part | None) -> torch.Tensor:
        """What is added to a part of it, or to all."""


@dataclass(frozen=True)
class _ComputedOrigin(ABC):
    """An origin whose numbers are computed from those of another one, so that it has no packed bytes to give."""

    base: Origin

    @property
    def file(self) -> FileOrigin | None:
        """That of the base."""
        return self.base.file

    def quant_of(self, weight: Weight) -> str:
        """Nothing: only numbers can be computed with."""
        return ""

    @abstractmethod
    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The numbers of a weight, or of a part of one, on a device."""

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """The numbers of a weight, computed in host memory."""
        land(self.read(weight, HOST), place)


@dataclass(frozen=True)
class MergedOrigin(_ComputedOrigin):
    """An origin with updates added to its numbers, one after the other, each rounded to the dtype."""

    updates: Sequence[Update]

    def check(self, weight: Weight) -> None:
        """Raises WeightError where the base does, or where bytes are asked for that nothing can be added to."""
        self.base.check(weight)
        if weight.quant:
            raise WeightError(
                f"weight {weight.name} has adapters merged into it, and the program was compiled for {weight.quant}: "
                "compile again"
            )

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The base with the updates of its part."""
        self.check(weight)
        return self._updated(weight.which, self.base.read(weight, device))

    def whole(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """All of the base with the updates."""
        return self._updated(None, self.base.whole(dtype, device))

    def _updated(self, part: Part | None, data: torch.Tensor) -> torch.Tensor:
        for update in self.updates:
            data = (data + moved(update.part(part), data.device)).to(data.dtype)
        return data


@dataclass(frozen=True)
class RoundedOrigin(_ComputedOrigin):
    """An origin whose numbers go through dtypes, one after the other, before they are taken in that of the weight."""

    through: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, origin: Origin, was: torch.dtype, now: torch.dtype) -> Origin:
        """What gives in one dtype the numbers that an origin gives in another; itself where that rounds once."""
        base, dtypes = (origin.base, origin.through) if isinstance(origin, cls) else (origin, ())
        through = (*dtypes, was)
        if isinstance(base, FileOrigin) and base.is_exact_in(through[0]):
            through = through[1:]
        return cls(base, through) if through else base

    def check(self, weight: Weight) -> None:
        """Raises WeightError where the base does, or where bytes are asked for."""
        self.base.check(replace(weight, dtype=self.through[0]))
        if weight.quant:
            raise WeightError(
                f"weight {weight.name} was converted, and the program was compiled for {weight.quant}: compile again"
            )

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The numbers of the base, or a part of them, rounded."""
        self.check(weight)
        return self._rounded(self.base.read(replace(weight, dtype=self.through[0]), device), weight.dtype)

    def whole(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """All numbers of the base, rounded."""
        return self._rounded(self.base.whole(self.through[0], device), dtype)

    def _rounded(self, data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        for dtype in (*self.through[1:], dtype):  # noqa: B020
            data = data.to(dtype)
        return data

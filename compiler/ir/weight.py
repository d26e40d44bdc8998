"""What a program knows of a weight, and of the low-rank branches whose weights are added to those of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from ..checkpoints.quantized_types import block_of, packed_shape, row_bytes
from ..errors import WeightError
from .part import Part, merged
from .state import Range


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, buffer, constant or part of an adapter, known by name; its data rests elsewhere.

    ``shape`` and ``dtype`` are those of its numbers. In a ``quant`` type it rests as packed bytes (``stored``). Where
    it is a part of the weight that a checkpoint has, ``which`` says which, and so does its name: ``whole[0:64]`` has
    rows, ``whole[:, 0:64+128:192]`` has two ranges of columns.

    ``frozen`` is a parameter that requires no gradient. It matters without training: PyTorch multiplies by a matrix
    that requires one with another kernel, and so rounds differently.
    """

    name: str
    kind: str  # "parameter", "buffer", "constant" or "adapter"
    shape: tuple[int, ...]
    dtype: torch.dtype
    aliases: tuple[str, ...] = ()
    persistent: bool = True
    frozen: bool = False
    quant: str = ""
    which: Part | None = None
    _parts: dict[object, Weight] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def stored(self) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of the tensor that holds it: its own, or those of packed bytes."""
        return (packed_shape(self.quant, self.shape), torch.uint8) if self.quant else (self.shape, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it rests."""
        shape, dtype = self.stored
        return math.prod(shape) * dtype.itemsize

    @property
    def device_bytes(self) -> int:
        """Bytes that it takes on a device that reads it; a number takes none."""
        return 0 if self.is_number else self.nbytes

    @property
    def is_number(self) -> bool:
        """Whether operations take it as a Python number: the scale of an adapter."""
        return self.kind == "adapter" and not self.shape

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor that holds it requires a gradient, as the module's own does."""
        return self.kind in ("parameter", "adapter") and not self.frozen and not self.quant

    @property
    def whole(self) -> str:
        """The name of the weight that this is a part of, or its own."""
        return self.name.rpartition("[")[0] if self.which else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a checkpoint may keep this weight under."""
        return (self.whole, *self.aliases)

    @property
    def stored_part(self) -> Part | None:
        """Which part it is of the tensor that holds the whole: of the bytes, along an axis that is packed."""
        if self.which is None or not self._is_packed_along(self.which.axis):
            return self.which
        ranges = tuple((row_bytes(self.quant, start), row_bytes(self.quant, stop)) for start, stop in self.which.ranges)
        return Part(self.which.axis, ranges)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """What it is of the tensor that holds the whole: that, or a part, which is a view where it is one range."""
        part = self.stored_part
        return whole if part is None else part.of(whole)

    def part(self, axis: int, ranges: Sequence[Range]) -> Weight:
        """Ranges of it along an axis, which ascend, as a weight of their own.

        That they do not reach beyond the weight is for the verifier to say, and for who reads it. Raises WeightError
        for other axes than it has, for a part of a part along another axis, and for what cuts blocks of a packed one.
        """
        key = axis, *ranges
        if key not in self._parts:  # passes ask for the same ones again and again
            self._parts[key] = self._part(axis, ranges)
        return self._parts[key]

    def _part(self, axis: int, ranges: Sequence[Range]) -> Weight:
        self._check_part(axis, ranges)
        which = self.which.part(ranges) if self.which else Part(axis, merged(ranges))
        return replace(self, name=f"{self.whole}{which}", shape=which.shape(self.shape), which=which)

    def stored_as(self, axis: int, ranges: Sequence[Range]) -> Weight:
        """The part whose ranges along an axis are said of the tensor that holds the weight: bytes where it is packed.

        Raises WeightError as `part` does, and where a range tears a block.
        """
        if not self._is_packed_along(axis):
            return self.part(axis, ranges)
        elements, nbytes = block_of(self.quant)
        if any(end % nbytes for one in ranges for end in one):
            raise WeightError(f"{self.name} has {self.quant} blocks of {nbytes} bytes: take whole blocks")
        return self.part(axis, [(start // nbytes * elements, stop // nbytes * elements) for start, stop in ranges])

    def _check_part(self, axis: int, ranges: Sequence[Range]) -> None:
        ends = [0, *chain.from_iterable(ranges)]
        if not 0 <= axis < len(self.shape) or ends != sorted(ends) or (self.which and ends[-1] > self.shape[axis]):
            said = f"{_said(ranges)} along axis {axis}"
            raise WeightError(f"{self.name} of {list(self.shape)} has no {said}: ask for a part that it has, in order")
        if self.which and self.which.axis != axis:
            raise WeightError(f"{self.name} is a part along another axis than {axis}: take one of {self.whole} instead")
        elements = block_of(self.quant)[0] if self._is_packed_along(axis) else 1
        if any(end % elements for end in ends):
            said = f"{_said(ranges)} would cut along axis {axis}"
            raise WeightError(f"{self.name} has {self.quant} blocks of {elements}, which {said}: take whole blocks")

    def _is_packed_along(self, axis: int) -> bool:
        return bool(self.quant) and axis == len(self.shape) - 1


def _said(ranges: Sequence[Range]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in ranges)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank branch beside a matmul or convolution: ``y + up(down(x)) * scale``.

    ``target`` is the path of the module, ``slot`` the branch's number among those of that module. The weights of the
    branch are named by these two, so that another adapter of the same form may take the place of this one.
    """

    target: str
    slot: int
    down: tuple[int, ...]
    up: tuple[int, ...]
    dtype: torch.dtype
    bias: bool = False
    frozen: bool = False

    @property
    def weights(self) -> dict[str, Weight]:
        """The weights by their part: down, up, with a bias also bias, and scale, which is a Python number."""
        shapes = {"down": self.down, "up": self.up} | ({"bias": self.up[:1]} if self.bias else {})
        tensors = {part: self._weight(part, shape, self.dtype) for part, shape in shapes.items()}
        return tensors | {"scale": self._weight("scale", (), torch.float64)}

    def _weight(self, part: str, shape: tuple[int, ...], dtype: torch.dtype) -> Weight:
        return Weight(self.name(part), "adapter", shape, dtype, persistent=False, frozen=self.frozen)

    def name(self, part: str) -> str:
        """The name of a weight of the branch."""
        return f"{self.target}.lora.{self.slot}.{part}"

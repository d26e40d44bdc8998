"""What a program knows of a weight, and of the low-rank branches whose weights are added to those of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ..checkpoints.quantized_types import packed_shape


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, buffer, constant or part of an adapter, known by name; its data rests elsewhere.

    ``shape`` and ``dtype`` are those of its numbers. In a ``quant`` type it rests as packed bytes (``stored``). With
    ``rows`` it is a slice of the weight that a checkpoint has, and its name is ``whole[start:stop]``.

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
    rows: tuple[int, int] | None = None

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
        """The name of the weight that this is a slice of, or its own."""
        return self.name.rpartition("[")[0] if self.rows else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a checkpoint may keep this weight under."""
        return (self.whole, *self.aliases)

    def slice(self, start: int, stop: int) -> Weight:
        """Some of its rows as a weight of their own."""
        first = self.rows[0] if self.rows else 0
        rows = (first + start, first + stop)
        name = f"{self.whole}[{rows[0]}:{rows[1]}]"
        return replace(self, name=name, shape=(stop - start, *self.shape[1:]), rows=rows)


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

"""Finds the weights of a module in a file of another layout, by running diffusers' own converters without any data.

Checkpoints are published under names and in arrangements of their authors' own: query, key and value in one matrix,
halves swapped, a prefix before each name. diffusers has a function a class that makes its names and arrangement of
them. Here that function runs over tensors on meta, which have shapes and no data. What it does to them is slicing,
which PyTorch itself records in a view's offset, and concatenation, which is noted; so each weight of the module comes
out as ranges of the stored ones, and can be read from the file as it lies there, packed or not.

Some of the functions have the published width of a model written into them: they split 21504 rows as 3072 + 3072 +
3072 + 12288. Where a matrix has another number of rows, such a split is taken in proportion, and the shapes of the
module say afterwards whether that was right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..conventions import libraries

_ATEN = torch.ops.aten


class Piece(NamedTuple):
    """Some of the numbers of a stored tensor, counted in the order in which they are stored."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Arranged:
    """A weight as pieces of stored tensors, one after the other; None where it is no such thing."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] | None

    def shaped(self, shape: tuple[int, ...]) -> Arranged | None:
        """The same numbers in a shape that differs in dimensions of size 1 only; None for any other."""
        same = [size for size in shape if size != 1] == [size for size in self.shape if size != 1]
        return Arranged(shape, self.pieces) if same else None


Layout = Mapping[str, Arranged]
"""The weights of a file under some names, in some arrangement."""


def as_stored(shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """The layout that a file has by itself."""
    return {name: Arranged(shape, (Piece(name, 0, math.prod(shape)),)) for name, shape in shapes.items()}


class Lacking(LookupError):
    """A conversion was under way when it looked for a weight, named here, that the file does not have."""


def converted(convert: Callable[[dict[str, torch.Tensor]], Mapping[str, Any]], layout: Layout) -> Layout:
    """What a function over state dicts makes of a layout; nothing where the function cannot take it at all.

    Raises Lacking where it takes all but one.
    """
    with _Noted() as noted, libraries.quiet_conversion():
        checkpoint = {name: noted.stand_in(weight) for name, weight in layout.items()}
        try:
            results = convert(checkpoint)
        except (KeyError, IndexError, ValueError, RuntimeError, AttributeError, TypeError) as error:
            if isinstance(error, KeyError) and len(checkpoint) < len(layout):  # it has taken some out already
                raise Lacking(error.args[0]) from error
            return {}
        tensors = {name: result for name, result in results.items() if isinstance(result, torch.Tensor)}
        return {name: Arranged(tuple(tensor.shape), noted.pieces(tensor)) for name, tensor in tensors.items()}


class _Noted(TorchDispatchMode):
    """Knows of every tensor made from stored ones which of their numbers it holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, tuple[torch.UntypedStorage, tuple[Piece, ...]]] = {}

    def stand_in(self, weight: Arranged) -> torch.Tensor:
        """A tensor without data that stands for a weight."""
        return self._note(torch.empty(weight.shape, device="meta"), weight.pieces)

    def pieces(self, tensor: torch.Tensor) -> tuple[Piece, ...] | None:
        """What a tensor holds, in its order; None when that is no row of ranges."""
        _, held = self._held.get(tensor.untyped_storage()._cdata, (None, None))
        if held is None or not tensor.is_contiguous():
            return None
        first = int(tensor.storage_offset())
        return tuple(_cut(held, first, first + tensor.numel()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _ATEN.split_with_sizes.default:
            args = (args[0], _in_proportion(args[1], args[0], *args[2:]), *args[2:])
        result = func(*args, **(kwargs or {}))
        if func is _ATEN.clone.default:
            self._note(result, self.pieces(args[0]))
        if func is _ATEN.cat.default and _is_outermost(*args):
            parts = [self.pieces(part) for part in args[0]]
            self._note(result, None if None in parts else tuple(piece for part in parts for piece in part or ()))
        return result

    def _note(self, tensor: torch.Tensor, pieces: tuple[Piece, ...] | None) -> torch.Tensor:
        if pieces is not None and tensor.is_contiguous():
            storage = tensor.untyped_storage()
            self._held[storage._cdata] = storage, pieces  # a storage that is kept keeps its key its own
        return tensor


def _cut(pieces: Iterable[Piece], start: int, stop: int) -> Iterator[Piece]:
    """The part of a row of pieces between two places in it."""
    begins = 0
    for name, first, last in pieces:
        ends = begins + last - first
        if begins < stop and start < ends:
            yield Piece(name, first + max(0, start - begins), last - max(0, ends - stop))
        begins = ends


def _is_outermost(parts: list[torch.Tensor], dim: int = 0) -> bool:
    """Whether a concatenation in a dimension puts one part after the other in memory."""
    return all(size == 1 for size in parts[0].shape[:dim]) if dim >= 0 else parts[0].ndim == -dim


def _in_proportion(sizes: list[int], tensor: torch.Tensor, dim: int = 0) -> list[int]:
    """The sizes of a split, scaled to the tensor where that has another size and takes it."""
    have, want = tensor.shape[dim], sum(sizes)
    if have == want or want == 0 or any(size * have % want for size in sizes):
        return sizes
    return [size * have // want for size in sizes]

"""What a node yields, without the data: tensors by shape, dtype, strides and memory, and Python numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import torch

from .sizes import evaluate

_AT: ContextVar[Mapping[str, int] | None] = ContextVar("_AT", default=None)


@contextlib.contextmanager
def sizes_at(symbols: Mapping[str, int]) -> Iterator[None]:
    """Has dynamic dimensions be of the sizes that symbols have in a call, in this thread, in place of the example's."""
    token = _AT.set(symbols)
    try:
        yield
    finally:
        _AT.reset(token)


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of one tensor without having it: shape, dtype, strides and whose memory it lies in.

    ``storage`` numbers the memory: two values with the same number alias each other. Sizes are ints, or the text of
    an expression over the program's symbols where a dimension is dynamic; ``hint`` has the sizes of the example.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    stride: tuple[int | str, ...]
    storage: int
    hint: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes as ints, those of the traced example where a dimension is dynamic; see `sizes_at`."""
        symbols = _AT.get() if self.hint else None
        if symbols is None:
            return self.hint or self.shape  # type: ignore[return-value]
        return tuple(evaluate(size, symbols) for size in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this shape and dtype."""
        return math.prod(self.sizes) * self.dtype.itemsize

    def steps(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """The strides as ints where symbols have such values, or others that `sizes_at` says."""
        known = _AT.get() or symbols
        return tuple(evaluate(step, known) for step in self.stride)

    @property
    def sent_bytes(self) -> int:
        """Bytes of a copy of it on its way: what lies behind several indices is sent once."""
        return math.prod(n for n, step in zip(self.sizes, self.stride, strict=True) if step) * self.dtype.itemsize

    @staticmethod
    def dense(shape: Sequence[int | str], dtype: torch.dtype, storage: int, hint: tuple[int, ...] = ()) -> TensorType:
        """The type of a contiguous tensor that fills memory of its own."""
        return TensorType(tuple(shape), dtype, dense_stride(shape), storage, hint)


@lru_cache(2**15)
def filled_stride(kind: TensorType) -> tuple[int | str, ...]:
    """The strides of the like of a tensor that fills memory of its own; its own where they are expressions."""
    has_all = all(isinstance(step, int) for step in kind.stride)
    return ordered_stride(kind.shape, kind.stride) if has_all else kind.stride


def ordered_stride(shape: Sequence[int | str], like: Sequence[int | str]) -> tuple[int | str, ...]:
    """The strides of a tensor that fills memory of its own, whose axes lie within one another as those of another do.

    Axes along which that repeats itself lie outside the others; where strides are expressions, all lie in their order.
    """
    steps = [step for step in like if isinstance(step, int)]
    if len(steps) < len(like) or len(like) != len(shape):
        return dense_stride(shape)
    order = sorted(range(len(shape)), key=lambda axis: (steps[axis] != 0, -steps[axis]))
    return dense_in_order(shape, order)


def stride_of_part(kind: TensorType, sizes: Sequence[int], like: Sequence[int]) -> tuple[int | str, ...]:
    """The strides of a tensor whose axes lie within one another as those of a part of it do.

    An axis of which both have one element lies inside those that have its step, as kernels read steps of such an axis
    too. Of one of which only the part has one element steps say nothing: it lies before all axes that follow it in the
    tensor as it was traced.

    >>> kind = TensorType((2, 3, 4), torch.float32, (12, 1, 3), 0)
    >>> stride_of_part(kind, (1, 3, 4), (3, 1, 3))
    (12, 1, 3)
    >>> stride_of_part(kind, (1, 3, 4), (1, 4, 1))
    (12, 4, 1)
    >>> stride_of_part(TensorType((5, 1, 4), torch.float32, (4, 4, 1), 0), (2, 1, 4), (4, 1, 1))
    (4, 1, 1)
    """
    steps = [step if isinstance(step, int) else 0 for step in kind.stride]
    traced = sorted(range(len(steps)), key=lambda axis: -steps[axis])
    known = [axis for axis, size in enumerate(sizes) if size != 1 or (kind.shape[axis] == 1 and like[axis] > 0)]
    order = sorted(known, key=lambda axis: (-like[axis], sizes[axis] == 1))
    for at, axis in reversed(list(enumerate(traced))):
        if axis not in known:
            order.insert(min(map(order.index, traced[at + 1 :]), default=len(order)), axis)
    return ordered_stride(kind.shape, [len(order) - order.index(axis) for axis in range(len(order))])


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor fills the memory that it lies in, in some order of axes: it has no gap, and no element twice."""
    step = 1
    for one, size in sorted((one, size) for one, size in zip(stride, shape, strict=True) if size != 1):
        if one != step:
            return False
        step *= size
    return True


def lies_together(sizes: Sequence[int], stride: Sequence[int], place: Sequence[int]) -> bool:
    """Whether a part of a tensor is copied to its place as it lies, one stretch of memory to another.

    It is where it is contiguous, for the place may have gaps. In any other order of axes both fill their memory alike.

    >>> lies_together((1, 2, 3), (9, 3, 1), (99, 5, 1)), lies_together((1, 2, 3), (9, 1, 2), (99, 1, 2))
    (True, True)
    >>> lies_together((1, 2, 3), (9, 1, 2), (99, 3, 1)), lies_together((1, 2, 3), (9, 1, 4), (99, 1, 4))
    (False, False)
    """
    steps = [one for one in zip(sizes, stride, dense_stride(sizes), place, strict=True) if one[0] != 1]
    if all(own == dense for _, own, dense, _ in steps):
        return True
    return all(own == there for _, own, _, there in steps) and is_dense(sizes, stride)


def dense_in_order(shape: Sequence[int | str], order: Sequence[int]) -> tuple[int | str, ...]:
    """The strides of a tensor that fills memory of its own, with its axes in an order, outermost first."""
    steps = dict(zip(order, dense_stride([shape[axis] for axis in order]), strict=True))
    return tuple(steps[axis] for axis in range(len(shape)))


def dense_stride(shape: Sequence[int | str]) -> tuple[int | str, ...]:
    """The strides of a contiguous tensor, text of an expression behind a dynamic dimension."""
    strides: list[int | str] = [1]
    for size in reversed(shape[1:]):
        step = strides[-1]
        fixed = isinstance(step, int) and isinstance(size, int)
        strides.append(step * max(size, 1) if fixed else f"({step})*({size})")  # type: ignore[operator]
    return tuple(reversed(strides[: len(shape)]))


Value: TypeAlias = "TensorType | tuple[Value, ...] | None"
"""What a node yields: a tensor, several of them, or (None) a Python number."""


def flat(value: Value) -> Iterator[TensorType]:
    """The tensors of a value, one after another."""
    if isinstance(value, TensorType):
        yield value
    elif value is not None:
        for item in value:
            yield from flat(item)


def relocated(value: Value, moved: Mapping[int, int]) -> Value:
    """The same that lies in other memory, where the number of its own is among those that have another now."""
    if isinstance(value, TensorType):
        return replace(value, storage=moved.get(value.storage, value.storage))
    return None if value is None else tuple(relocated(one, moved) for one in value)

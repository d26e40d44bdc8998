"""Fake tensors with the strides that eager's kernels give, where a dimension has size 1.

The stride of such a dimension moves nothing, so PyTorch's fakes choose it freely; eager's kernels read it: a
convolution takes its input for channels-last or not by the stride of a batch of one. A trace with other strides would
be of a program that eager never runs. Three rules of ATen are followed here to the letter: that of views
(``computeStride``), that of operations element by element (``TensorIterator``), and that of ``empty_like``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .value import dense_in_order, is_dense

aten = torch.ops.aten

Sizes = Sequence[int]
Layout = tuple[Sizes, Sizes]
"""Sizes and strides."""

_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default})
_LIKE = frozenset({
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "clone", "_to_copy",
    "nan_to_num", "hardtanh", "relu6",
})  # fmt: skip
"""The operations whose results have the strides of their operand, where it has no gaps and no format is given."""
_OF_NUMBERS = frozenset({
    "add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "floor_divide",
    "xlogy", "copysign", "__lshift__", "__rshift__",
})  # fmt: skip
"""The operations that make an operand without dimensions of a number that they are given."""
_CONTIGUOUS = frozenset({"aten::masked_fill.Scalar", "aten::masked_fill.Tensor", "aten::pow.Scalar"})
"""The operations whose results are contiguous, though they go element by element."""
_UNTOLD = frozenset({aten.hardswish.default})
"""Operations element by element that PyTorch does not name so."""


class EagerStrides(FakeTensorMode):
    """A mode of fake tensors whose results have eager's strides."""

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        """What an operation gives, as a fake."""
        made = super().dispatch(func, types, args, kwargs or {})
        return _as_in_eager(self, func, args, kwargs or {}, made)


@contextlib.contextmanager
def eager_strides() -> Iterator[None]:
    """Has every mode of fake tensors of this thread be such a mode meanwhile, for torch.export makes its own.

    For one thread at a time.
    """
    own, here = FakeTensorMode.dispatch, threading.get_ident()

    def dispatch(
        self: FakeTensorMode,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        made = own(self, func, types, args, kwargs or {})
        return _as_in_eager(self, func, args, kwargs or {}, made) if threading.get_ident() == here else made

    FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]
    try:
        yield
    finally:
        FakeTensorMode.dispatch = own  # type: ignore[method-assign]


def _as_in_eager(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> Any:
    """A result of an operation, with eager's strides."""
    if not isinstance(made, FakeTensor) or not any(type(size) is int and size == 1 for size in made.shape):
        return made  # asking a symbol whether it is 1 would decide that it is not
    if made.layout is not torch.strided:
        return made
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    laid = [_layout(one) for one in (made, *operands)]
    if not operands or None in laid:
        return made
    wanted = _strides(func, kwargs, cast("list[Layout]", laid[1:]), cast("Layout", laid[0])[0])
    if wanted is None or wanted == cast("Layout", laid[0])[1]:
        return made
    if func not in _VIEWS and any(made.untyped_storage()._cdata == one.untyped_storage()._cdata for one in operands):
        return made  # an operand itself
    if not all(type(one) is int for one in (*made.shape, *made.stride())):
        wanted = _in_symbols(wanted, made, operands[0])
    with mode:
        if func in _VIEWS:
            return made.as_strided(made.shape, wanted, made.storage_offset())
        # a model that is traced may be told another device than the fake's own
        return torch.empty_strided(made.shape, wanted, dtype=made.dtype, device=made.fake_device)


def _strides(func: Any, kwargs: Mapping[str, Any], operands: Sequence[Layout], shape: Sizes) -> tuple[int, ...] | None:
    """The strides of eager's result, of operands of such layouts; None where no rule here says it."""
    sizes, stride = operands[0]
    if func in _VIEWS:
        return strides_of_view(sizes, stride, shape) if all(sizes) else None
    name = func._schema.name.rpartition("::")[2]
    if name in _LIKE:
        is_kept = kwargs.get("memory_format") in (None, torch.preserve_format)
        return tuple(stride) if is_kept and is_dense(sizes, stride) else None
    if func.name() in _CONTIGUOUS:
        return _dense(shape, range(len(shape)))
    if (func not in _UNTOLD and torch.Tag.pointwise not in func.tags) or func._schema.is_mutable or "out" in kwargs:
        return None
    with_number = len(operands) == 1 and name in _OF_NUMBERS
    return strides_of_elementwise([*operands, *([((), ())] if with_number else ())], shape)


def _layout(tensor: Tensor) -> Layout | None:
    """The sizes and strides, of symbols those in the example, whose use decides nothing; None where one has none."""
    found = [(one if type(one) is int else _example(one)) for one in (*tensor.shape, *tensor.stride())]
    return None if None in found else (tuple(found[: tensor.dim()]), tuple(found[tensor.dim() :]))  # type: ignore[arg-type]


def _example(symbol: Any) -> int | None:
    return int(symbol.node.hint) if symbol.node.has_hint() else None


def _in_symbols(wanted: Sizes, made: Tensor, operand: Tensor) -> tuple[Any, ...]:
    """These strides of the example in symbols, where sizes are 1; elsewhere, and where none is of that number, as made.

    So the memory of a value is the same whatever the symbols are.
    """
    steps = [one for tensor in (made, operand) for one in tensor.stride()]
    steps += [size * one for tensor in (made, operand) for size, one in zip(tensor.shape, tensor.stride(), strict=True)]
    known = {one if type(one) is int else _example(one): one for one in steps}
    return tuple(
        known.get(step, one) if type(size) is int and size == 1 else one
        for step, size, one in zip(wanted, made.shape, made.stride(), strict=True)
    )


def strides_of_view(shape: Sizes, stride: Sizes, wanted: Sizes) -> tuple[int, ...] | None:
    """The strides of a view of another shape, as ATen's ``computeStride`` gives them; None where none is possible.

    >>> strides_of_view((1, 16, 1024), (16384, 1, 16), (1, 16, 32, 32))
    (16, 1, 512, 16)
    """
    found: list[int] = []
    left = list(wanted)
    step, size = (stride[-1] if stride else 1), 1
    for axis in reversed(range(len(shape))):
        size *= shape[axis]
        if axis and (shape[axis - 1] == 1 or stride[axis - 1] == size * step):
            continue
        taken = 1
        while left and (taken < size or left[-1] == 1):
            found.append(taken * step)
            taken *= left.pop()
        if taken != size:
            return None
        step, size = stride[axis - 1], 1
    return None if left else tuple(reversed(found))


def strides_of_elementwise(operands: Sequence[tuple[Sizes, Sizes]], shape: Sizes) -> tuple[int, ...]:
    """The strides of what is computed element by element, as ATen's ``TensorIterator`` gives them.

    ``operands`` are their shapes and strides. Operands of one shape and layout give a result of that layout, in which a
    size of 1 has the stride that the layout says; otherwise the axes are sorted by the operands' strides.

    >>> strides_of_elementwise([((1, 16, 32, 32), (16, 1, 512, 16)), ((), ())], (1, 16, 32, 32))
    (16, 1, 512, 16)
    """
    if all(tuple(sizes) == tuple(shape) for sizes, _ in operands):
        if all(_is_of(sizes, stride, range(len(shape))) for sizes, stride in operands):
            return _dense(shape, range(len(shape)))
        if len(shape) == 4 and all(_is_of(sizes, stride, _LAST) for sizes, stride in operands):
            return _dense(shape, _LAST)
        first = tuple(operands[0][1])
        if all(is_dense(sizes, stride) and tuple(stride) == first for sizes, stride in operands):
            return first
    return _dense(shape, _sorted(operands, shape))


_LAST = (0, 2, 3, 1)
"""The axes of pictures with their channels last, outermost first."""


def _dense(shape: Sizes, order: Sequence[int]) -> tuple[int, ...]:
    """The strides of memory without gaps, with the axes in an order, outermost first."""
    return cast("tuple[int, ...]", dense_in_order(shape, order))


def _is_of(shape: Sizes, stride: Sizes, order: Sequence[int]) -> bool:
    """Whether that is the layout of a tensor, wherever its sizes are more than 1."""
    known = _dense(shape, order)
    return all(size == 1 or one == other for size, one, other in zip(shape, stride, known, strict=True))


def _sorted(operands: Sequence[tuple[Sizes, Sizes]], shape: Sizes) -> list[int]:
    """The axes, outermost first, sorted as ``TensorIterator`` does it: by insertion, for some compare as neither."""
    spread = [_spread(sizes, stride, shape) for sizes, stride in operands]
    order = list(reversed(range(len(shape))))
    for first in range(1, len(order)):
        moved = first
        for at in reversed(range(first)):
            compared = _compare(order[at], order[moved], spread, shape)
            if compared < 0:
                break
            if compared > 0:
                order[at], order[moved], moved = order[moved], order[at], at
    return order[::-1]


def _compare(one: int, other: int, strides: Sequence[Sizes], shape: Sizes) -> int:
    """Whether an axis belongs outside (1) or inside (-1) of another, or neither: no operand tells them apart."""
    for stride in strides:
        if not stride[one] or not stride[other]:
            continue
        if stride[one] != stride[other]:
            return 1 if stride[one] > stride[other] else -1
        if shape[one] > shape[other]:
            return 1
    return 0


def _spread(sizes: Sizes, stride: Sizes, shape: Sizes) -> list[int]:
    """The strides of an operand along the axes of the result; 0 where it is repeated."""
    lead = len(shape) - len(sizes)
    own = [0 if size == 1 and shape[lead + at] != 1 else stride[at] for at, size in enumerate(sizes)]
    return [0] * lead + own

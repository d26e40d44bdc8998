"""Which strides decide the strides of what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import Node

from ..devices.device import Device
from .program import Program
from .split import type_on
from .value import TensorType, flat


def is_plain(shape: Sequence[int], stride: Sequence[int | str]) -> bool:
    """Whether a tensor is laid out row by row, dimensions of size 1 included; not where strides are expressions."""
    if len(stride) != len(shape):
        return False
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if step != expected:
            return False
        expected *= max(size, 1)
    return True


def decides(first: tuple[Sequence[int], Sequence[int]], others: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Whether an elementwise result must be laid out as its first operand is, whose shape it has.

    Each operand is a shape and strides; numbers and tensors without dimensions are left out of the others. Strides
    decide the order of dimensions as far as they differ; but a dimension of size 1 may have the stride of the one
    before it, and then the other operands decide.
    """
    shape, _ = first
    if not is_plain(*first):
        return False
    return 1 not in shape[1:] or all(tuple(one[0]) == tuple(shape) and is_plain(*one) for one in others)


def is_settled(program: Program, node: Node, device: Device) -> bool:
    """Whether strides settle that an elementwise node's result is laid out as its first operand on a device.

    They are those of the trace, of the part that the device has.
    """
    operand = node.args[0]
    assert isinstance(operand, Node)
    (first,) = flat(type_on(operand, device))
    given = (one for one in (*node.args[1:], *node.kwargs.values()) if isinstance(one, Node))
    others = [tensor for one in given for tensor in flat(type_on(one, device)) if tensor.shape]
    return decides(_layout(first, program.symbols), [_layout(tensor, program.symbols) for tensor in others])


def _layout(tensor: TensorType, symbols: Mapping[str, int]) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.sizes, tensor.steps(symbols)

"""What one operation costs: arithmetic by PyTorch's own formulas, and the bytes that it reads and writes.

Views cost nothing. An operation without a formula is as long as its memory traffic. What is read twice by stride 0 is
counted once, and of what is looked up by an index as much as comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from ...compiler.devices.speeds import Speed
from ...compiler.ir.aliasing import base_of, computes
from ...compiler.ir.ops import LINEAR
from ...compiler.ir.program import tensors_of
from ...compiler.ir.value import TensorType

_ATEN, _OURS = torch.ops.aten, torch.ops.dovetail
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Floating-point operations, bytes read and written, and the dtype in which it computes.

    ``whole`` are those of the bytes read that each device reads that computes some columns of the result.
    ``attention`` and ``convolution`` say that it is one, of which devices reach another part of their figures than of a
    product.
    """

    flops: float = 0.0
    read: int = 0
    written: int = 0
    dtype: str = "float32"
    whole: int = 0
    attention: bool = False
    convolution: bool = False

    def seconds(self, speed: Speed) -> float:
        """The time on a device; nothing for what neither computes nor touches memory."""
        nbytes = self.read + self.written
        if not self.flops and not nbytes:
            return 0.0
        return speed.seconds(self.flops, nbytes, self.dtype, self.attention, self.convolution)

    def part(self, share: float) -> OpCost:
        """What a device does of it that makes a share of the columns: all of the input, a share of the rest."""
        read = self.whole + int((self.read - self.whole) * share)
        return replace(self, flops=self.flops * share, written=int(self.written * share), read=read)


FREE = OpCost()


def cost_of(node: Node) -> OpCost:
    """The cost of a node; nothing for placeholders, views, and numbers."""
    if node.op != "call_function" or not tensors_of(node) or (base_of(node) and not computes(node.target)):
        return FREE
    results = tensors_of(node)
    operands = [tensor for one in node.all_input_nodes for tensor in tensors_of(one)]
    written = sum(map(_nbytes, results))
    read = written if node.target in _LOOKUPS else sum(map(_nbytes, operands))
    whole = _nbytes(operands[0]) if node.target in LINEAR else 0
    kinds = node.target in _ATTENTIONS, node.target in _CONVOLUTIONS
    return OpCost(_flops(node), read, written, _dtype(results, operands), whole, *kinds)


def _nbytes(tensor: TensorType) -> int:
    """The bytes of the elements, without those that a stride of 0 repeats; of all where strides are not known."""
    if len(tensor.stride) != len(tensor.sizes):
        return tensor.nbytes
    sizes = (size for size, step in zip(tensor.sizes, tensor.stride, strict=True) if step != 0)
    return math.prod(sizes) * tensor.dtype.itemsize


def _dtype(results: Sequence[TensorType], operands: Sequence[TensorType]) -> str:
    floats = (one.dtype for one in (*results, *operands) if one.dtype.is_floating_point)
    return str(next(floats, torch.float32)).removeprefix("torch.")


def _flops(node: Node) -> float:
    formula = _FORMULAS.get(node.target)
    if formula is None:
        return 0.0
    shapes = [_shape(one) for one in node.args]
    try:
        return float(formula(shapes, tensors_of(node)[0].sizes))
    except (TypeError, ValueError, IndexError, AssertionError):  # operands of a plan that fit no such operation
        return 0.0


def _shape(argument: Any) -> Any:
    """The sizes of a tensor among the arguments, or the argument."""
    if isinstance(argument, Node) and tensors_of(argument):
        return tuple(tensors_of(argument)[0].sizes)
    return argument


def _registered(packet: Any) -> Callable[[Sequence[Any], Shape], float]:
    """A formula of PyTorch's for an operation that has one."""
    return lambda shapes, out: flop_registry[packet](*shapes, out_val=out)


def _linear(shapes: Sequence[Any], out: Shape) -> float:
    x = shapes[0]
    return float(flop_registry[_ATEN.mm]((math.prod(x[:-1]), x[-1]), (x[-1], out[-1])))


def _matmul(shapes: Sequence[Any], out: Shape) -> float:
    return 2.0 * math.prod(out) * int(shapes[0][-1])


def _convolution(shapes: Sequence[Any], out: Shape) -> float:
    return float(flop_registry[_ATEN.convolution](*shapes[:2], None, 1, 0, 1, False, out_val=out))


def _transposed(shapes: Sequence[Any], out: Shape) -> float:
    return float(flop_registry[_ATEN.convolution](*shapes[:2], None, 1, 0, 1, True, out_val=out))


def _attention(shapes: Sequence[Any], out: Shape) -> float:
    query, key = shapes[:2]
    return float(2.0 * math.prod(query[:-1]) * int(key[-2]) * (int(query[-1]) + out[-1]))


_FORMULAS: dict[Any, Callable[[Sequence[Any], Shape], float]] = {
    **{getattr(packet, name): _registered(packet)
       for packet in (_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.convolution)
       for name in packet.overloads() if name == "default"},
    _ATEN.linear.default: _linear,
    _OURS.quantized_linear.default: _linear,
    _ATEN.matmul.default: _matmul,
    _ATEN.scaled_dot_product_attention.default: _attention,
    **{getattr(_ATEN, f"conv{n}d").default: _convolution for n in (1, 2, 3)},
    **{getattr(_ATEN, f"conv{n}d").padding: _convolution for n in (1, 2, 3)},
    _ATEN.conv_transpose1d.default: _transposed,
    _ATEN.conv_transpose2d.input: _transposed,
    _ATEN.conv_transpose3d.input: _transposed,
}  # fmt: skip

_ATTENTIONS = frozenset({_ATEN.scaled_dot_product_attention.default})
_CONVOLUTIONS = frozenset(target for target, formula in _FORMULAS.items() if formula in (_convolution, _transposed))

_LOOKUPS = frozenset(
    {_ATEN.embedding.default, _OURS.quantized_embedding.default, _ATEN.index.Tensor, _ATEN.gather.default,
     _ATEN.index_select.default}
)  # fmt: skip

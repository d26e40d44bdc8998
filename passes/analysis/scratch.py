"""How many bytes an operation takes while it runs, besides its operands and its result."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from ...compiler.checkpoints import unpacking
from ...compiler.ir import ops as _ops  # noqa: F401  (registers the operations named below)
from ...compiler.ir.program import Program, tensors_of, weight_name
from ...compiler.spec.devices import Device

_PACKED = torch.ops.dovetail
_UNPACKING = frozenset(
    {_PACKED.quantized_linear.default, _PACKED.quantized_embedding.default, _PACKED.dequantize.default}
)


def scratch_bytes(program: Program, node: Node, device: Device) -> int:
    """The least bytes that an operation takes on a device beside operands and result; 0 where it takes none.

    An operation on a packed weight unpacks some of it at a time, and more where there is room.
    """
    return _unpacked(program, node, device) if node.target in _UNPACKING else 0


def _unpacked(program: Program, node: Node, device: Device) -> int:
    weight = next((w for read in node.all_input_nodes if weight_name(read) and (w := program.weight(read)).quant), None)
    if weight is None:
        return 0
    columns, sizes = weight.shape[-1], unpacking.sizes_on(device.is_host, room=0)
    itemsize = tensors_of(node)[0].dtype.itemsize
    return unpacking.scratch_bytes(weight.quant, math.prod(weight.shape[:-1]), columns, itemsize, sizes)

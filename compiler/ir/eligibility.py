"""Says which weights a row split slices: those that are large matrices of a block and nothing but multiplied by."""

from __future__ import annotations

from torch.fx import Node

from ...compiler.ir.ops import LINEAR
from ...compiler.ir.program import Program, value_of, weight_name
from ...compiler.ir.value import TensorType
from ...compiler.ir.weight import Weight

LEAST = 256
"""A side shorter than this is not worth a message to another device."""


def marked_weights(program: Program) -> dict[Node, Weight]:
    """The weights whose rows are sliced: contiguous, two-dimensional, no side short, in a block, only multiplied by."""
    inside = {name for block in program.blocks for name in block.weights}
    found = ((node, program.weight(node)) for node in program.weight_nodes())
    return {
        node: weight for node, weight in found if weight.name in inside and _is_large_matrix(node, weight)
        and all(is_multiplied(user, node) for user in node.users)
    }  # fmt: skip


def _is_large_matrix(node: Node, weight: Weight) -> bool:
    value = value_of(node)
    if weight.kind == "adapter" or len(weight.shape) != 2 or not isinstance(value, TensorType):
        return False
    return min(weight.shape) >= LEAST and value.stride == (value.shape[1], 1)


def is_multiplied(user: Node, weight: Node) -> bool:
    """Whether a node multiplies a value by a weight's rows; its bias, if it has one, must be a weight too."""
    if user.target not in LINEAR or user.all_input_nodes.count(weight) != 1 or user.args[1] is not weight:
        return False
    bias, given = bias_of(user), user.args[0]
    return (
        isinstance(given, Node)
        and not weight_name(given)
        and bias is not weight
        and (bias is None or bool(weight_name(bias)))
    )


def bias_of(node: Node) -> Node | None:
    """The bias of a linear operation."""
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    return bias if isinstance(bias, Node) else None

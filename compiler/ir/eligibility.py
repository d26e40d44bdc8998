"""Says which weights a row split slices, and of each other weight why it does not.

A weight is eligible if it is a contiguous matrix in a block, with no side below ``LEAST``, and nothing reads it but
matmuls. This follows from the program and is stored nowhere: texts and drawings print it, and nothing else is asked.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from torch.fx import Node

from .ops import LINEAR
from .program import Program, value_of, weight_name
from .value import TensorType
from .weight import Weight

LEAST = 256
"""A side shorter than this is not worth a message to another device."""
BIAS = "bias of a sliced matrix"


def marked_weights(program: Program) -> dict[Node, Weight]:
    """The weights whose rows are sliced: contiguous, two-dimensional, no side short, in a block, only multiplied by."""
    return {node: program.weight(node) for node, reason in reasons_against(program).items() if not reason}


def marks_by_name(program: Program) -> dict[str, str]:
    """For each weight by its name why a row split does not slice it; empty text for those that are eligible."""
    return {node.meta["weight"]: reason for node, reason in reasons_against(program).items()}


def reasons_against(program: Program) -> dict[Node, str]:
    """Why a row split does not slice each weight, in the order of the graph; empty text for those that are eligible.

    What stands before a colon is the same for all weights of a kind: ``a side below 256: 64``.
    """
    inside = {name for block in program.blocks for name in block.weights}
    found = {node: _reason(program.weight(node), node, inside) for node in program.weight_nodes()}
    return {node: BIAS if reason and _is_sliced_along(node, found) else reason for node, reason in found.items()}


def _reason(weight: Weight, node: Node, inside: Container[str]) -> str:
    """The first thing that keeps a weight from being sliced; empty text where nothing does."""
    value = value_of(node)
    if weight.kind == "adapter" or not isinstance(value, TensorType):
        return "of an adapter"
    if len(weight.shape) != 2:
        return f"{len(weight.shape)}-D"
    if min(weight.shape) < LEAST:
        return f"a side below {LEAST}: {min(weight.shape)}"
    if weight.name not in inside:
        return "in no block"
    if value.stride != (value.shape[1], 1):
        return "not contiguous"
    others = [user for user in node.users if not is_multiplied(user, node)]
    return f"read otherwise: by %{min(others).name}" if others else ""  # the first in graph order


def _is_sliced_along(node: Node, reasons: Mapping[Node, str]) -> bool:
    """Whether a weight is nothing but the bias of eligible matrices."""
    matrices = [user.args[1:2] if user.target in LINEAR and bias_of(user) is node else () for user in node.users]
    return bool(matrices) and all(one and isinstance(one[0], Node) and reasons.get(one[0]) == "" for one in matrices)


def is_multiplied(user: Node, weight: Node) -> bool:
    """Whether a node multiplies a value by a weight's rows; its bias, if it has one, must be a weight too."""
    if user.target not in LINEAR or user.all_input_nodes.count(weight) != 1 or user.args[1:2] != (weight,):
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

"""Which weights an operation reads, through views, casts and transposes of them."""

from __future__ import annotations

from torch.fx import Node

from ...compiler.ir.aliasing import computes
from ...compiler.ir.program import MOVING, tensors_of


def consumed_weights(node: Node, roots: dict[Node, tuple[str, ...]]) -> tuple[str, ...]:
    """The weights that a node reads, by name, each once, in argument order, through views, casts and transposes."""
    return tuple(dict.fromkeys(weight for operand in node.all_input_nodes for weight in roots[operand]))


def weights_through(node: Node, roots: dict[Node, tuple[str, ...]]) -> tuple[str, ...]:
    """The weights that reading a node amounts to reading: those behind what it views, casts, transposes or brings."""
    if node.target in MOVING:
        return roots[node.all_input_nodes[0]]
    viewed = node.args[0] if node.args else None
    if not isinstance(viewed, Node) or computes(node.target) or not tensors_of(node):
        return ()
    return roots[viewed]

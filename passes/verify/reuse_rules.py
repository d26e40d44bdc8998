"""The rule of memory that is used again: nobody needs any more what an operation is computed over."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, overwrites, possible_memory
from ...compiler.ir.program import placement_of, state_of
from ...compiler.ir.state import PARTIAL
from .snapshot import Snapshot, Violation


def reuse(snapshot: Snapshot) -> Iterator[Violation]:
    """What is computed over its operand reads that memory last; its own segment makes it and never sends it."""
    suspects = (node for node in snapshot.bases if snapshot.kinds[node] is Alias.COMPUTE)
    found = [node for node in suspects if overwrites(node)]
    if not found:
        return
    piece = possible_memory(snapshot.nodes)
    last = {piece[one]: node for node in snapshot.nodes for one in (node, *snapshot.operands[node])}
    fixed = {piece[node]: "given" for node in snapshot.nodes if node.op == "placeholder"}
    fixed |= {piece[one]: "sent" for node in snapshot.moving for one in (node, *snapshot.operands[node])}
    for node in found:
        operand: Node = node.args[0]  # type: ignore[assignment]
        over = f"%{node.name} is computed over %{operand.name}"
        if piece[operand] in fixed:
            yield Violation("reuse", f"{over}, whose memory is {fixed[piece[operand]]}", node)
        elif last[piece[operand]] is not node:
            yield Violation("reuse", f"{over}, whose memory %{last[piece[operand]].name} still reads", node)
        elif sum(piece[one] is piece[operand] for one in _given(node)) > 1:
            yield Violation("reuse", f"{over}, which it reads twice", node)
        elif placement_of(piece[operand]).segment != placement_of(node).segment:
            yield Violation("reuse", f"{over}, which another segment makes", node)
        elif state_of(operand) != state_of(node) or state_of(node) == PARTIAL:
            yield Violation("reuse", f"{over}, of which devices have other parts", node)


def _given(node: Node) -> list[Node]:
    """The operands of a node, each as often as it is given."""
    given = [*node.args, *node.kwargs.values()]
    flat = [item for one in given for item in (one if isinstance(one, (list, tuple)) else (one,))]
    return [one for one in flat if isinstance(one, Node)]

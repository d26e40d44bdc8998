"""Has views of a whole be views of parts where parts are all that is read of it: the whole is cut once for all.

Blocks that read one table of rotations each view it for themselves, and read their rows of it. Solved for, each view
is as good whole as split, for neither sends anything; but the whole ones are cut by each reader anew, in memory of its
own, while the whole is kept for the next. Cut before its views, the table is cut once, and the whole of it is let go.
The elements of a part that readers have are the same, and so is what devices send one another.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class, base_of
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import WHOLE, Split, State
from ...compiler.ir.value import TensorType
from ...compiler.states.strategy import Strategy
from ...compiler.states.table import strategies
from .solution import Decision

Ways = Mapping[Node, Strategy]


def split_before_views(program: Program, decision: Decision) -> Ways:
    """The strategies of a decision, in which views of what is read in one split state alone are views of such parts.

    All readers must want that state, through views or not: else the whole stays, and parts would be kept beside it for
    long. So it is of an input, which is the caller's. Takes time linear in the readings.
    """
    found = dict(decision.strategies)
    cut: dict[Node, tuple[Split, Ways]] = {}
    for node in reversed(list(program.ops())):
        as_parts = _as_parts(node, decision, cut)
        if as_parts is not None:
            cut[node] = as_parts
            if base_of(node) is None:
                found |= as_parts[1]
    return found


def _as_parts(node: Node, decision: Decision, cut: Mapping[Node, tuple[Split, Ways]]) -> tuple[Split, Ways] | None:
    """The one split state in which all that read a whole take it, and how its views are computed then; None without."""
    if not _is_whole(node, decision) or len({decision.groups.get(one) for one in (node, *node.users)}) != 1:
        return None
    states: set[State] = set()
    ways: dict[Node, Strategy] = {}
    for user in node.users:
        way = decision.strategies.get(user)
        if (way is None or way.takes(node) == WHOLE) and user in cut:
            way = _of_parts(user, node, cut[user][0])
            ways |= {**cut[user][1], user: way} if way is not None else {}
        states.add(way.takes(node) if way is not None else WHOLE)
    (state,) = states if len(states) == 1 else (WHOLE,)
    return (state, ways) if isinstance(state, Split) else None


def _of_parts(view: Node, operand: Node, state: Split) -> Strategy | None:
    """How a view is computed in a split state from such a part of its operand; None where it is none of all elements.

    Of one that leaves out elements more would be cut than is read.
    """
    is_of_one = [one for one in view.all_input_nodes if tensors_of(one)] == [operand]
    if alias_class(view.target) is not Alias.VIEW or not is_of_one or _elements(view) < _elements(operand):
        return None
    ways = strategies(view, lambda one: [state] if one is view else [])
    return next((way for way in ways if way.results == (state,) and isinstance(way.takes(operand), Split)), None)


def _is_whole(node: Node, decision: Decision) -> bool:
    """Whether a node yields one tensor, all of it on each device."""
    way = decision.strategies.get(node)
    return isinstance(node.meta.get("value"), TensorType) and (way is None or way.results == (WHOLE,))


def _elements(node: Node) -> int:
    return sum(tensor.nbytes // tensor.dtype.itemsize for tensor in tensors_of(node))

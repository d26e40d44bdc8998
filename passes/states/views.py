"""Has views of a whole be views of parts where parts are all that is read of them: the whole is changed once for all.

Blocks that read one table of rotations each view it for themselves, and read their rows of it. Solved for, each view
is as good whole as split, for neither sends anything; but the whole ones are cut by each reader anew, in memory of its
own. Split before its views, the table is cut once, and the whole of it is needed no longer. The elements of a part
that readers have are the same, and so is what devices send one another.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class
from ...compiler.ir.program import Program, tensors_of, weight_name
from ...compiler.ir.state import WHOLE, Split
from ...compiler.ir.value import TensorType
from ...compiler.states.strategy import Strategy
from ...compiler.states.table import strategies
from .solution import Decision


def split_before_views(program: Program, decision: Decision) -> Mapping[Node, Strategy]:
    """The strategies of a decision, in which a view that is read in one split state alone is one of such parts.

    One that leaves out elements stays as it is: more of what it is a view of would be cut than is read.
    """
    found = dict(decision.strategies)
    for node in reversed(list(program.ops())):
        way = _of_parts(node, found, decision)
        if way is not None:
            found[node] = way
    return found


def _of_parts(node: Node, found: Mapping[Node, Strategy], decision: Decision) -> Strategy | None:
    """How a view of a whole is computed as a view of the parts that are read of it; None where it is to stay whole."""
    if alias_class(node.target) is not Alias.VIEW or not _is_whole(node, found):
        return None
    operands = [one for one in node.all_input_nodes if tensors_of(one)]
    if len(operands) != 1 or weight_name(operands[0]) or not _is_whole(operands[0], found):
        return None
    wanted = {found[user].takes(node) if user in found else WHOLE for user in node.users}
    groups = {decision.groups.get(one) for one in (node, *node.users)}
    if len(wanted) != 1 or len(groups) != 1 or _elements(node) < _elements(operands[0]):
        return None
    (state,) = wanted
    if not isinstance(state, Split):
        return None
    ways = strategies(node, lambda one: [state] if one is node else [])
    return next((way for way in ways if way.results == (state,) and isinstance(way.takes(operands[0]), Split)), None)


def _is_whole(node: Node, found: Mapping[Node, Strategy]) -> bool:
    """Whether a node yields one tensor, all of it on each device."""
    is_one = isinstance(node.meta.get("value"), TensorType)
    return is_one and (node not in found or found[node].results == (WHOLE,))


def _elements(node: Node) -> int:
    return sum(tensor.nbytes // tensor.dtype.itemsize for tensor in tensors_of(node))

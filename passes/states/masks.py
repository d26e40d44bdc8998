"""Has devices compute but the part of a value that they read, where states are solved forward from inputs alone.

Masks are made of no input: nothing offers them in parts, and each device would have the whole of one, queries by keys,
to read the rows of its own queries. Going backward, what all readers read in one state is computed in that state.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from ...compiler.ir.aliasing import writers_of
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import WHOLE, Split, State
from ...compiler.states.strategy import Strategy
from ...compiler.states.table import strategies


def as_read(program: Program, chosen: Mapping[Node, Strategy]) -> dict[Node, Strategy]:
    """How each operation is computed, but that what is whole and read in parts is computed in these."""
    found, written = dict(chosen), writers_of(program).keys()
    for node in reversed(list(program.ops())):
        state = _read_as(node, found)
        if state is None or any(one.storage in written for one in tensors_of(node)):
            continue
        for way in strategies(node, lambda one, at=node, state=state: [state] if one is at else []):  # type: ignore[misc]
            if way.results == (state,) and all(_is_whole(one, found) for one in way.operands):
                found[node] = way
                break
    return found


def _read_as(node: Node, found: Mapping[Node, Strategy]) -> Split | None:
    """The one state in which all readers read a whole, if it is a part."""
    if node not in found or found[node].results != (WHOLE,) or not node.users:
        return None
    states: set[State] = {found[user].takes(node) if user in found else WHOLE for user in node.users}
    (state, *others) = states
    return state if isinstance(state, Split) and not others else None


def _is_whole(operand: Node, found: Mapping[Node, Strategy]) -> bool:
    """Whether an operand is a whole that devices compute, of which they have every part."""
    return operand in found and found[operand].results == (WHOLE,)

"""The rules of what groups of devices compute: the slices of weights, states, and the memory of values in them."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ...compiler.ir.ops import TERMS
from ...compiler.ir.program import placement_of, state_of, states_of, tensors_of
from ...compiler.ir.slices import cover
from ...compiler.ir.split import is_shared
from ...compiler.ir.state import Split
from ...compiler.states.parts import members, terms_meet
from ...compiler.states.table import is_drawn, strategy_of
from .snapshot import Snapshot, Violation


def slices(snapshot: Snapshot) -> Iterator[Violation]:
    """The rows of a weight that is split are in a range for each device, one after another, all of them."""
    program = snapshot.program
    nodes = {weight.name: node for node, weight in snapshot.weights.items()}
    for name, bounds in program.bounds.items():
        rows = program.weights[name].shape[0] if name in program.weights and program.weights[name].shape else 0
        if len(bounds) != len(program.devices) or not cover(bounds, rows):
            said = ", ".join(f"{start}:{stop}" for start, stop in bounds)
            yield Violation("slices", f"the rows of {name} are in the ranges {said} of {rows}", nodes.get(name))


def split(snapshot: Snapshot) -> Iterator[Violation]:
    """What each device of a group computes follows from the rules of states, and its parts are those of weights."""
    for node in snapshot.ops:
        if not is_shared(node) and not placement_of(node).states:
            continue
        why = _why_not(snapshot, node)
        if why:
            group = "+".join(map(str, placement_of(node).group))
            yield Violation("split", f"%{node.name} cannot be computed on {group} so: {why}", node)


def _why_not(snapshot: Snapshot, node: Node) -> str:
    """Why the group of a node cannot compute it as its states say, if it cannot."""
    group, states, program = placement_of(node).group, placement_of(node).states, snapshot.program
    if len(group) < 2 or len(set(group)) < len(group) or not set(group) <= set(program.devices):
        return "what has a state is computed by several devices of the program"
    if is_drawn(node):
        return "each device would draw numbers of its own"
    if any(len(one) != 1 for one in states) or (states and len(states) != len(tensors_of(node))):
        return "it has a state for each of its results"
    for state, tensor in zip(states_of(node), tensors_of(node), strict=True):
        if isinstance(state, Split) and not (
            state.axis < len(tensor.shape) and state.covers(len(group), tensor.shape[state.axis])
        ):
            return f"{state} does not cover {list(tensor.shape)}"
    chosen = strategy_of(node)
    if chosen is None:
        given = ", ".join(
            f"%{one.name} {state_of(one)}" for one in snapshot.operands[node] if one not in snapshot.weights
        )
        return f"no rule has {', '.join(map(str, states_of(node)))} come of {given}"
    if not terms_meet(program, chosen):
        return "the terms that it takes are not of the same devices"
    if node.target is TERMS and not _has_each_term_once(snapshot, node):
        return "it has not one term of each device that has one, in their order"
    for one, state in chosen.operands.items():
        known = program.bounds.get(snapshot.weights[one].name) if one in snapshot.weights else None
        if known is not None and isinstance(state, Split) and (known,) != state.segments:
            return f"the weight %{one.name} is split otherwise"
    return ""


def _has_each_term_once(snapshot: Snapshot, node: Node) -> bool:
    """Whether each device that has a term of a sum is said to have one, and no other device, as many as are counted."""
    (x, count), state, group = node.args, state_of(node), placement_of(node).group
    (tensor,), having = tensors_of(node), members(snapshot.program, x)  # type: ignore[arg-type]
    if not isinstance(state, Split) or not count == tensor.shape[0] == len(having):
        return False
    return [state.length(at) for at in range(len(group))] == [int(device in having) for device in group]


def states(snapshot: Snapshot) -> Iterator[Violation]:
    """A value that lies in memory of another one is a view of it on each of its devices, or is written by all."""
    first: dict[int, Node] = {}
    for node in snapshot.nodes if any(map(is_shared, snapshot.ops)) else ():
        for storage in snapshot.storages.get(node, ()):
            other = first.setdefault(storage, node)
            is_alike = placement_of(other).group == placement_of(node).group or other.op == "placeholder"
            if not is_alike or (other is not node and storage not in _given(snapshot, node)):
                both = f"%{node.name} is {state_of(node)}, %{other.name} {state_of(other)}"
                yield Violation("states", f"{both}, and both lie in the memory ~{storage}", node)


def _given(snapshot: Snapshot, node: Node) -> set[int]:
    """The memory of what an operation is given."""
    return {storage for one in snapshot.operands.get(node, ()) for storage in snapshot.storages.get(one, ())}

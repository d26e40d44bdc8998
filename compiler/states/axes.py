"""Views that permute, drop and add axes: a split axis stays split wherever it goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch.fx import Node

from ..ir.program import tensors_of
from ..ir.state import PARTIAL, Split
from .strategy import (
    Local,
    Offers,
    Rule,
    Strategy,
    argument,
    local_sizes,
    name_of,
    own_call,
    shape_of,
    splits,
    strategy,
    with_argument,
)

EXPANDING = frozenset({"expand", "expand_as", "broadcast_to"})
NAMES = EXPANDING | {
    "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "unbind", "movedim", "view_as_complex",
    "view_as_real", "swapaxes",
}  # fmt: skip


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The operand is split on any axis that is there in the result, or is terms of a sum."""
    operand, count = node.args[0], len(tensors_of(node))
    assert isinstance(operand, Node)
    goes = {old: new for old, new in _axes(node).items() if _has_size(node, operand, old, new)}
    back = {new: old for old, new in goes.items()}
    offered = [state for state in splits(offers, operand) if state.axis in goes]
    offered += [Split(back[state.axis], state.segments) for state in splits(offers, node) if state.axis in back]
    for state in dict.fromkeys(offered):
        if not _drops(node, state):
            result = Split(goes[state.axis], state.segments)
            like = {node.args[1]: result} if name_of(node) == "expand_as" else {}
            yield strategy([result] * count, {**like, operand: state})
    if PARTIAL in offers(operand):
        yield strategy([PARTIAL] * count, {operand: PARTIAL})


def _has_size(node: Node, operand: Node, old: int, new: int) -> bool:
    return shape_of(operand)[old] == shape_of(node)[new]


def _drops(node: Node, state: Split) -> bool:
    """Whether an axis is left out where it has one element, which it may have on a device and not as a whole."""
    if name_of(node) != "squeeze":
        return False
    return state.axis in _asked(node, len(shape_of(node.args[0])))  # type: ignore[arg-type]


def _asked(node: Node, rank: int) -> set[int]:
    """The axes that a node is to leave out where they have one element."""
    given = argument(node, 1, "dim")
    axes = range(rank) if given is None else [given] if isinstance(given, int) else given
    return {axis % rank for axis in axes}


def _axes(node: Node) -> Mapping[int, int]:
    """Where each axis of the operand is in the result, if it is there."""
    name, operand = name_of(node), node.args[0]
    assert isinstance(operand, Node)
    rank, new_rank = len(shape_of(operand)), len(shape_of(node))
    if name in EXPANDING:
        return {axis: axis + new_rank - rank for axis in range(rank)}
    if name == "permute":
        order = [axis % rank for axis in argument(node, 1, "dims")]
        return {old: new for new, old in enumerate(order)}
    if name in ("transpose", "t", "swapaxes"):
        asked = (0, -1) if name == "t" else (argument(node, 1, "dim0"), argument(node, 2, "dim1"))
        first, second = (int(axis) % rank for axis in asked)
        return {axis: {first: second, second: first}.get(axis, axis) for axis in range(rank)}
    if name == "movedim":
        return _moved(rank, node.args[1], node.args[2])  # type: ignore[arg-type]
    if name == "unsqueeze":
        at = argument(node, 1, "dim") % new_rank
        return {axis: axis + (axis >= at) for axis in range(rank)}
    if name in ("select", "unbind"):
        at = argument(node, 1, "dim", 0) % rank
        return {axis: axis - (axis > at) for axis in range(rank) if axis != at}
    if name == "squeeze":
        return _squeezed(node, rank)
    return {axis: axis for axis in range(min(rank, new_rank))}  # the last one of a complex view is new, or gone


def _squeezed(node: Node, rank: int) -> Mapping[int, int]:
    sizes = shape_of(node.args[0])  # type: ignore[arg-type]
    gone = {axis for axis in _asked(node, rank) if sizes[axis] == 1}
    return {axis: axis - sum(one < axis for one in gone) for axis in range(rank) if axis not in gone}


def _moved(rank: int, source: int | list[int], target: int | list[int]) -> Mapping[int, int]:
    sources = [axis % rank for axis in ([source] if isinstance(source, int) else source)]
    targets = [axis % rank for axis in ([target] if isinstance(target, int) else target)]
    left = iter(axis for axis in range(rank) if axis not in sources)
    order = [sources[targets.index(at)] if at in targets else next(left) for at in range(rank)]
    return {old: new for new, old in enumerate(order)}


def local(node: Node, chosen: Strategy, member: int) -> Local:
    """An expanded tensor has on a device the sizes of what that has."""
    call = own_call(node)
    if name_of(node) not in EXPANDING or name_of(node) == "expand_as":
        return call
    return with_argument(call, 1, "size", local_sizes(shape_of(node), chosen.results[0], member))


RULE = Rule(strategies, local)

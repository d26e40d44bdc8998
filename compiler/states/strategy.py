"""One way in which the devices of a group compute an operation together, and what each of them computes then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.fx import Node

from ..ir.program import tensors_of
from ..ir.slices import Bounds
from ..ir.state import WHOLE, Parted, Split, State

Segments: TypeAlias = tuple[Bounds, ...]

MOST_SEGMENTS = 8
"""An axis of more segments is not split: what devices exchange of it would fall into too many pieces."""


@dataclass(frozen=True)
class Strategy:
    """What an operation takes of its operands, and what it yields so, on each device of a group.

    Args:
        results: the state of each tensor that it yields.
        operands: those of the operands that are not whole.
    """

    results: tuple[State, ...]
    operands: Mapping[Node, State]

    def takes(self, operand: Node) -> State:
        """The state in which it takes an operand."""
        return self.operands.get(operand, WHOLE)

    def __str__(self) -> str:
        taken = ", ".join(f"%{node.name} {state}" for node, state in self.operands.items())
        return f"{'; '.join(map(str, self.results))} from {taken or 'wholes'}"


Offers: TypeAlias = Callable[[Node], Iterable[State]]
"""The states that a value may have, of an operand as of the result; whole is always among them and is not named."""

Local: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What one device computes: an operation, and its arguments, in which nodes stand for what it has of them."""


@dataclass(frozen=True)
class Rule:
    """The rule of a kind of operations.

    Args:
        strategies: the ways of a node but for that in which all is whole, given states that are offered.
        local: what a device of the group computes, by its number; without it, the node's own operation and arguments.
    """

    strategies: Callable[[Node, Offers], Iterator[Strategy]]
    local: Callable[[Node, Strategy, int], Local] | None = None


def name_of(node: Node) -> str:
    """The name of an operation, whatever its overload: ``transpose``."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def shape_of(node: Node) -> tuple[int, ...]:
    """The sizes of a tensor, or of the first of several."""
    return tensors_of(node)[0].sizes


def is_dynamic(node: Node, axis: int) -> bool:
    """Whether the size of an axis differs from call to call."""
    return not isinstance(tensors_of(node)[0].shape[axis], int)


def splits(offers: Offers, *values: Node) -> list[Split]:
    """The states that values may have in which an axis is split, each once."""
    return list(dict.fromkeys(state for one in values for state in offers(one) if isinstance(state, Split)))


def strategy(result: State | Sequence[State], operands: Mapping[Any, State | None]) -> Strategy:
    """A strategy for one result, or several; what is no node, or is whole, is left out of the operands."""
    results = tuple(result) if isinstance(result, Sequence) else (result,)
    taken = {node: state for node, state in operands.items() if isinstance(node, Node) and state not in (None, WHOLE)}
    return Strategy(results, taken)


def own_call(node: Node) -> Local:
    """The operation of a node with its own arguments."""
    assert callable(node.target)
    return node.target, node.args, dict(node.kwargs)


def argument(node: Node, at: int, name: str, default: Any = None) -> Any:
    """An argument of a node by its place, or by its name."""
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def with_argument(call: Local, at: int, name: str, value: Any) -> Local:
    """A call with another argument, at a place or by its name."""
    target, args, kwargs = call
    if len(args) > at:
        return target, (*args[:at], value, *args[at + 1 :]), kwargs
    return target, args, {**kwargs, name: value}


def local_sizes(sizes: Sequence[int], state: State, member: int) -> list[int]:
    """The sizes of what a device has of a tensor."""
    found = list(sizes)
    if isinstance(state, Split):
        found[state.axis] = state.length(member)
    return found


def scaled(segments: Segments, by: int) -> Segments:
    """Segments of an axis each of whose elements are so many of another."""
    return tuple(tuple((start * by, stop * by) for start, stop in segment) for segment in segments)


def divided(segments: Segments, by: int) -> Segments | None:
    """Segments of an axis of whose elements so many are one of another; None where some are torn."""
    if any(end % by for segment in segments for bounds in segment for end in bounds):
        return None
    return tuple(tuple((start // by, stop // by) for start, stop in segment) for segment in segments)


def shifted(segments: Segments, by: int) -> Segments:
    """Segments that lie so much farther on."""
    return tuple(tuple((start + by, stop + by) for start, stop in segment) for segment in segments)


def within(split: Split, start: int, stop: int) -> Split:
    """What devices have of a stretch of a split axis, counted from its beginning."""
    found = []
    for segment in split.segments:
        cut = tuple((min(max(a, start), stop) - start, min(max(b, start), stop) - start) for a, b in segment)
        found += [cut] if cut[0][0] < cut[-1][1] else []
    members = len(split.segments[0])
    return Split(split.axis, tuple(found) or (((0, 0),) * members,))


def takes_part(chosen: Strategy, member: int) -> bool:
    """Whether a device computes something: some of a result, or a term of a sum from what it has of its operands."""
    made = [state.length(member) for state in chosen.results if isinstance(state, Split)]
    return any(made) if made else all(_has_something(state, member) for state in chosen.operands.values())


def _has_something(state: State, member: int) -> bool:
    return not isinstance(state, Parted) or state.length(member) > 0


def once(split: Split) -> int:
    """The device that adds what is added once to a sum: the first that has something."""
    return next(member for member in range(len(split.segments[0])) if split.length(member))

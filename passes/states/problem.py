"""What is chosen from when states are solved: ways of each operation with their seconds, and what changes cost.

A choice is the number of a way for each operation. `Problem.account` says what it takes: it is the one measure of
recipes and of solutions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch.fx import Node

from ...compiler.ir.aliasing import writers_of
from ...compiler.ir.program import tensors_of, weight_name
from ...compiler.ir.state import WHOLE, Halo, Parted, Split, State
from ...compiler.ir.value import TensorType
from ...compiler.states import pointwise
from ...compiler.states.convolutions import NAMES as CONVOLUTIONS
from ...compiler.states.resampling import before_padding
from ...compiler.states.strategy import Strategy, name_of
from ...compiler.states.table import rule_of
from ..simulate.cost import FREE, OpCost, cost_of
from .exchanges import Flow, Group, can_change, exchanges_of, flow_of
from .folding import Folded, Reading, Tensor, made_by, operands_of

HEAVY = CONVOLUTIONS | {"linear", "quantized_linear", "matmul", "bmm", "scaled_dot_product_attention"}
"""Operations that take most of the time, and beside which most is in memory."""

Choice = Mapping[Node, int]
"""The number of the way that is chosen of each operation."""


@dataclass(frozen=True)
class Change:
    """A tensor that is brought into another state, for several equal blocks at once.

    ``sent`` are the bytes that each device sends for one of them; ``readers`` are the operations that read it so.
    """

    tensor: Tensor
    source: State
    target: State
    count: int
    sent: tuple[int, ...]
    seconds: float
    readers: tuple[Node, ...]


@dataclass(frozen=True)
class Account:
    """What a choice takes: seconds of a call, changes of state, and bytes of weights and of values of each device.

    ``alive`` are the bytes of values at the operation at which they are most, those that are brought for it included.
    """

    seconds: float
    changes: tuple[Change, ...]
    weights: tuple[int, ...]
    alive: tuple[int, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """The bytes that each device sends in a call."""
        return tuple(sum(one.count * one.sent[member] for one in self.changes) for member in range(len(self.weights)))


@dataclass(frozen=True)
class Problem:
    """Operations that stand for equal ones too, the ways of each, and the devices.

    Args:
        ways: the ways of each operation; the first is that of wholes.
    """

    folded: Folded
    group: Group
    ways: Mapping[Node, tuple[Strategy, ...]]
    _known: dict[object, tuple[Flow, float]] = field(default_factory=dict, hash=False, compare=False)

    def only(self, ways: Mapping[Node, tuple[Strategy, ...]]) -> Problem:
        """The same with fewer ways."""
        return replace(self, ways=ways)

    @cached_property
    def written(self) -> frozenset[int]:
        """The memory that some operation writes."""
        return frozenset(writers_of(self.folded.program))

    def is_bound(self, reading: Reading) -> bool:
        """Whether a value is read as it is, for the result lies in its memory, and somebody writes there."""
        node, operand = reading
        mine = {one.storage for one in tensors_of(node)} & self.written
        return any(one.storage in mine for one in tensors_of(operand))

    @cached_property
    def times(self) -> Mapping[Node, tuple[float, ...]]:
        """The seconds of each way of each operation, and of those it stands for, on the device that takes longest."""
        return {node: tuple(self._times(node, some)) for node, some in self.ways.items()}

    def _times(self, node: Node, ways: Iterable[Strategy]) -> Iterator[float]:
        count, speeds = self.folded.count(node), [self.group.speeds[one] for one in self.group.devices]
        for costs in self._costs(node, ways):
            yield count * max(cost.seconds(speed) for cost, speed in zip(costs, speeds, strict=True))

    def _costs(self, node: Node, ways: Iterable[Strategy]) -> Iterator[tuple[OpCost, ...]]:
        """What each device does in each way of an operation."""
        whole = cost_of(node)
        is_free = not (whole.flops or whole.read or whole.written)
        sizes = [(one, sum(tensor.nbytes for tensor in tensors_of(one))) for one in operands_of(node)]
        for way in ways:
            yield tuple(FREE if is_free else _cost(whole, sizes, way, at) for at in range(len(self.group)))

    def work(self, choice: Choice) -> Iterator[tuple[tuple[OpCost, ...], int]]:
        """What each device does of each operation in the way that is chosen, and how many equal ones there are."""
        for node, some in self.ways.items():
            yield from ((costs, self.folded.count(node)) for costs in self._costs(node, [some[choice[node]]]))

    def change(self, tensor: Tensor, source: State, target: State) -> tuple[Flow, float]:
        """What devices send one another for a change of state of one tensor, and its seconds."""
        kind, source, target = self._crossing(tensor, source, target)
        key = kind.sizes, kind.dtype, source, target
        if key not in self._known:
            of_term = self.group.term_size(kind.sizes, kind.dtype)
            flow = flow_of(self.group, source, target, kind.sizes, kind.dtype.itemsize, of_term)
            exchanges = exchanges_of(self.group, source, target, kind.sizes, kind.dtype.itemsize)
            self._known[key] = flow, self.group.seconds(flow, exchanges)
        return self._known[key]

    def _crossing(self, tensor: Tensor, source: State, target: State) -> tuple[TensorType, State, State]:
        """What crosses for a change of state: of what was padded for one reader alone, the border before it is."""
        node, at = tensor
        within = before_padding(node, target) if isinstance(target, Halo) and len(node.users) == 1 else None
        if within is not None:
            (x,) = node.all_input_nodes
            taken = next((way.takes(x) for way in self.ways[node] if way.results == (source,)), WHOLE)
            if isinstance(taken, Split) and taken.axis == within.axis:
                return tensors_of(x)[0], taken, within
        return tensors_of(node)[at], source, target

    def state(self, choice: Choice, tensor: Tensor) -> State:
        """The state in which a tensor is made."""
        node, at = tensor
        return self.ways[node][choice[node]].results[at] if node in self.ways else WHOLE

    def needs(self, choice: Choice, reading: Reading) -> State:
        """The state in which an operand is read; what a program yields is whole."""
        node, operand = reading
        return self.ways[node][choice[node]].takes(operand) if node in self.ways else WHOLE

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that operations make and others read, in order."""
        return tuple(one for one in self.folded.readers if one[0] in self.ways)

    @cached_property
    def weights(self) -> tuple[tuple[tuple[Reading, ...], int], ...]:
        """Readings of the same weights, together, with their bytes; readings that share one are not told apart."""
        groups: list[tuple[set[Reading], set[Node]]] = []
        for reading in self.folded.sources:
            mine = set(_weights_read(self.folded, reading))
            if not mine:
                continue
            near = [one for one in groups if not one[1].isdisjoint(mine)]
            groups = [one for one in groups if one[1].isdisjoint(mine)]
            groups.append(({reading}.union(*(one[0] for one in near)), mine.union(*(one[1] for one in near))))
        return tuple(
            (tuple(sorted(readings, key=lambda one: (one[0].name, one[1].name))), sum(map(_nbytes, nodes)))
            for readings, nodes in groups
        )

    def held(self, states: Iterable[State], member: int) -> float:
        """The part of a weight that a device has which reads it in some states, at most all of it."""
        return min(1.0, sum(_share(state, member) for state in dict.fromkeys(states)))

    def weights_of(self, choice: Choice) -> tuple[int, ...]:
        """The bytes of weights that each device has."""
        total = [0.0] * len(self.group)
        for readings, nbytes in self.weights:
            states = [self.needs(choice, reading) for reading in readings]
            for member in range(len(total)):
                total[member] += nbytes * self.held(states, member)
        return tuple(map(round, total))

    @cached_property
    def steps(self) -> tuple[tuple[Node, tuple[Tensor, ...]], ...]:
        """The operations that make most of the memory's traffic, each with what lies in memory meanwhile.

        It is one tensor for each piece of memory: what was made there first.
        """
        order = {node: at for at, node in enumerate((*self.ways, self.folded.program.output))}
        made, last = dict[int, Tensor](), dict[int, int]()
        for node in self.ways:
            for at, tensor in enumerate(tensors_of(node)):
                made.setdefault(tensor.storage, (node, at))
        for (reader, _), sources in self.folded.sources.items():
            for node, at in (one for one in sources if one[0] in order):
                storage = tensors_of(node)[at].storage
                last[storage] = max(last.get(storage, 0), order[reader])
        spans = [(order[made[one][0]], end, made[one]) for one, end in last.items() if one in made]
        return tuple(
            (node, tuple(tensor for start, end, tensor in spans if start <= at <= end))
            for node, at in order.items()
            if name_of(node) in HEAVY
        )

    @cached_property
    def largest(self) -> int:
        """The bytes of values of a device at the operation at which they are most, if it had all of them."""
        return max((_all_of(node, tensors) for node, tensors in self.steps), default=0)

    def alive(self, choice: Choice) -> tuple[int, ...]:
        """The bytes of values on each device at most."""
        most = [0.0] * len(self.group)
        for node, tensors in self.steps:
            states = [(tensor, self.state(choice, tensor)) for tensor in tensors]
            for operand in operands_of(node):
                need = self.needs(choice, (node, operand))
                sources = [one for one in self.folded.sources[node, operand] if one[0] in self.ways]
                states += [(one, need) for one in sources if self.state(choice, one) not in (need, WHOLE)][:1]
            for member in range(len(most)):
                most[member] = max(most[member], sum(self.nbytes(*one, member) for one in states))
        return tuple(map(round, most))

    def nbytes(self, tensor: Tensor, state: State, member: int) -> float:
        """The bytes that a device has of a tensor in a state."""
        return tensors_of(tensor[0])[tensor[1]].nbytes * _share(state, member)

    def account(self, choice: Choice) -> Account:
        """What a choice takes."""
        changes = tuple(self._changes(choice))
        computing = sum(some[choice[node]] for node, some in self.times.items())
        seconds = computing + sum(one.count * one.seconds for one in changes)
        return Account(seconds, changes, self.weights_of(choice), self.alive(choice))

    def _changes(self, choice: Choice) -> Iterator[Change]:
        for tensor in self.tensors:
            source = self.state(choice, tensor)
            for readings, count in self.folded.readers[tensor]:
                wanted: dict[State, list[Node]] = defaultdict(list)
                for reading in readings:
                    wanted[self.needs(choice, reading)].append(reading[0])
                yield from self._of(tensor, source, wanted, count)

    def _of(
        self, tensor: Tensor, source: State, wanted: Mapping[State, Sequence[Node]], count: int
    ) -> Iterator[Change]:
        """The cheapest changes by which each reader has a tensor: once it is whole, parts of it are for nothing."""
        others = [state for state in wanted if state != source and source != WHOLE]
        apart = sum(self.change(tensor, source, state)[1] for state in others)
        if len(others) > 1 and (WHOLE in others or self.change(tensor, source, WHOLE)[1] <= apart):
            readers = tuple(node for state in others for node in wanted[state])
            yield self._change(tensor, source, WHOLE, count, readers)
            others = []
        for state in others:
            yield self._change(tensor, source, state, count, tuple(wanted[state]))

    def _change(self, tensor: Tensor, source: State, target: State, count: int, readers: tuple[Node, ...]) -> Change:
        flow, seconds = self.change(tensor, source, target)
        return Change(tensor, source, target, count, tuple(map(sum, flow)), seconds, tuple(dict.fromkeys(readers)))

    def is_possible(self, choice: Choice) -> bool:
        """Whether each operand can be had as it is read: no terms of a sum of a value, and written memory as it is."""
        for reading, sources in self.folded.sources.items():
            need = self.needs(choice, reading)
            for tensor in sources if not weight_name(made_by(reading[1])[0]) else ():
                made = self.state(choice, tensor)
                if not can_change(made, need) or (made != need and self.is_bound(reading)):
                    return False
        return True


def parts_weights(folded: Folded, node: Node, way: Strategy) -> bool:
    """Whether a way has devices hold parts of a parameter, unless it is but added or scaled elementwise."""
    if node in folded.parameters or rule_of(node) is pointwise.RULE:
        return False
    return not folded.parameters.isdisjoint(way.operands)


def _weights_read(folded: Folded, reading: Reading) -> Iterator[Node]:
    node, operand = reading
    if not weight_name(operand):
        return
    at = node.all_input_nodes.index(operand)
    for like in folded.likes[node]:
        yield like.all_input_nodes[at]


def _all_of(node: Node, tensors: Iterable[Tensor]) -> int:
    """The bytes of tensors, and of what an operation reads in another state beside them."""
    return sum(tensors_of(maker)[at].nbytes for maker, at in tensors) + sum(map(_nbytes, operands_of(node)))


def _nbytes(node: Node) -> int:
    return sum(one.nbytes for one in tensors_of(node))


def _cost(whole: OpCost, sizes: Sequence[tuple[Node, int]], way: Strategy, member: int) -> OpCost:
    """What a device does in a way of an operation, by the cost of it all and the bytes of its operands."""
    made = sum(_share(state, member) for state in way.results) / max(1, len(way.results)) if way.results else 1.0
    if not made:
        return FREE
    every = sum(nbytes for _, nbytes in sizes) or 1
    read = sum(nbytes * _share(way.takes(one), member) for one, nbytes in sizes) / every
    work, written = whole.flops * _work(way, member), int(whole.written * made)
    return replace(whole, flops=work, written=written, read=int(whole.read * read))


def _share(state: State, member: int) -> float:
    """The part of a tensor that a device has."""
    return state.share(member) if isinstance(state, Parted) else 1.0


def _work(way: Strategy, member: int) -> float:
    """The part of the arithmetic that a device does: that of its results, or of what is summed over."""
    made = [_share(state, member) for state in way.results if isinstance(state, Split)]
    read = [_share(state, member) for state in way.operands.values() if isinstance(state, Split)]
    return min(made or read, default=1.0)

"""Checks what a pass has done by what every op reads: before and after, the same version of the same value.

Every value gets a number: that of its op over the numbers of what it reads, each with the state of its memory. A pass
may move, merge, repeat and drop nodes as long as each has a number that it had, or a new one that of another. The
invariants:

- Two values with one number are equal, wherever they stand. A random op has a number of its own.
- A piece of memory (``possible_memory``: whatever may share memory under any strides) has a state. A write puts it into
  a new one, made of the old state and the write's own number, so that two programs agree on it.
- What was brought to a device has the number of the value, and the state of that where it is read: that it has this
  content is for a rule of its own to say (``transfer_rules.py``).
- A node that repeats its operand under any strides has its operand's number. What repeats one is decided here
  (``_REPEATS``), and not by what the passes say of themselves.

Takes time linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from ...compiler.ir.aliasing import (
    Alias,
    alias_class,
    argument_of,
    overwrites,
    possible_memory,
    reads_no_element,
    reshapes,
    touched_memory,
    written_by,
)
from ...compiler.ir.program import MOVING, Program, part_of, tensors_of, weight_name
from ...compiler.ir.split import assembles, original, source_of
from ...compiler.ir.value import TensorType

Key: TypeAlias = Any
Table: TypeAlias = dict[Key, int]
"""The number of each op over numbers; shared by what is compared."""

LAW = "After a pass that moves, merges and drops nodes, every op reads the same version of the same value as before."


@dataclass
class Reading:
    """The numbers of a program's live values, the random ops in order, and what is handed out."""

    table: Table
    numbers: dict[Node, int] = field(default_factory=dict)
    random_ops: list[Node] = field(default_factory=list)
    results: list[Key] = field(default_factory=list)


def read(program: Program, table: Table | None = None) -> Reading:
    """Numbers the values of a program, over the table of another reading that it is to be compared with."""
    return _Reader(program, Reading({} if table is None else table)).run()


def differences(before: Reading, after: Reading, output: Node) -> Iterator[tuple[Node | None, str]]:
    """What a program reads otherwise than before: the node where that shows, if it is one, and what is wrong.

    Both readings have one table; ``output`` is what hands out the results.
    """
    known = set(before.numbers.values())
    for node, number in after.numbers.items():
        if before.numbers.get(node, number) != number:
            yield node, f"%{node.name} reads another value, or another version of it, than before"
        elif number not in known:
            yield node, f"%{node.name} is new"
    if before.random_ops != after.random_ops:
        yield None, "the ops that draw random numbers are not the same, or not in the same order"
    if before.results != after.results:
        yield output, "what is handed out is not what it was"


class _Reader:
    """Walks a program once; ``state`` is the number of the last write to each piece of memory, 0 before any."""

    def __init__(self, program: Program, reading: Reading) -> None:
        self.program, self.reading = program, reading
        self.ops = {node: _op(node.target) for node in program.graph.nodes if node.op == "call_function"}
        self.live = _live(program, self.ops)
        memory = possible_memory(self.live)
        self.piece = {node: _home(piece, memory) for node, piece in memory.items()}
        self.touched = {_home(piece, memory) for piece in touched_memory(memory)}
        self.state: dict[Node, int] = {}
        self.shape: dict[Node, int] = {}
        self.same: dict[Node, Node] = {}  # the value that a node repeats

    def run(self) -> Reading:
        numbers = self.reading.numbers
        for node in self.live:
            if node.target in MOVING:
                continue
            if node in self.ops:
                numbers[node] = self.number(node, self.ops[node])
            elif node.op == "output":
                self.reading.results = [self.key(one) for one in node.args[0]]  # type: ignore[union-attr]
            else:
                numbers[node] = self.enter(node)
        return self.reading

    def enter(self, key: Key) -> int:
        return self.reading.table.setdefault(key, len(self.reading.table) + 1)

    def number(self, node: Node, op: _Op) -> int:
        source = self.repeated(node, op) if op.repeats is not None else None
        if source is not None:
            self.same[node] = self.same.get(source, source)
            return self.reading.numbers.get(source, 0)
        read = self.name if op.names else self.key
        named = tuple([(key, read(one)) for key, one in node.kwargs.items()]) if node.kwargs else ()
        number = self.enter((node if op.is_random else op.index, *map(read, node.args), named))
        if op.is_random and part_of(node) is None:  # what is taken apart draws nothing
            self.reading.random_ops.append(node)
        if op.kind is Alias.WRITE:
            self.write(node, number)
        elif op.elementwise and overwrites(node):
            self.state[self.piece[node.args[0]]] = self.enter(("overwritten", node))  # type: ignore[index]
        return number

    def write(self, node: Node, number: int) -> None:
        for piece in dict.fromkeys(self.piece[one] for one in written_by(node)):
            self.state[piece] = self.enter((self.state.get(piece, 0), number))
            if reshapes(node.target):
                self.shape[piece] = self.state[piece]

    def key(self, value: Any) -> Key:
        """A hashable argument: a tensor by its number and the state of its memory."""
        if isinstance(value, Node):
            number = self.reading.numbers.get(original(value), 0)  # 0 for what is not made yet
            return (number, self.state.get(self.piece[value], 0)) if self.state else (number, 0)
        return _literal(value, self.key)

    def name(self, value: Any) -> Key:
        """A hashable argument of an op that reads no element: a tensor by its number and the state of its shape."""
        if isinstance(value, Node):
            number = self.reading.numbers.get(original(value), 0)
            return number, self.shape.get(self.piece[value], 0) if self.shape else 0
        return _literal(value, self.name)

    def repeated(self, node: Node, op: _Op) -> Node | None:
        """The first operand, where a node is that under any strides, or a copy that nobody could tell from it."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node):
            return None
        source = original(source)
        mine, theirs = node.meta["value"], source.meta["value"]
        if not isinstance(mine, TensorType) or not isinstance(theirs, TensorType):
            return None
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype or not op.repeats(_Arguments(node)):  # type: ignore[misc]
            return None
        return source if not op.copies or self.is_needless(node, source) else None

    def is_needless(self, node: Node, source: Node) -> bool:
        """Whether a copy has the strides of its operand, and neither is written or handed out."""
        origin = self.same.get(source, source)
        dense = self.ops[origin].dense if origin in self.ops else bool(weight_name(origin))
        return dense and self.touched.isdisjoint((self.piece[node], self.piece[source]))


def _home(piece: Node, memory: Mapping[Node, Node]) -> Node:
    """The piece that is written where a copy of it lies elsewhere: of parts that were gathered, the whole."""
    return _home(memory[source_of(piece)], memory) if piece.target in MOVING and not assembles(piece) else piece


def _literal(value: Any, key: Callable[[Any], Key]) -> Key:
    if isinstance(value, (list, tuple)):
        return tuple(map(key, value))
    if isinstance(value, dict):
        return tuple([(name, key(item)) for name, item in value.items()])
    if isinstance(value, slice):
        return tuple(map(key, (value.start, value.stop, value.step)))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


class _Arguments:
    """The arguments of a node by name, defaults included."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.shape = tensors_of(node)[0].shape

    def __getitem__(self, name: str) -> Any:
        return argument_of(self.node, name)

    @property
    def keeps_format(self) -> bool:
        return self["memory_format"] in (None, torch.preserve_format)


_COPIES = frozenset(("clone", "_to_copy", "lift_fresh_copy"))
_REPEATS = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), lambda given: not given["train"]),
    **dict.fromkeys(("to", "type_as"), lambda given: not given["copy"] and given.keeps_format),
    **dict.fromkeys(("detach", "detach_", "alias", "squeeze", "expand", "expand_as", "narrow"), lambda given: True),
    **dict.fromkeys(("view", "view_as", "reshape", "flatten", "unflatten"), lambda given: 1 not in given.shape),
    **dict.fromkeys(_COPIES, lambda given: given.keeps_format),
    "slice": lambda given: given["step"] == 1,
    "transpose": lambda given: (given["dim0"] - given["dim1"]) % max(len(given.shape), 1) == 0,
    "permute": lambda given: [dim % len(given.shape) for dim in given["dims"]] == list(range(len(given.shape))),
}
"""For ops that may repeat their operand whether one whose result has its shape and dtype does, under any strides.

Of the views some keep every stride (those of ``view`` and its like not for dimensions of size 1).
"""


@dataclass(frozen=True)
class _Op:
    """What is known of an operation, whatever its operands; ``index`` tells it from all others."""

    index: int
    kind: Alias
    names: bool  # reads no element
    is_random: bool
    elementwise: bool
    copies: bool
    repeats: Callable[[_Arguments], bool] | None

    @property
    def dense(self) -> bool:
        """Whether its result is dense memory of its own, whatever the strides of its operands."""
        return self.kind is Alias.COMPUTE and self.elementwise and not self.copies


_INDEX = count()


@cache
def _op(target: Any) -> _Op:
    overload = isinstance(target, torch._ops.OpOverload)
    name, tags = (target.overloadpacket.__name__, target.tags) if overload else ("", ())
    kind = alias_class(target)
    return _Op(
        index=next(_INDEX),
        kind=kind,
        names=reads_no_element(target),
        is_random=torch.Tag.nondeterministic_seeded in tags,
        elementwise=torch.Tag.pointwise in tags,
        copies=name in _COPIES,
        repeats=_REPEATS.get(name),
    )


def _live(program: Program, ops: Mapping[Node, _Op]) -> list[Node]:
    """The nodes in order without those that are needed by nobody and change nothing."""
    wanted: set[Node] = set()
    nodes = list(program.graph.nodes)
    for node in reversed(nodes):
        op = ops.get(node)
        if node in wanted or op is None or op.kind is Alias.WRITE or op.is_random:
            wanted.add(node)
            wanted.update(node.all_input_nodes)
    return [node for node in nodes if node in wanted]

"""Finds bands: wide values between narrow ones, of which some rows can be computed at a time.

A band begins with a matmul whose result is larger than what it reads (the first layer of a feed-forward part, or the
scores of attention), and ends with one node, whose result is no larger (the layer that leads back). Between them are
operations of which some rows of the result need the same rows of the operands only (`rowwise.py`). Nothing else reads
what is inside, and nothing writes what it reads. Attention that the host computes with all scores at once is a band of
one node. Of the others only those count in which at least half as many bytes are alive as at the fullest moment of all.
What a model is called is never asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class, possible_memory, written_memory
from ...compiler.ir.layouts import is_plain
from ...compiler.ir.program import Program, tensors_of, value_of, weight_name
from ...compiler.ir.value import TensorType
from ..analysis.liveness import live_bytes
from .rowwise import ATTENTION, MATMULS, sliced_operands

_MOST = 64
"""Nodes of a band, about."""


@dataclass(frozen=True)
class Band:
    """Nodes in graph order, the last of which yields the result; ``dim`` of it and of ``sliced`` operands has rows."""

    nodes: tuple[Node, ...]
    dim: int
    rows: int
    sliced: frozenset[Node]

    @property
    def result(self) -> Node:
        """The node that is read outside."""
        return self.nodes[-1]


def bands(program: Program, parts: int) -> Iterator[Band]:
    """The bands of a program that can be taken apart into so many parts, in order; no node is in two."""
    live = dict(live_bytes(program))
    half = max(live.values(), default=0) / 2
    memory = possible_memory(program.graph.nodes)
    written = written_memory(memory)
    place = {node: index for index, node in enumerate(program.graph.nodes)}
    taken: set[Node] = set()
    for node in program.ops():
        if node in taken or not _begins(node):
            continue
        for dim in _dims(node, parts):
            found = _Search(node, dim).band(place)
            touched = {memory[one] for inner in found.nodes for one in (inner, *inner.all_input_nodes)} if found else ()
            if not found or (node.target is not ATTENTION and max(map(live.__getitem__, found.nodes)) < half):
                continue
            if taken.isdisjoint(found.nodes) and written.isdisjoint(touched):
                taken.update(found.nodes)
                yield found
                break


def _begins(node: Node) -> bool:
    """Whether a node is a matmul of known sizes that yields more than it reads, or attention with all its scores."""
    if node.target not in MATMULS or not isinstance(node.args[0], Node) or weight_name(node.args[0]):
        return False
    (mine,), (read,) = tensors_of(node), tensors_of(node.args[0])
    if not all(isinstance(size, int) for size in (*mine.shape, *read.shape)):
        return False
    if node.target is ATTENTION:
        return len(mine.shape) != 4 or read.shape[-1] != mine.shape[-1]
    return mine.nbytes > read.nbytes


def _dims(node: Node, parts: int) -> list[int]:
    """The dimensions that may be taken apart: the first, whose rows lie together, if there are enough; or tokens."""
    shape = tensors_of(node)[0].sizes
    tokens = len(shape) - 2
    return [dim for dim in dict.fromkeys((0, tokens)) if 0 <= dim <= tokens and shape[dim] >= parts]


@dataclass
class _Search:
    """One search for a band from its first node on; ``most`` bytes are narrow."""

    first: Node
    dim: int
    inside: set[Node] = field(default_factory=set)
    sliced: set[Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rows = int(tensors_of(self.first)[0].shape[self.dim])
        read = self.first.args[0]
        assert isinstance(read, Node)
        narrow = sum(tensor.nbytes for tensor in tensors_of(read))
        self.most: float = math.inf if self.first.target is ATTENTION else narrow

    def band(self, place: dict[Node, int]) -> Band | None:
        """The band, if there is one."""
        waiting = [self.first]
        while waiting:
            node = waiting.pop()
            more = [] if node in self.inside else self._enter(node)
            if more is None:
                return None
            waiting = [*waiting, *more] or self._behind_the_first_end(place)
        nodes = tuple(sorted(self.inside, key=place.__getitem__))
        return Band(nodes, self.dim, self.rows, frozenset(self.sliced - self.inside)) if self._is_whole(nodes) else None

    def _enter(self, node: Node) -> list[Node] | None:
        """Takes a node into the band; gives the nodes that must be in it too, or None where there is no band then."""
        operands = sliced_operands(node, self.dim, self.rows) if node.op == "call_function" else None
        if operands is None or len(self.inside) > _MOST:
            return None
        self.inside.add(node)
        self.sliced.update(operands)
        within = [one for one in operands if one not in self.inside and self._belongs(one)]
        return within if self._is_narrow(node) else [*within, *node.users]

    def _behind_the_first_end(self, place: dict[Node, int]) -> list[Node]:
        """The readers of the first of several narrow values, for these may meet: what adapters add to a matmul does."""
        ends = [node for node in self.inside if not self.inside.issuperset(node.users)]
        readers = min(ends, key=place.__getitem__).users if len(ends) > 1 else ()
        return [reader for reader in readers if reader not in self.inside]

    def _is_narrow(self, node: Node) -> bool:
        return (node is not self.first and sum(tensor.nbytes for tensor in tensors_of(node)) <= self.most) or (
            node.target is ATTENTION
        )

    def _belongs(self, node: Node) -> bool:
        """Whether a wide operand is computed for the band alone, or is an item of what is."""
        return (
            node.op == "call_function"
            and not self._is_narrow(node)
            and sliced_operands(node, self.dim, self.rows) is not None
            and (node.target in MATMULS or alias_class(node.target) is not Alias.COMPUTE or len(node.users) == 1)
        )

    def _is_whole(self, nodes: tuple[Node, ...]) -> bool:
        """Whether only the last node is read outside, and its result is dense, in rows."""
        value = value_of(nodes[-1])
        if not isinstance(value, TensorType) or alias_class(nodes[-1].target) is not Alias.COMPUTE:
            return False
        held = all(self.inside.issuperset(node.users) for node in nodes[:-1])
        read_whole = {one for node in nodes for one in node.all_input_nodes} - self.sliced
        apart = not self.inside & read_whole
        return held and apart and is_plain(value.sizes, value.stride) and self._is_narrow(nodes[-1])

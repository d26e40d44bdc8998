"""Equal blocks of a program are folded: one of them stands for all, so that states are decided for it alone.

A block is what its module made. Two are equal if their operations are the same in the same order, with the same
numbers, shapes and dtypes, and read each other, weights, and values from outside in the same places. What the first of
a chain reads from outside, the next one reads from the one before it: such a reading has several sources.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.ir.aliasing import Alias, alias_class, asks_size, writers_of
from ...compiler.ir.program import Program, origin_of, tensors_of, weight_name
from ...compiler.states.strategy import name_of

Tensor: TypeAlias = tuple[Node, int]
"""One of the tensors that a node yields, by its number."""

Reading: TypeAlias = tuple[Node, Node]
"""A node that reads, and its operand."""


def made_by(node: Node) -> Tensor:
    """The tensor that an operand is: an item of several results is the one of them."""
    at = 0
    while node.target is operator.getitem:
        at, node = int(node.args[1]), node.args[0]  # type: ignore[arg-type, assignment]
    return node, at


def operands_of(node: Node) -> list[Node]:
    """The tensors of which a node reads elements, or sizes that devices have: not what it checks, or takes types of."""
    is_check = node.op == "call_function" and not tensors_of(node) and alias_class(node.target) is not Alias.WRITE
    if is_check or asks_size(node.target) or name_of(node).startswith("new_"):
        return []
    return [one for one in node.all_input_nodes if tensors_of(one)]


@dataclass(frozen=True)
class Folded:
    """A program of which equal blocks are one.

    Args:
        program: the program.
        blocks: the nodes of each block that is equal to others, these together, the first of them first.
    """

    program: Program
    blocks: tuple[tuple[tuple[Node, ...], ...], ...] = ()

    @cached_property
    def likes(self) -> Mapping[Node, tuple[Node, ...]]:
        """For each node that stands for others all of these in the order of the blocks, itself first."""
        found = {node: (node,) for node in self.program.graph.nodes}
        for alike in self.blocks:
            for same in zip(*alike, strict=True):
                for other in same[1:]:
                    del found[other]
                found[same[0]] = same
        return found

    @cached_property
    def stands(self) -> Mapping[Node, tuple[Node, int]]:
        """For each node the one that stands for it, and the number of its block among the equal ones."""
        return {one: (node, at) for node, same in self.likes.items() for at, one in enumerate(same)}

    @cached_property
    def parameters(self) -> frozenset[Node]:
        """Parameters, and what is computed of nothing else: their views and casts."""
        found: set[Node] = set()
        for node in self.program.graph.nodes:
            is_one = weight_name(node) is not None and self.program.weight(node).kind == "parameter"
            if is_one or (node.all_input_nodes and found.issuperset(node.all_input_nodes)):
                found.add(node)
        return frozenset(found)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The operations that stand for themselves and others, in order; an item of several results is none."""
        ops = (node for node in self.program.ops() if node in self.likes)
        return tuple(node for node in ops if node.target is not operator.getitem)

    @cached_property
    def sources(self) -> Mapping[Reading, Mapping[Tensor, tuple[int, ...]]]:
        """For each reading the tensors that it reads, each with the numbers of the equal blocks that it is read of."""
        return {
            (node, operand): self._sources(node, operand)
            for node in (*self.nodes, self.program.output)
            for operand in operands_of(node)
        }

    def _sources(self, node: Node, operand: Node) -> Mapping[Tensor, tuple[int, ...]]:
        at, found = node.all_input_nodes.index(operand), defaultdict[Tensor, list[int]](list)
        for like in self.likes[node]:
            maker, number = made_by(like.all_input_nodes[at])
            stands, block = self.stands[maker]
            found[stands, number].append(block)
        return {tensor: tuple(blocks) for tensor, blocks in found.items()}

    @cached_property
    def readers(self) -> Mapping[Tensor, tuple[tuple[tuple[Reading, ...], int], ...]]:
        """For each tensor its readings: those of the same blocks together, with the number of these blocks."""
        of_block: dict[Tensor, dict[int, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading, sources in self.sources.items():
            for tensor, blocks in sources.items():
                for block in blocks:
                    of_block[tensor][block].append(reading)
        return {tensor: tuple(_alike(blocks)) for tensor, blocks in of_block.items()}

    def count(self, node: Node) -> int:
        """How many nodes one stands for."""
        return len(self.likes[node])


def _alike(blocks: Mapping[int, Sequence[Reading]]) -> Iterator[tuple[tuple[Reading, ...], int]]:
    yield from Counter(tuple(dict.fromkeys(readings)) for readings in blocks.values()).items()


def folded(program: Program) -> Folded:
    """A program with its equal blocks folded, as far as its blocks were found and their modules are known."""
    inside: dict[str, list[Node]] = {block.name: [] for block in program.blocks}
    for node in program.ops():
        parts = origin_of(node).module.split(".")
        around = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        name = next((one for one in around if one in inside), None)
        if name is not None:
            inside[name].append(node)
    alike: dict[Any, list[tuple[Node, ...]]] = defaultdict(list)
    written = writers_of(program).keys()
    for nodes in inside.values():
        alike[_spelling(nodes, written)].append(tuple(nodes))
    return Folded(program, tuple(tuple(some) for spelling, some in alike.items() if len(some) > 1 and spelling))


def _spelling(nodes: Sequence[Node], written: Collection[int]) -> tuple[Any, ...]:
    """What a block computes, without the names of nodes and weights; of memory that is written, what lies in which."""
    numbers, memory = dict[Node, str](), dict[int, int]()

    def place(storage: int) -> int | None:
        return memory.setdefault(storage, len(memory)) if storage in written else None

    def spelled(node: Node) -> str:
        own = [(one.shape, str(one.dtype), place(one.storage)) for one in tensors_of(node)]
        kind = "weight" if weight_name(node) else "value"
        return numbers.setdefault(node, f"<{kind} {len(numbers)} {own}>")

    found = []
    for node in nodes:
        given = map_arg((node.args, dict(node.kwargs)), spelled)
        found.append((str(node.target), repr(given), spelled(node)))
    return tuple(found)

"""Moves a view that would cut a run of nodes next to its base.

A view lives where its base lives. Where a model takes a view late (a modulation vector reshaped in every block), it
would interrupt the run of nodes around it with a segment that computes nothing. Taken early, next to its base, it costs
nothing, and equal views become one value, which then crosses once. A view that stands just before the run on its own
device begins that run.

Moving changes no bit: a view by its schema only names memory, whenever it is taken. What may be a copy under other
strides than the trace's (``reshape``) moves only where nothing writes into its operand's memory or its own, and nobody
hands that out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch.fx import Node

from ...compiler.ir.aliasing import (
    Alias,
    alias_class,
    base_of,
    possible_memory,
    reads_no_element,
    reshapes,
    touched_memory,
)
from ...compiler.ir.program import Program, device_of
from ..infra.base import Change, Pass


@dataclass(frozen=True)
class Hoist(Pass):
    """Moves views on another device than the nodes around them directly behind what they read."""

    name: ClassVar[str] = "hoist"
    keeps_values: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})

    def run(self, program: Program) -> Change:
        """Walks the graph once, moving each such view and merging it with an equal one that moved before.

        Of what devices compute together a view is where its readers are, and an equal one may be of another group.
        """
        if program.is_grouped:
            return Change(0, "views moved, for devices compute together")
        moved: dict[Any, Node] = {}
        views = _movable(program)
        follower = _followers(program, views)
        count = 0
        here = program.main
        first = next(program.ops(), None)
        for node in list(program.ops()):
            if node not in views:
                here = device_of(node)
                continue
            if device_of(node) == here:
                continue
            ahead = follower[node]
            if ahead is not None and device_of(ahead) == device_of(node):
                ahead.prepend(node)
                continue
            count += 1
            key = (node.target, node.args, tuple(sorted(node.kwargs.items())))
            twin = moved.setdefault(key, node)
            if twin is not node:
                node.replace_all_uses_with(twin)
                program.graph.erase_node(node)
                continue
            if node is not first:
                _move_behind_operands(node, first)
        return Change(count, "views moved")


def _movable(program: Program) -> set[Node]:
    """The views that may be taken earlier, and for which an equal one may stand."""
    memory = possible_memory(program.graph.nodes)
    reshaped = {memory[node] for node in program.ops() if reshapes(node.target)}
    touched = touched_memory(memory)
    views = [node for node in program.ops() if base_of(node) is not None and memory[node] not in reshaped]
    certain = {node for node in views if reads_no_element(node.target)}
    possible = {node for node in views if alias_class(node.target) is Alias.MAYBE and memory[node] not in touched}
    return certain | possible


def _followers(program: Program, views: set[Node]) -> dict[Node, Node | None]:
    """For each node the next one that computes something."""
    followers: dict[Node, Node | None] = {}
    ahead: Node | None = None
    for node in reversed(list(program.ops())):
        followers[node] = ahead
        ahead = ahead if node in views else node
    return followers


def _move_behind_operands(node: Node, first: Node | None) -> None:
    """Moves a node behind what it reads, or before the first operation if it reads nothing that is computed."""
    latest = max(node.all_input_nodes)
    if latest.op == "placeholder" and first is not None:
        first.prepend(node)
    else:
        latest.append(node)

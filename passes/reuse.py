"""Computes elementwise operations in the memory of an operand that nobody reads again.

An activation, a residual sum, a modulation would each hold its operand beside its result, though nobody reads the
operand again. In place, the result costs no memory and no allocation; it is the same kernel over the same elements,
so no bit changes. Must run on a cut program: only memory that stays inside one segment is reused, so that nothing
overwrites what a copy to another device still reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch.fx import Node

from ..compiler.aliasing import Alias, alias_class
from ..compiler.program import Program, TensorType, Value, placement_of, tensors_of, value_of
from .base import Change, Pass
from .storages import rename_storages


@dataclass(frozen=True)
class Reuse(Pass):
    """Turns elementwise nodes into their in-place forms where their first operand dies."""

    name: ClassVar[str] = "reuse"
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"memory reused", "scheduled"})
    ensures: ClassVar[frozenset[str]] = frozenset({"memory reused"})

    def run(self, program: Program) -> Change:
        """Walks the graph once; what is known of memory is what held before anything was reused."""
        memory = _Memory(program)
        merged: dict[int, int] = {}
        count = 0
        for node in program.ops():
            held = memory.overwritten(node)
            if held is not None:
                merged[tensors_of(node)[0].storage] = merged.get(held, held)
                node.target = in_place(node.target)
                count += 1
            rename_storages(node, merged)
        return Change(count, "results computed in place")


class _Memory:
    """The pieces of memory of a program: how large, in which segment, last read where, and who else needs them.

    Whether an op such as ``reshape`` copies depends on strides, and other kernels than the trace's may choose others;
    what it reads and what it yields count as one piece here, so that neither is overwritten while the other is needed.
    """

    def __init__(self, program: Program) -> None:
        self.before: dict[Node, Value] = {node: value_of(node) for node in program.ops()}
        self._bytes: dict[int, int] = {}
        self._segment: dict[int, int | None] = {}
        self._piece = _pieces(program)
        for node in program.ops():
            for tensor in tensors_of(node):
                self._bytes.setdefault(tensor.storage, tensor.nbytes)
                self._segment.setdefault(tensor.storage, placement_of(node).segment)
        self._last: dict[int, Node] = {}
        for node in program.graph.nodes:
            for piece in self._pieces_of(node, *node.all_input_nodes):
                self._last[piece] = node
        fixed = [*program.graph.find_nodes(op="placeholder"), *(crossing.value for crossing in program.crossings)]
        self._fixed = self._pieces_of(*fixed)

    def overwritten(self, node: Node) -> int | None:
        """The storage of a node's first operand, where it dies here, fills it, and has the layout of the result."""
        if in_place(node.target) is None or not node.args or not isinstance(node.args[0], Node):
            return None
        held, result = self.before.get(node.args[0]), self.before[node]
        if not isinstance(held, TensorType) or not isinstance(result, TensorType):
            return None
        if (held.shape, held.dtype, held.stride) != (result.shape, result.dtype, result.stride):
            return None
        piece, others = self._piece[held.storage], [n for n in node.all_input_nodes if n is not node.args[0]]
        if self._fixed & {piece, self._piece[result.storage]} or self._last[piece] is not node:
            return None
        if self._segment[held.storage] != placement_of(node).segment or self._bytes[held.storage] != held.nbytes:
            return None
        alone = node.args.count(node.args[0]) == 1 and piece not in self._pieces_of(*others)
        return held.storage if alone else None

    def _pieces_of(self, *nodes: Node) -> set[int]:
        return {self._piece[tensor.storage] for node in nodes for tensor in tensors_of(node)}


def _pieces(program: Program) -> dict[int, int]:
    """For each storage the first storage of the chain of possible views that it lies in."""
    piece: dict[int, int] = {}
    for node in program.graph.nodes:
        source = node.args[0] if node.args and alias_class(node.target) is Alias.MAYBE else None
        base = value_of(source) if isinstance(source, Node) else None
        for tensor in tensors_of(node):
            shared = isinstance(base, TensorType) and base.dtype == tensor.dtype
            piece.setdefault(tensor.storage, piece[base.storage] if shared else tensor.storage)  # type: ignore[union-attr]
    return piece


@cache
def in_place(target: Any) -> Any:
    """The in-place form of an elementwise operation: its name with an underscore; None without one."""
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    packet = getattr(getattr(torch.ops, target.namespace), f"{target.overloadpacket.__name__}_", None)
    twin = getattr(packet, target._overloadname, None)
    if twin is None or [a.name for a in twin._schema.arguments] != [a.name for a in target._schema.arguments]:
        return None
    return twin

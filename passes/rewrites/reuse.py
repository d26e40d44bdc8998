"""Lets elementwise operations be computed in the memory of an operand that nobody reads again, where strides allow.

An activation, a residual sum, a modulation would each hold its operand beside its result, though nobody reads the
operand again. In place, the result costs no memory and no allocation; it is the same kernel over the same elements.
The pass finds out where that is possible under any strides. Whether the result then has the strides that it would have
had (others may have the next kernel round otherwise) is looked at where the program runs, at its first call.

A program says so by the memory of the result, which is then its operand's. Must run on a cut program: only memory that
stays inside one segment is reused, so that nothing overwrites what a copy to another device still reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ...compiler.ir.aliasing import in_place, possible_memory
from ...compiler.ir.program import Program, placement_of, tensors_of, value_of
from ...compiler.ir.split import fills_on_each, source_of
from ...compiler.ir.value import TensorType
from ..analysis.liveness import last_touches
from ..analysis.storages import rename_storages
from ..infra.base import Change, Pass


@dataclass(frozen=True)
class Reuse(Pass):
    """Lets elementwise nodes be computed in the memory of their first operand where that dies."""

    name: ClassVar[str] = "reuse"
    keeps_values: ClassVar[bool] = True
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
                count += 1
            rename_storages(node, merged)
        return Change(count, "results computed in place where strides allow")


class _Memory:
    """The pieces of memory of a program: in which segment each is made, last read where, and who else needs it."""

    def __init__(self, program: Program) -> None:
        self.before = {node: value_of(node) for node in program.ops()}
        self._piece = possible_memory(program.graph.nodes)
        self._bytes: dict[int, int] = {}
        self._maker: dict[int, Node] = {}  # by the trace, where a cast makes memory that only may be its operand's
        for node in program.graph.nodes:
            for tensor in tensors_of(node) if node.op == "call_function" else ():
                self._bytes.setdefault(tensor.storage, tensor.nbytes)
                self._maker.setdefault(tensor.storage, node)
        self._last = last_touches(
            program.graph.nodes, lambda node: (self._piece[one] for one in (node, *node.all_input_nodes))
        )
        sent = (one for node in program.transfers() for one in (node, source_of(node)))
        self._fixed = {self._piece[node] for node in (*program.graph.find_nodes(op="placeholder"), *sent)}

    def overwritten(self, node: Node) -> int | None:
        """The storage of a node's first operand, where it dies here, fills it, and looks like the result."""
        operand = node.args[0] if node.args else None
        if in_place(node.target) is None or not isinstance(operand, Node):
            return None
        held, result = self.before.get(operand), self.before[node]
        if not isinstance(held, TensorType) or not isinstance(result, TensorType) or not _alike(held, result):
            return None
        piece = self._piece[operand]
        if self._fixed & {piece, self._piece[node]} or self._last[piece] is not node:
            return None
        if placement_of(piece).segment != placement_of(node).segment or self._bytes[held.storage] != held.nbytes:
            return None
        if not fills_on_each(node, operand, self._maker.get(held.storage, piece), held.storage):
            return None
        given = [*node.args, *node.kwargs.values()]
        others = [self._piece[one] for one in node.all_input_nodes if one is not operand]
        return held.storage if given.count(operand) == 1 and piece not in others else None


def _alike(one: TensorType, other: TensorType) -> bool:
    """Whether two tensors have the same shape and dtype, and the same strides in the trace.

    The trace is not sure of the strides of dimensions of size 1.
    """
    strides = [[step for size, step in zip(each.shape, each.stride, strict=True) if size != 1] for each in (one, other)]
    return (one.shape, one.dtype) == (other.shape, other.dtype) and strides[0] == strides[1]

"""Computes the wide parts of a program some rows at a time, so that only those rows of them are there at once.

The feed-forward part of a block is several times as wide as the block. Taken apart along the tokens (or the batch), it
holds a part of that width at a time: the rows of its operands are views, and the narrow results are put together at the
end. Attention whose kernel would hold all scores is taken apart along its queries likewise.

A matmul with fewer rows may be computed by another kernel and round otherwise, so this may change the last bits, and is
done only where it is asked for. It must run before nodes have places, which the new ones then get as all others do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.ir.program import Program, origin_of, placement_of, value_of
from ...compiler.ir.value import TensorType, Value
from ..analysis.result_types import ResultTypes
from ..chunking.bands import Band, bands
from ..infra.base import Change, Pass

aten = torch.ops.aten

CHUNKED = "chunked"
"""The fact that some part of a program is computed in chunks."""


@dataclass(frozen=True)
class Chunk(Pass):
    """Takes wide parts apart into so many parts along their rows."""

    name: ClassVar[str] = "chunk"
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})
    parts: int = 1

    def run(self, program: Program) -> Change:
        """Finds all bands first, then writes each anew."""
        found = list(bands(program, self.parts)) if self.parts > 1 else []
        writer = _Writer(program, self.parts)
        for band in found:
            writer.write(band)
        program.facts |= {CHUNKED} if found else set()
        return Change(len(found), f"wide parts computed in {self.parts} chunks")


def chunks_of(program: Program) -> int:
    """In how many chunks the wide parts of a program are computed; 1 where it has none, or all are whole."""
    steps = [step.removeprefix("chunk{parts=").rstrip("}") for step in program.history if step.startswith("chunk{")]
    return int(steps[-1]) if steps and CHUNKED in program.facts else 1


class _Writer:
    """Writes bands anew."""

    def __init__(self, program: Program, parts: int) -> None:
        self.graph, self.parts = program.graph, parts
        self.types = ResultTypes(program)

    def write(self, band: Band) -> None:
        """A chain of nodes for each part in front of the old ones, and what puts the parts together."""
        with self.graph.inserting_before(band.result):
            results = [self._part(band, number) for number in range(self.parts)]
            whole = self._node(band.result, aten.cat.default, (results, band.dim))
        whole.meta["value"] = _in_memory_of(band.result, value_of(whole))
        band.result.replace_all_uses_with(whole)
        for node in reversed(band.nodes):
            self.graph.erase_node(node)

    def _part(self, band: Band, number: int) -> Node:
        start, stop = (band.rows * at // self.parts for at in (number, number + 1))
        new: dict[Node, Node] = {}

        def rows_of(operand: Node) -> Node:
            if operand in band.sliced and operand not in new:
                new[operand] = self._node(operand, aten.slice.Tensor, (operand, band.dim, start, stop))
            return new.get(operand, operand)

        for node in band.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), rows_of)
            new[node] = self._node(node, node.target, args, kwargs)
        return new[band.result]

    def _node(self, origin: Node, target: Any, args: Any, kwargs: Any = None) -> Node:
        node = self.graph.call_function(target, args, kwargs or {})
        node.meta = {"value": self.types.of(node), "origin": origin_of(origin), "placement": placement_of(origin)}
        return node


def _in_memory_of(result: Node, whole: Value) -> Value:
    """What stands in the place of a result lies in the memory that views of the result are known to lie in."""
    was = value_of(result)
    is_one = isinstance(was, TensorType) and isinstance(whole, TensorType)
    return replace(whole, storage=was.storage) if is_one else whole  # type: ignore[union-attr,type-var]

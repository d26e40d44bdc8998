"""Computes the pictures of a call in micro-batches: a part of each value after the other, joined in the results.

A layer split has one device compute at a time, for each waits for the one before it. Taken apart along the batch, a
call is several calls that do not depend on one another: while a device computes a part, the next device computes the
part before it. `division` proves that the parts do not depend on one another, and says how each operation is computed
of one; here each such operation gives way to one for each part, side by side, over views of the inputs. What is not of
the pictures (weights, angles, one time for all) is computed once. `interleave` has the parts follow one another.

A product of fewer rows may be computed by another kernel and round otherwise, so this may change the last bits, and is
done only where it is asked for. It must run before nodes have places, which the new ones then get as all others do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.errors import UsageError
from ...compiler.ir.layouts import is_plain
from ...compiler.ir.program import IN_PARTS, Placement, Program, origin_of, part_of, tensors_of
from ...compiler.ir.state import Split, State
from ...compiler.states.strategy import Strategy
from ...compiler.states.table import local_call
from ..analysis.result_types import ResultTypes
from ..infra.base import Change, Pass
from .division import Division, NotDivisible, division_of

logger = logging.getLogger(__name__)

aten = torch.ops.aten


@dataclass(frozen=True)
class MicroBatches(Pass):
    """Computes the pictures of a call in so many parts, where that can be proven to be the same."""

    name: ClassVar[str] = "micro-batches"
    refuses: ClassVar[frozenset[str]] = frozenset({"placed", IN_PARTS})

    parts: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise UsageError(f"there is one micro-batch or more, not {self.parts}")

    def run(self, program: Program) -> Change:
        """Proves first that the parts are independent, then writes each; else all stays whole, and it says why."""
        if self.parts == 1:
            return Change(0, "operations computed in parts, for there is one")
        found = _refusal(program) or division_of(program, self.parts)
        if isinstance(found, NotDivisible):
            _tell(program.name, found.reason)
            return Change(0, f"operations computed in parts, for {found.reason}")
        if found.count < self.parts:
            _tell_fewer(program.name, found.count, self.parts)
        write_parts(program, found)
        return Change(len(found.ways), f"operations computed in {found.count} parts")


def write_parts(program: Program, division: Division) -> None:
    """Has a program compute each operation of a division once for each part."""
    _Writer(program, division).write()
    program.facts |= {IN_PARTS}


def micro_batches_of(program: Program) -> int:
    """In how many micro-batches a program is computed; 1 where it runs whole."""
    if IN_PARTS not in program.facts:
        return 1
    return len({part_of(node) for node in program.ops()} - {None})


def micro_batches_asked(program: Program) -> int:
    """How many micro-batches were asked for, where a program is computed in some, maybe in fewer; else 1."""
    steps = [
        step.removeprefix("micro-batches{parts=").rstrip("}") for step in program.history if "micro-batches{" in step
    ]
    return int(steps[-1]) if steps and IN_PARTS in program.facts else 1


def _refusal(program: Program) -> NotDivisible | None:
    """Why parts would not go through devices in turn."""
    if len(program.devices) == 1:
        return NotDivisible("it is on one device")
    if program.residency:
        return NotDivisible("some of its weights come in a call, and would come for each part")
    return None


class _Writer:
    """Writes each operation that is of the pictures once for each part."""

    def __init__(self, program: Program, division: Division) -> None:
        self.program, self.graph, self.division = program, program.graph, division
        self.types = ResultTypes(program)
        self.made: dict[tuple[Node, int], Node] = {}
        self.taken: dict[tuple[Node, State, int], Node] = {}  # of wholes

    def write(self) -> None:
        """The parts of each operation in front of it, and what joins results in front of the output."""
        for node, way in self.division.ways.items():
            numbers = range(self.division.count)
            operands = [self._operands(node, way, number) for number in numbers]
            self.made.update({(node, number): self._part(node, way, number, operands[number]) for number in numbers})
        self._join()
        for node in reversed(list(self.division.ways)):
            self.graph.erase_node(node)

    def _operands(self, node: Node, way: Strategy, number: int) -> dict[Node, Node]:
        """What a part of an operation reads in the place of its operands."""
        return {one: self._operand(node, one, way.takes(one), number) for one in node.all_input_nodes}

    def _part(self, node: Node, way: Strategy, number: int, operands: Mapping[Node, Node]) -> Node:
        target, args, kwargs = local_call(node, way, number)
        args, kwargs = map_arg((args, kwargs), lambda one: operands.get(one, one))
        return self._put(node, node, target, args, kwargs, number)

    def _operand(self, reader: Node, value: Node, wanted: State, number: int) -> Node:
        """What a part reads of an operand."""
        if (value, number) in self.made:
            return self.made[value, number]
        state = self.division.states[value][0] if value in self.division.states else wanted
        return self._narrow(reader, value, state, number) if isinstance(state, Split) else value

    def _narrow(self, reader: Node, value: Node, state: Split, number: int) -> Node:
        """A part of a whole: a view where it lies together as a tensor of its own would, else a copy."""
        key = value, state, number
        if key in self.taken:
            return self.taken[key]
        pieces = [
            self._put(reader, value, aten.slice.Tensor, (value, state.axis, *ends), {}, number)
            for ends in state.ranges(number)
        ]
        found = pieces[0]
        if len(pieces) > 1:
            found = self._put(reader, value, aten.cat.default, (pieces, state.axis), {}, number)
        elif _lies_plain(value) and not _lies_plain(found):
            how = {"memory_format": torch.contiguous_format}
            found = self._put(reader, value, aten.clone.default, (found,), how, number)
        self.taken[key] = found
        return found

    def _join(self) -> None:
        """Puts together the parts of each result."""
        output = self.program.output
        results = [one for one in output.all_input_nodes if one in self.division.ways]
        for one in results:
            (state,) = self.division.states[one][:1]
            assert isinstance(state, Split)
            parts = [self.made[one, number] for number in range(self.division.count)]
            whole = self._put(output, one, aten.cat.default, (parts, state.axis), {}, None)
            output.replace_input_with(one, whole)

    def _put(self, before: Node, origin: Node, target: Any, args: Any, kwargs: Any, number: int | None) -> Node:
        name = f"{origin.name}_part{number}" if number is not None else f"{origin.name}_joined"
        with self.graph.inserting_before(before):
            node = self.graph.create_node("call_function", target, args, kwargs, name)
        node.meta = {"value": self.types.of(node), "origin": origin_of(origin)}
        if number is not None:
            node.meta["placement"] = Placement(part=number)
        return node


def _lies_plain(node: Node) -> bool:
    (kind,) = tensors_of(node)
    return is_plain(kind.sizes, kind.stride)


@cache
def _tell(name: str, reason: str) -> None:
    """Says once why a program is not computed in parts, and what that means."""
    logger.warning("%s cannot be computed in micro-batches, for %s: it runs whole", name, reason)


@cache
def _tell_fewer(name: str, count: int, asked: int) -> None:
    logger.warning("%s is of %d pictures and is computed in as many micro-batches, not in %d", name, count, asked)

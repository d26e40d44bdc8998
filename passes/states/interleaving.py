"""Has numbers stacked that are written in turns into new memory: what is written only one device computes.

A rotary embedding that makes room for its result, and then writes the first of each pair of features into it and the
second, keeps queries and keys whole on the main device, and attention with them. Stacked behind one another, the same
numbers lie in the same places, and no memory is written. Where numbers have another dtype than the memory, they are
rounded as writing rounds them. So it is for programs that devices compute together, which no bit of it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...compiler.ir.aliasing import argument_of, writers_of
from ...compiler.ir.program import Program, origin_of, tensors_of
from ...compiler.ir.value import TensorType, dense_stride
from ...compiler.states.strategy import name_of, shape_of

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class _Turns:
    """New memory, and what is written into every so many-th element along an axis of it, in turn."""

    memory: Node
    axis: int
    slices: tuple[Node, ...]

    @property
    def copies(self) -> list[Node]:
        """What writes, in turn."""
        return [next(iter(one.users)) for one in self.slices]

    @property
    def written(self) -> list[Node]:
        """What is written, in turn."""
        return [one.args[1] for one in self.copies]  # type: ignore[misc]


def stack_turns(program: Program) -> int:
    """Stacks what is written in turns into new memory; returns how often.

    Equal programs are so changed alike: nodes of one and of its copy have the same names before and after.
    """
    writers = writers_of(program)
    made = [node for node in program.ops() if name_of(node) == "empty_like"]
    found = [turns for node in made if (turns := _turns_of(node)) and not _changes(turns, writers)]
    fresh = program.fresh_storages()
    for turns in found:
        _stack(program, turns, [next(fresh) for _ in turns.slices])
    return len(found)


def _turns_of(memory: Node) -> _Turns | None:
    """How new memory is filled, if it is by turns before anybody reads it."""
    (kind,) = tensors_of(memory)
    slices = [one for one in memory.users if name_of(one) == "slice" and _is_written(one)]
    if not slices or kind.hint or kind.stride != dense_stride(kind.sizes):
        return None
    count, axis = len(slices), argument_of(slices[0], "dim") % len(kind.shape)
    slices.sort(key=lambda one: argument_of(one, "start") or 0)
    size = kind.shape[axis]
    if not isinstance(size, int) or size % count:
        return None
    if not all(_is_turn(one, at, axis, count, size) for at, one in enumerate(slices)):
        return None
    turns = _Turns(memory, axis, tuple(slices))
    last = max(turns.copies)
    return turns if all(one in slices or last < one for one in memory.users) else None


def _changes(turns: _Turns, writers: Mapping[int, Sequence[Node]]) -> bool:
    """Whether something that is written is itself written to between its turn and the last one, when it is stacked."""
    last = max(turns.copies)
    pairs = zip(turns.copies, turns.written, strict=True)
    return any(
        copy < writer < last
        for copy, part in pairs
        for tensor in tensors_of(part)
        for writer in writers.get(tensor.storage, ())
    )


def _is_turn(node: Node, start: int, axis: int, step: int, size: int) -> bool:
    """Whether a slice has every so many-th element from one on, to the end of the axis."""
    end = argument_of(node, "end")
    given = argument_of(node, "dim") % len(shape_of(node)), argument_of(node, "start") or 0, argument_of(node, "step")
    return given == (axis, start, step) and (end is None or end >= size)


def _is_written(node: Node) -> bool:
    """Whether all that happens to a slice is that numbers of its sizes are written into it."""
    users = list(node.users)
    if len(users) != 1 or name_of(users[0]) != "copy_" or users[0].users or users[0].args[0] is not node:
        return False
    written = users[0].args[1]
    return isinstance(written, Node) and written is not node and shape_of(written) == shape_of(node)


def _stack(program: Program, turns: _Turns, storages: Sequence[int]) -> None:
    """Puts a stack of what is written, seen in the shape of the memory, in the place of that."""
    (kind,), copies, axis = tensors_of(turns.memory), turns.copies, turns.axis
    last, count = max(copies), len(copies)

    def add(value: TensorType, target: object, *args: object) -> Node:
        with program.graph.inserting_after(nodes[-1]):
            made = program.graph.call_function(target, args)  # type: ignore[arg-type]
        made.meta = {"value": value, "origin": origin_of(last)}
        nodes.append(made)
        return made

    nodes, parts = [last], list[Node]()
    for part, storage in zip(turns.written, storages, strict=True):
        (of_part,) = tensors_of(part)
        value = replace(of_part, dtype=kind.dtype, stride=dense_stride(of_part.shape), storage=storage)
        is_other = of_part.dtype != kind.dtype
        parts.append(add(value, _ATEN.to.dtype, part, kind.dtype) if is_other else part)
    shape = (*kind.shape[:axis], kind.sizes[axis] // count, count, *kind.shape[axis + 1 :])
    stacked = add(replace(kind, shape=shape, stride=dense_stride(shape)), _ATEN.stack.default, parts, axis + 1)
    found = add(kind, _ATEN.flatten.using_ints, stacked, axis, axis + 1)
    for one in (*copies, *turns.slices):
        program.graph.erase_node(one)
    turns.memory.replace_all_uses_with(found)
    program.graph.erase_node(turns.memory)

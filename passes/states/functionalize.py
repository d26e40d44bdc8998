"""Has what writes into memory of the program's own yield a new value instead: writes only one device computes.

An in-place operation becomes the one that it is the in-place form of. What is written into a part of a value is put
between what lies before that part and behind it, and the whole is a value of its own, as is every view of it that is
read afterwards. The numbers are the same, and rounded as writing rounds them, so no bit changes; it takes memory for a
value more. So it is for programs that devices compute together, and for no others.

A write stays where others may see it: into inputs and weights, into memory of which something is read afterwards that
is no view of the value, or that only may be one, and into other parts than stretches and single elements of axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.ir.aliasing import (
    Alias,
    alias_class,
    argument_of,
    out_of_place,
    possible_memory,
    written_by,
)
from ...compiler.ir.ops import RESHARD
from ...compiler.ir.program import Program, origin_of, tensors_of, value_of
from ...compiler.ir.value import TensorType, dense_stride, filled_stride, relocated
from ...compiler.states.strategy import name_of, shape_of

_ATEN = torch.ops.aten
_BY_PLACE = frozenset(("as_strided", "as_strided_", "slice_inverse"))
"""Views that count from the start of a storage, not from that of their operand."""


def functionalize(program: Program) -> int:
    """Has writes yield new values where nobody else reads the memory; returns how many.

    Equal programs are so changed alike: nodes of one and of its copy have the same names before and after.
    """
    count, kept, storages = 0, set[Node](), program.fresh_storages()
    while writers := [node for node in program.ops() if written_by(node) and node not in kept]:
        first_of = possible_memory(program.graph.nodes)
        foremost: dict[Node, Node] = {}  # of each memory; what a write leaves is looked at anew for the next one
        for node in writers:
            foremost.setdefault(first_of[written_by(node)[0]], node)
        for first, node in foremost.items():
            memory = [one for one, its in first_of.items() if its is first]
            write = _write_of(node, memory)
            if write is None:
                kept.add(node)
                continue
            _Values(program, write, storages).put(memory)
            count += 1
    return count


@dataclass(frozen=True)
class _Write:
    """A write, the value that it makes another one of, and what lies between that and what is written.

    Args:
        node: what writes.
        value: the value, or what is written itself.
        parts: each a part of the one before it; the first is of the value, the last what is written.
        views: all views of the value before the write, in order.
    """

    node: Node
    value: Node
    parts: tuple[Node, ...]
    views: tuple[Node, ...]

    @property
    def target(self) -> Node:
        """What is written."""
        return self.parts[-1] if self.parts else self.value


def _write_of(node: Node, memory: Sequence[Node]) -> _Write | None:
    """A write to the smallest value that holds all that is read of its memory later; None where there is none."""
    value, parts = node.args[0], list[Node]()
    if not isinstance(value, Node) or written_by(node) != [value] or not _is_known(node):
        return None
    if any(one.op != "call_function" or one.target is RESHARD or name_of(one) in _BY_PLACE for one in memory):
        return None
    before = [one for one in memory if one < node]
    later = {one for one in before if any(node < user for user in one.users)}
    while not later <= {value, *_views(value, before)}:
        if not _is_part(value):
            return None
        parts.insert(0, value)
        value = value.args[0]
        assert isinstance(value, Node)
    return _Write(node, value, tuple(parts), _views(value, before)) if _is_filled(value) else None


def _is_known(node: Node) -> bool:
    """Whether it is known which numbers an operation writes."""
    return name_of(node) in ("copy_", "fill_", "zero_") or out_of_place(node.target) is not None


def _is_filled(value: Node) -> bool:
    """Whether a value fills its memory in order, so that a new one lies as it does, whoever makes it."""
    kinds = tensors_of(value)
    return len(kinds) == 1 and not kinds[0].hint and kinds[0].stride == dense_stride(kinds[0].shape)


def _is_part(node: Node) -> bool:
    """Whether a value is a stretch of an axis of another one, or one element of it."""
    return name_of(node) == "select" or (name_of(node) == "slice" and argument_of(node, "step") == 1)


def _views(value: Node, memory: Sequence[Node]) -> tuple[Node, ...]:
    """Those that certainly are views of a value, in order."""
    found: dict[Node, None] = {}
    for one in memory:
        if alias_class(one.target) is Alias.VIEW and (one.args[0] is value or one.args[0] in found):
            found[one] = None
    return tuple(found)


class _Values:
    """Puts new values in the place of a write, and has all that comes after it read these."""

    def __init__(self, program: Program, write: _Write, storages: Iterator[int]) -> None:
        self._program, self._write, self._storages = program, write, storages

    def put(self, memory: Sequence[Node]) -> None:
        """Puts them there; ``memory`` are the values that may lie where the old one does."""
        node, old, views = self._write.node, self._write.value, self._write.views
        new = self._written()
        for part in reversed(self._write.parts):
            new = self._around(part, new)
        stands = {old: new}
        for view in views:
            stands[view] = self._copy(view, stands)
        stands[node] = stands[self._write.target]
        for one, found in stands.items():
            one.replace_all_uses_with(found, delete_user_cb=lambda user: node < user)
        lain, lies = (tensors_of(one)[0].storage for one in (old, new))
        for one in (*(one for one in memory if node < one), *stands.values()):
            one.meta["value"] = relocated(value_of(one), {lain: lies})
        self._program.graph.erase_node(node)
        for one in (*(stands[view] for view in reversed(views)), *reversed(views)):
            if not one.users:
                self._program.graph.erase_node(one)

    def _copy(self, view: Node, stands: Mapping[Node, Node]) -> Node:
        """A view of a new value, as there is one of the old."""
        with self._program.graph.inserting_before(self._write.node):
            found = self._program.graph.node_copy(view, lambda one: stands.get(one, one))
        found.meta["origin"] = origin_of(self._write.node)
        return found

    def _add(self, value: TensorType, target: Any, /, *args: Any, **kwargs: Any) -> Node:
        with self._program.graph.inserting_before(self._write.node):
            made = self._program.graph.call_function(target, args, kwargs)
        made.meta = {"value": value, "origin": origin_of(self._write.node)}
        return made

    def _fresh(self, kind: TensorType) -> TensorType:
        return replace(kind, stride=filled_stride(kind), storage=next(self._storages))

    def _written(self) -> Node:
        """The numbers that are written, in memory of their own, or in that of an operand where they become a part."""
        node, target, name = self._write.node, self._write.target, name_of(self._write.node)
        (kind,), twin = tensors_of(target), out_of_place(node.target)
        if twin is not None:
            made = self._fresh(replace(kind, dtype=_dtype_of(twin, node)))
            return self._as(kind, self._add(made, twin, *node.args, **node.kwargs))
        given = argument_of(node, "src" if name == "copy_" else "value") if name != "zero_" else 0
        if not isinstance(given, Node):
            return self._add(self._fresh(kind), _ATEN.full_like.default, target, given)
        (of_given,) = tensors_of(given)
        if of_given.shape != kind.shape:
            steps = torch.empty_strided(of_given.sizes, of_given.stride, device="meta").expand(kind.sizes).stride()  # type: ignore[arg-type]
            repeated = replace(of_given, shape=kind.shape, stride=steps)
            given = self._add(repeated, _ATEN.expand.default, given, list(kind.sizes))
        found = self._as(kind, given)
        return found if self._write.parts or found is not given else self._own(found)  # what `_as` made lies in order

    def _as(self, kind: TensorType, given: Node) -> Node:
        """Numbers in the dtype of others, which lie in order where that is another one than theirs."""
        (has,) = tensors_of(given)
        if has.dtype == kind.dtype:
            return given
        dense = dense_stride(has.shape)
        made = replace(has, dtype=kind.dtype, stride=dense, storage=next(self._storages))
        layout = {} if has.stride == dense else {"memory_format": torch.contiguous_format}
        return self._add(made, _ATEN.to.dtype, given, kind.dtype, **layout)

    def _own(self, given: Node) -> Node:
        """A copy of numbers, which lies in order."""
        (kind,) = tensors_of(given)
        made = replace(kind, stride=dense_stride(kind.shape), storage=next(self._storages))
        return self._add(made, _ATEN.clone.default, given, memory_format=torch.contiguous_format)

    def _around(self, part: Node, new: Node) -> Node:
        """What a part is of, with other numbers there."""
        whole, axis = part.args[0], argument_of(part, "dim") % len(shape_of(part.args[0]))  # type: ignore[arg-type]
        assert isinstance(whole, Node)
        (kind,), (of_new,) = tensors_of(whole), tensors_of(new)
        size, pieces = kind.sizes[axis], [new]
        if name_of(part) == "select":
            start = argument_of(part, "index") % size
            stop = start + 1
            pieces = [self._add(_with_axis(of_new, axis), _ATEN.unsqueeze.default, new, axis)]
        else:
            start, stop, _ = slice(argument_of(part, "start"), argument_of(part, "end")).indices(size)
        for begin, end, at in ((0, start, 0), (stop, size, len(pieces) + 1)):
            if begin < end:
                rest = replace(kind, shape=(*kind.shape[:axis], end - begin, *kind.shape[axis + 1 :]))
                pieces.insert(at, self._add(rest, _ATEN.slice.Tensor, whole, axis, begin, end))
        if len(pieces) == 1:
            return self._own(pieces[0])
        made = replace(kind, stride=dense_stride(kind.shape), storage=next(self._storages))
        return self._add(made, _ATEN.cat.default, pieces, axis)


def _with_axis(kind: TensorType, axis: int) -> TensorType:
    """A tensor with one more axis, of one element."""
    steps = torch.empty_strided(kind.sizes, kind.stride, device="meta").unsqueeze(axis).stride()  # type: ignore[arg-type]
    return replace(kind, shape=(*kind.shape[:axis], 1, *kind.shape[axis:]), stride=steps)


def _dtype_of(twin: Any, node: Node) -> torch.dtype:
    """The dtype that an operation yields, which may be another one than that of the memory it was written into."""

    def alike(one: Node) -> torch.Tensor:
        (kind,) = tensors_of(one)
        return torch.empty([1] * len(kind.shape), dtype=kind.dtype, device="meta")

    args, kwargs = map_arg((node.args, node.kwargs), alike)
    found = twin(*args, **kwargs)
    assert isinstance(found, torch.Tensor)
    return found.dtype

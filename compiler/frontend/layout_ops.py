"""Makes a trace say what it would leave out or hide: layouts, dropouts that drop nothing, the operand of each view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.graph import Graph
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class AsInEager(TorchFunctionMode):
    """Has calls be recorded as eager makes them while a module is traced.

    ``Tensor.contiguous()`` goes through the dispatcher: Python's method returns a tensor that is contiguous already
    before any tracer sees the call. It is contiguous by the strides of the trace, and other kernels than the trace's
    may choose others. Dropout that drops nothing gives its input itself, which may be written; torch.export gives a
    copy. With ``torch.native_dropout`` it is the other way round.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replaces the method by the operation of the same name, and such a dropout by its input."""
        kwargs = kwargs or {}
        if func in _DROPOUTS and _drops_nothing(*args, **kwargs):
            return args[0] if args else kwargs["input"]
        if func is torch.native_dropout:
            return _native_dropout(*args, **kwargs)
        function = aten.contiguous.default if func is torch.Tensor.contiguous else func
        return function(*args, **kwargs)


_DROPOUTS = (torch.nn.functional.dropout, torch.dropout)


def _drops_nothing(input: torch.Tensor, p: float = 0.5, training: bool = True, *_: Any, **named: Any) -> bool:
    """Whether eager's dropout returns its input; ``train`` is what `torch.dropout` calls ``training``."""
    return 0 <= p <= 1 and (p == 0 or not named.get("train", training))


def _native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
    """Dropout with its mask, which drops as in training unless it is told not to; its result is never its input."""
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    return torch.native_dropout(input, p, True)


def part_views(graph: Graph) -> None:
    """Replaces each result of an op whose results view one operand each by a view of that operand alone.

    A result then lives where its operand lives, on whatever device that is. These are all of ATen's ops with results in
    the memory of several operands: ``broadcast_tensors``, ``meshgrid`` and ``atleast_2d`` of a list. Every node must
    have its fake tensors (``meta["val"]``), and new ones get theirs.
    """
    for node in list(graph.nodes):
        part = _SEVERAL.get(node.target)
        if part is None:
            continue
        for item in list(node.users):
            with graph.inserting_before(item):
                item.replace_all_uses_with(part(item, list(node.args[0]), node))
            graph.erase_node(item)
        graph.erase_node(node)


def _expanded(item: Node, operands: Sequence[Node], _: Node) -> Node:
    """An item of ``broadcast_tensors``: its operand, expanded where the sizes differ."""
    operand, wanted = operands[item.args[1]], item.meta["val"].shape  # type: ignore[index]
    given = operand.meta["val"].shape
    lead = len(wanted) - len(given)
    kept = [at >= lead and statically_known_true(given[at - lead] == size) for at, size in enumerate(wanted)]
    sizes = [-1 if same else _size(item, at, operands) for at, same in enumerate(kept)]
    return _call(item, aten.expand.default, operand, sizes)


def _size(item: Node, at: int, operands: Sequence[Node]) -> int | Node:
    """A size of an item: a number, or asked of the operand that has it."""
    size, from_end = item.meta["val"].shape[at], at - item.meta["val"].dim()
    if isinstance(size, int):
        return size
    long_enough = (one for one in operands if one.meta["val"].dim() >= -from_end)
    owner = next(one for one in long_enough if statically_known_true(one.meta["val"].shape[from_end] == size))
    return _call(item, aten.sym_size.int, owner, from_end)


def _meshed(item: Node, operands: Sequence[Node], mesh: Node) -> Node:
    """An item of ``meshgrid``: its operand along one axis, expanded along the others."""
    axes = list(range(len(operands)))
    if mesh.kwargs.get("indexing") == "xy":
        axes[:2] = axes[:2][::-1]
    axis = axes[item.args[1]]  # type: ignore[index]
    shape = [-1 if at == axis else 1 for at in range(len(axes))]
    sizes = [-1 if at == axis else _length(item, operands[axes[at]]) for at in range(len(axes))]
    column = _call(item, aten.view.default, operands[item.args[1]], shape)  # type: ignore[index]
    return _call(item, aten.expand.default, column, sizes)


def _length(item: Node, operand: Node) -> int | Node:
    """The length of a vector, or 1 of a number."""
    length = operand.meta["val"].numel()
    return length if isinstance(length, int) else _call(item, aten.sym_size.int, operand, 0)


def _raised(item: Node, operands: Sequence[Node], several: Node) -> Node:
    """An item of ``atleast_1d``, ``_2d`` or ``_3d`` of a list: that of one tensor."""
    return _call(item, several.target.overloadpacket.default, operands[item.args[1]])  # type: ignore[union-attr, index]


_SEVERAL: dict[Any, Callable[[Node, Sequence[Node], Node], Node]] = {
    aten.broadcast_tensors.default: _expanded,
    aten.meshgrid.default: _meshed,
    aten.meshgrid.indexing: _meshed,
    aten.atleast_1d.Sequence: _raised,
    aten.atleast_2d.Sequence: _raised,
    aten.atleast_3d.Sequence: _raised,
}


def _call(item: Node, target: Any, *args: Any) -> Node:
    """A new node in place of a result, with the result's origin."""
    node = item.graph.call_function(target, args)
    node.meta = {**item.meta, "val": target(*map_arg(args, lambda operand: operand.meta["val"]))}
    return node

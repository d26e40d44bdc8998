"""Makes a trace say what it would leave out or hide: calls of ``contiguous``, and what each broadcast tensor views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.graph import Graph
from torch.overrides import TorchFunctionMode

from ..ir.program import TensorType, origin_of, tensors_of, value_of

aten = torch.ops.aten


class RecordContiguous(TorchFunctionMode):
    """Sends every ``Tensor.contiguous()`` through the dispatcher while a module is traced.

    Python's method returns a tensor that is contiguous already before any tracer sees the call. It is contiguous by
    the strides of the trace, and other kernels than the trace's may choose others.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replaces the method by the operation of the same name."""
        function = aten.contiguous.default if func is torch.Tensor.contiguous else func
        return function(*args, **(kwargs or {}))


def part_broadcasts(graph: Graph) -> None:
    """Replaces each item of ``broadcast_tensors`` by an ``expand`` of the one tensor that it views.

    The items of one op then view one operand each, on whatever device that lies. Must run on an annotated graph.
    """
    for node in graph.find_nodes(op="call_function", target=aten.broadcast_tensors.default):
        tensors: list[Node] = list(node.args[0])
        for item in list(node.users):
            with graph.inserting_before(item):
                item.replace_all_uses_with(_expand(graph, item, tensors[item.args[1]], tensors))
            graph.erase_node(item)
        graph.erase_node(node)


def _expand(graph: Graph, item: Node, tensor: Node, others: Sequence[Node]) -> Node:
    wanted, (given,) = value_of(item), tensors_of(tensor)
    assert isinstance(wanted, TensorType)
    lead = len(wanted.shape) - len(given.shape)
    same = [at >= lead and given.shape[at - lead] == size for at, size in enumerate(wanted.shape)]
    sizes = [-1 if kept else _size(graph, item, at, others) for at, kept in enumerate(same)]
    expanded = graph.call_function(aten.expand.default, (tensor, sizes))
    expanded.meta = dict(item.meta)
    return expanded


def _size(graph: Graph, item: Node, at: int, others: Sequence[Node]) -> int | Node:
    """A size of the result: a number, or that of the operand which has it."""
    size = tensors_of(item)[0].shape[at]
    if isinstance(size, int):
        return size
    from_end = at - len(tensors_of(item)[0].shape)
    long_enough = [one for one in others if len(tensors_of(one)[0].shape) >= -from_end]
    owner = next(one for one in long_enough if tensors_of(one)[0].shape[from_end] == size)
    asked = graph.call_function(aten.sym_size.int, (owner, from_end))
    asked.meta = {"value": None, "origin": origin_of(item)}
    return asked

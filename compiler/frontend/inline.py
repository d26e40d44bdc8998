"""Inlines the regions that torch.export wraps in higher-order ops.

``with torch.autocast(...)`` and ``torch.set_grad_enabled`` inside a model become nested graphs. Their bodies are
spliced into the graph, with the casts of an autocast that acts on the device that the program is for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..devices.device import HOST
from ..errors import TraceError
from .autocast import Casts, casts_of

_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_regions(module: GraphModule, kind: str = HOST, casts: Casts | None = None) -> None:
    """Splices the body of every wrapped region into the graph, innermost included.

    ``casts`` are those of the autocast around the module, ``kind`` is that of the program's main device.
    Raises TraceError for a region or control-flow op that cannot be inlined.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            if casts is not None:
                casts.apply(node)
            continue
        body, operands, within = _body(node, kind, casts)
        inner = getattr(module, body.target)
        inline_regions(inner, kind, within)
        _splice(node, inner, operands)
    for node in module.graph.find_nodes(op="get_attr"):
        if not node.users:
            module.graph.erase_node(node)


def _body(node: Node, kind: str, casts: Casts | None) -> tuple[Any, tuple[Any, ...], Casts | None]:
    """The name of a region's graph, its operands, and the casts that act in it."""
    if node.target is _GRAD:
        return node.args[1], node.args[2:], casts
    if node.target is not _AUTOCAST:
        raise TraceError(f"the higher-order op {node.target} cannot be compiled: rewrite the model without it")
    device, dtype, enabled = node.args[:3]
    if device == HOST:  # where the fakes lie; the region of another device acts on nothing
        casts = casts_of(kind, dtype if enabled else None)
    return node.args[4], node.args[5:], casts


def _splice(node: Node, inner: GraphModule, operands: tuple[Any, ...]) -> None:
    graph = node.graph
    copies: dict[Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), operands, strict=True))
    with graph.inserting_before(node):
        for source in inner.graph.nodes:
            if source.op == "call_function":
                copies[source] = graph.node_copy(source, copies.__getitem__)
    results: Any = torch.fx.map_arg(inner.graph.output_node().args[0], copies.__getitem__)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)

"""Inlines the regions that torch.export wraps in higher-order ops.

``with torch.autocast(...)`` and ``torch.set_grad_enabled`` inside a model become nested graphs. Under inference
neither does anything on the devices they do not name, so their bodies are spliced into the graph; an autocast that
would act where the trace ran is refused, for the ops inside it were recorded without its casts.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .errors import TraceError

_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_regions(module: GraphModule) -> None:
    """Splices the body of every wrapped region into the graph, innermost included.

    Raises TraceError for a region or control-flow op that cannot be inlined.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        body, operands = _body(node)
        inner = getattr(module, body.target)
        inline_regions(inner)
        _splice(node, inner, operands)
    for node in module.graph.find_nodes(op="get_attr"):
        if not node.users:
            module.graph.erase_node(node)


def _body(node: Node) -> tuple[Any, tuple[Any, ...]]:
    if node.target is _GRAD:
        return node.args[1], node.args[2:]
    if node.target is not _AUTOCAST:
        raise TraceError(f"the higher-order op {node.target} cannot be compiled: rewrite the model without it")
    device, dtype, enabled = node.args[:3]
    if enabled and device == "cpu" and dtype in (torch.bfloat16, torch.float16):
        raise TraceError(f"the model runs autocast to {dtype} on {device}: convert its weights to that dtype instead")
    return node.args[4], node.args[5:]


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

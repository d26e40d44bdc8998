"""A graph of Dynamo as a module that holds its weights again, under the names that the model has for them.

Dynamo hands the weights of a model to its graph as inputs. As weights of a module they can be placed, and the blocks
among them can be found by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

_ROOT = re.compile(r"^[A-Z]\['[^']*'\]\.?")
_KEY = re.compile(r"(?:_modules|_parameters|_buffers)\['([^']+)'\]")


def weights_of(graph: fx.GraphModule) -> dict[int, str]:
    """The inputs of a graph that are weights, by number, and the path of each in the model.

    It is to be asked while Dynamo compiles the graph; afterwards the graph knows its inputs no more.
    """
    inputs = enumerate(graph.graph.find_nodes(op="placeholder"))
    weights = {index: node for index, node in inputs if "_dynamo_static_input_type" in node.meta.get("tensor_dict", ())}
    return {
        index: ".".join(_KEY.findall(node.meta["grapharg"].source.name)) or node.name for index, node in weights.items()
    }


def origins_of(graph: fx.GraphModule) -> dict[str, dict[str, Any]]:
    """For each node of a graph by name what a trace is told of where it is: the model's modules and source lines.

    Like `weights_of` it is to be asked while Dynamo compiles the graph.
    """
    return {
        node.name: {
            "stack_trace": node.meta.get("stack_trace"),
            "nn_module_stack": {
                key: (_ROOT.sub("", path), cls) for key, (path, cls) in node.meta.get("nn_module_stack", {}).items()
            },
        }
        for node in graph.graph.nodes
    }


class DynamoGraph(nn.Module):
    """A graph whose weights are no arguments: it is called with the other inputs of the graph, in their order.

    Args:
        graph: as Dynamo gives it.
        names: which inputs of it are weights, and what the model calls them.
        origins: where in the model each node is.
        inputs: one call of it, weights and all.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        names: Mapping[int, str],
        origins: Mapping[str, Mapping[str, Any]],
        inputs: Sequence[Any],
    ) -> None:
        super().__init__()
        self.graph = graph
        for node in graph.graph.nodes:
            node.meta.update({key: one for key, one in origins[node.name].items() if one})
        self._weights = {index: self._hold(name, inputs[index]) for index, name in names.items()}
        self._inputs = [index for index in range(len(inputs)) if index not in names]

    def forward(self, *inputs: Any) -> Any:
        """The graph on its weights and these inputs, node by node, so that a trace sees where in the model each is."""
        given = dict(zip(self._inputs, inputs, strict=True))
        held = {index: getattr(module, name) for index, (module, name) in self._weights.items()}
        with fx.traceback.preserve_node_meta():
            return fx.Interpreter(self.graph).run(*(value for _, value in sorted({**given, **held}.items())))

    def _hold(self, weight: str, tensor: torch.Tensor) -> tuple[nn.Module, str]:
        """Puts a weight where its name says: the modules on the way are made."""
        *path, name = weight.split(".")
        module: nn.Module = self
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        while hasattr(module, name):
            name += "_"
        _put(module, name, tensor)
        return module, name


def _put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor, persistent=False)

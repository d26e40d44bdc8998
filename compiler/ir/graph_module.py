"""Makes a ``torch.fx.GraphModule`` of a program, for whatever reads, runs or rewrites fx graphs.

Inputs stay placeholders, weights become attributes of the module under their own names, and the number of an adapter a
number among the arguments. It computes on one device; ``meta["placement"]`` says what the program says of devices.
``meta["val"]`` of each node is what it yields as a fake tensor, in the sizes of the example where they are dynamic, and
``meta["tensor_meta"]`` the same in the form of PyTorch's older tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from .program import HERE, Placement, Program, origin_of, value_of
from .sizes import evaluate
from .split import original
from .value import TensorType, Value
from .weight import Weight

_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")

WeightOf = Callable[[Weight], "torch.Tensor | float"]
"""Gives a weight, whole, on the device of the module; the scale of an adapter may be a number."""


def graph_module(program: Program, weight_of: WeightOf, device: torch.device) -> GraphModule:
    """A module that takes the tensors of a call, in the order of the program's inputs, and gives a tuple of results."""
    copy = _Copy(program, weight_of, device)
    for node in program.inputs():
        name = f"{node.name}_" if iskeyword(node.name) else node.name
        copy.add(node, copy.graph.placeholder(name))
    for node in [*program.ops(), program.output]:
        copy.take(node)
    return GraphModule(copy.attributes, copy.graph, program.name if program.name.isidentifier() else "GraphModule")


class _Copy:
    """The graph of the module, and the attributes that it reads, as far as they are there."""

    def __init__(self, program: Program, weight_of: WeightOf, device: torch.device) -> None:
        self.program, self.weight_of, self.device = program, weight_of, device
        self.graph = Graph()
        self.attributes: dict[str, Any] = {}
        self.made: dict[Node, Any] = {}
        self.fakes = FakeTensorMode()

    def take(self, node: Node) -> None:
        """Adds an operation or the output, and the weights that nothing has read before.

        What was brought to a device is the value itself, for there is one device here.
        """
        for operand in node.all_input_nodes:
            if original(operand) not in self.made:
                self._take_weight(operand)
        args, kwargs = map_arg((node.args, node.kwargs), lambda one: self.made[original(one)])
        args, kwargs = map_aggregate((args, kwargs), lambda one: self.device if one == HERE else one)
        args = (tuple(args[0]),) if node.op == "output" else args  # type: ignore[arg-type]
        self.add(node, self.graph.create_node(node.op, node.target, args, kwargs, node.name))

    def add(self, node: Node, made: Node) -> None:
        """Notes what stands for a node of the program, and what is known of it."""
        self.made[node] = made
        made.meta = {**node.meta, **self._modules(node)}
        if node.op != "output":
            self._fake(made, value_of(node))

    def _take_weight(self, node: Node) -> None:
        weight = self.program.weight(node)
        tensor = self.weight_of(weight)
        if weight.is_number:
            self.made[node] = float(tensor)
            return
        assert isinstance(tensor, torch.Tensor)
        name = weight.name if _PATH.fullmatch(weight.name) else f"weight_{len(self.attributes)}"
        is_parameter = weight.kind in ("parameter", "adapter") and (tensor.is_floating_point() or tensor.is_complex())
        self.attributes[name] = nn.Parameter(tensor, tensor.requires_grad) if is_parameter else tensor
        self.add(node, self.graph.create_node("get_attr", name, name=node.name))
        home = self.program.home.get(weight.name)
        self.made[node].meta["placement"] = Placement((home,) if home else ())

    def _fake(self, made: Node, value: Value) -> None:
        """Fills in what a node yields, as far as that is known without data."""
        from torch.fx.passes.shape_prop import _extract_tensor_metadata

        with self.fakes:
            found = self._number(made) if value is None else self._empty(value)
        if found is None:
            return
        made.meta["val"] = found
        described = map_aggregate(
            found, lambda one: _extract_tensor_metadata(one) if isinstance(one, torch.Tensor) else one
        )
        if value is not None:
            made.meta["tensor_meta"] = described

    def _empty(self, value: Value) -> Any:
        if isinstance(value, TensorType):
            steps = [evaluate(step, self.program.symbols) for step in value.stride]
            return torch.empty_strided(value.sizes, steps, dtype=value.dtype, device=self.device)
        return None if value is None else tuple(map(self._empty, value))

    def _number(self, made: Node) -> Any:
        """The number that an operation yields in the example; None where only the data knows."""
        try:
            args, kwargs = map_arg((made.args, made.kwargs), lambda one: one.meta["val"])
            return made.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # whatever an operation raises that asks for data
            return None

    def _modules(self, node: Node) -> Mapping[str, Any]:
        """The module that a node came from, where PyTorch's tools look for it."""
        origin = origin_of(node)
        return {"nn_module_stack": {origin.module: (origin.module, origin.cls)}} if origin.module else {}


def without_data(program: Program) -> WeightOf:
    """Weights on meta, as the program knows them."""
    kinds = {node.meta["weight"]: value_of(node) for node in program.weight_nodes()}

    def weight_of(weight: Weight) -> torch.Tensor | float:
        kind = kinds[weight.name]
        if not isinstance(kind, TensorType):
            return 1.0
        steps = [evaluate(step, program.symbols) for step in kind.stride]
        made = torch.empty_strided(kind.sizes, steps, dtype=kind.dtype, device="meta")
        return made.requires_grad_(weight.requires_grad and made.is_floating_point())

    return weight_of

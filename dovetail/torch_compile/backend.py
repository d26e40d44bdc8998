"""``torch.compile(model, backend="dovetail", options={…})``: each graph that Dynamo finds is compiled and run here.

A graph is compiled when it is first called, and so its errors are raised by that call as they are: what is raised while
Dynamo works is wrapped by it. Where Dynamo leaves sizes open, there is a program for each set of them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..compiler.errors import UsageError
from ..compiler.ir.program import Program
from ..compiling import compile
from ..components.compiled import CompiledModule
from ..conventions.modes import taken_off
from .lifted import DynamoGraph, origins_of, weights_of
from .shared_weights import SharedWeights

_OPTIONS = tuple(
    name
    for name, one in inspect.signature(compile).parameters.items()
    if one.kind is one.KEYWORD_ONLY and name not in ("weights", "dynamic_shapes", "callbacks")
)
_MANY = 256
"""For so many sets of weights and sizes a graph has its program at hand."""

Sizes = tuple[Any, ...]
Identities = tuple[int, ...]
_TRAINS = ("train", "training")


def compile_graph(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledGraph:
    """The backend that torch.compile calls by the name ``dovetail``; it takes what Dynamo makes of a model.

    Args:
        graph: of torch operations; the weights of the model are inputs of it, or lie in it.
        inputs: an example of each input.
        mode: none; modes are of Inductor.
        options: those of ``dovetail.compile``, which say where the model runs.

    The first call of what is returned raises what ``dovetail.compile`` raises, and UsageError for options that there
    are not, and for a model that trains.
    """
    return CompiledGraph(graph, mode, options or {})


class CompiledGraph:
    """A graph of Dynamo, with a program for each set of sizes and of weights that it is called with.

    Dynamo calls one graph for all modules that do the same; those of the last calls have their weights at hand.
    """

    def __init__(self, graph: fx.GraphModule, mode: str | None, options: Mapping[str, Any]) -> None:
        self._graph = graph
        self._names, self._origins = weights_of(graph), origins_of(graph)
        self._mode, self._options = mode, options
        self._made: dict[Sizes, CompiledModule] = {}
        self._bound: dict[tuple[Identities, Sizes], CompiledModule] = {}
        self._making = threading.RLock()

    def __call__(self, *inputs: Any) -> Any:
        """Answers a call with the program for its sizes, which is made if there is none yet."""
        if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs):
            raise UsageError(
                "the backend dovetail computes no gradients, and this call asks for them: make it under "
                "torch.no_grad() or torch.inference_mode()"
            )
        others = [one for index, one in enumerate(inputs) if index not in self._names]
        sizes = tuple(one.shape if isinstance(one, torch.Tensor) else one for one in others)
        key = tuple(id(inputs[index]) for index in self._names), sizes
        compiled = self._bound.get(key) or self._bind(key, inputs, others)
        with taken_off():  # what modes do to functions is in the graph
            return compiled(*others)

    def _bind(self, key: tuple[Identities, Sizes], inputs: Sequence[Any], others: Sequence[Any]) -> CompiledModule:
        """The program for some sizes over some weights, which it keeps alive."""
        with self._making:
            if key in self._bound:
                return self._bound[key]
            graph = DynamoGraph(self._graph, self._names, self._origins, inputs)
            if key[1] not in self._made:
                self._made[key[1]] = self._compile(graph, others)
            made = self._made[key[1]]
            weights = SharedWeights.of_module(graph, made.program)
            self._bound[key] = CompiledModule(made.program, made.rig, weights, made.base)
            for old in list(self._bound)[:-_MANY]:
                del self._bound[old]
            return self._bound[key]

    def _compile(self, graph: DynamoGraph, inputs: Sequence[Any]) -> CompiledModule:
        """A program that has no weights yet; a graph has no parts, so it is not tried on data if it has none."""
        self._check_options()
        compiled = compile(graph, tuple(map(_without_data, inputs)), **self._options)
        _refuse_training(compiled.program)
        return CompiledModule(compiled.program, compiled.rig, None, compiled.base)

    def _check_options(self) -> None:
        if self._mode not in (None, "default"):
            raise UsageError(f"the backend dovetail has no mode {self._mode!r}: leave it out (options={{…}} says more)")
        unknown = [name for name in self._options if name not in _OPTIONS]
        if unknown:
            raise UsageError(
                f"the backend dovetail has no option {unknown[0]!r}; it has those of dovetail.compile: "
                f"{', '.join(_OPTIONS)}"
            )


def _without_data(value: Any) -> Any:
    """An input of the same sizes and strides that nothing can be computed with."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _refuse_training(program: Program) -> None:
    """Raises UsageError for a graph with an operation that does something else in training, and does that."""
    for node in program.ops():
        arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
        given = {one.name: node.kwargs.get(one.name) for one in arguments}
        given |= {one.name: value for one, value in zip(arguments, node.args, strict=False)}
        if any(given.get(name) is True for name in _TRAINS):
            raise UsageError(
                f"the backend dovetail runs models in eval mode, and this one trains (it calls {node.target}): "
                "call model.eval() first"
            )

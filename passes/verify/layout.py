"""Runs a program's ops on tensors without data, where it was traced, and compares how results lie in memory.

Strides and the sharing of memory are what the trace found on the host, whatever devices the program is for. What
kernels choose where it runs may differ, and nothing rests on it; but a pass must not say otherwise than a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...compiler.ir.aliasing import overwrites
from ...compiler.ir.program import HERE, MOVING, Program, value_of
from ...compiler.ir.sizes import evaluate
from ...compiler.ir.split import assembles, source_of
from ...compiler.ir.value import TensorType, Value

HOST = torch.device("cpu")
Call: TypeAlias = Callable[[Any, Any, Any], Any]


def misplaced(program: Program, call: Call) -> Iterator[tuple[Node, str]]:
    """Nodes whose result has other strides than said, or shares memory with other nodes than said, and what is wrong.

    Must run in a FakeTensorMode, on a program whose shapes and dtypes were found right; ``call`` runs an op.
    """
    yield from _LayoutRun(program, call).run()


class _LayoutRun:
    """The values of one run, and which storage each number stands for."""

    def __init__(self, program: Program, call: Call) -> None:
        self.program, self.call = program, call
        self.values: dict[Node, Any] = {}
        self.storage: dict[int, torch.UntypedStorage] = {}
        self.number: dict[int, int] = {}
        self.anew: set[Node] = set()  # what is made of values that lie otherwise than in the trace, or are terms

    def run(self) -> Iterator[tuple[Node, str]]:
        for node in self.program.graph.nodes:
            if node.op == "output":
                continue
            self.values[node] = self.yielded(node)
            if _is_laid_anew(node) or not self.anew.isdisjoint(node.all_input_nodes):
                self.anew.add(node)
            for problem in () if node in self.anew else self.problems(value_of(node), self.values[node], node):
                yield node, problem

    def yielded(self, node: Node) -> Any:
        if node.op != "call_function":
            return self.make(value_of(node))
        if assembles(node):
            return self.make(value_of(node))
        if node.target in MOVING:
            sent = self.values[node.all_input_nodes[0]]
            return torch.empty_strided(sent.shape, sent.stride(), dtype=sent.dtype, device=HOST)
        args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
        args, kwargs = pytree.tree_map(lambda one: HOST if one == HERE else one, (args, kwargs))
        try:
            return self.call(node.target, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException, UnsupportedOperatorException):
            return self.make(value_of(node))  # only the data knows, or only a kernel

    def problems(self, value: Value, found: Any, node: Node) -> Iterator[str]:
        if isinstance(value, TensorType):
            if isinstance(found, torch.Tensor) and found.numel():
                yield from self.strides(value, found)
                yield from self.sharing(value, found.untyped_storage(), overwrites(node))
        elif value is not None:
            for inner, item in zip(value, found, strict=False):
                yield from self.problems(inner, item, node)

    def strides(self, value: TensorType, found: torch.Tensor) -> Iterator[str]:
        """Dimensions of size 1 may have any stride: no element depends on it, and traces differ in it."""
        said = self.sizes(value.stride)
        loose = {at for at, size in enumerate(found.shape) if size == 1}
        if any(
            one != other for at, (one, other) in enumerate(zip(said, found.stride(), strict=True)) if at not in loose
        ):
            yield f"has the strides {tuple(found.stride())}, its annotation says {said}"

    def sharing(self, value: TensorType, storage: torch.UntypedStorage, over: bool) -> Iterator[str]:
        """Values have one number where they share memory, and only there; what is computed over another takes it."""
        if over:
            self.storage.pop(value.storage, None)
        held = self.storage.setdefault(value.storage, storage)
        number = self.number.setdefault(storage._cdata, value.storage)
        if held._cdata != storage._cdata:
            yield f"lies in memory of its own, its annotation says ~{value.storage}, which is another's"
        if number != value.storage:
            yield f"shares the memory ~{number}, its annotation says ~{value.storage}"

    def make(self, value: Value) -> Any:
        if isinstance(value, TensorType):
            return torch.empty_strided(
                self.sizes(value.shape), self.sizes(value.stride), dtype=value.dtype, device=HOST
            )
        return 1 if value is None else tuple(map(self.make, value))

    def sizes(self, sizes: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(evaluate(size, self.program.symbols) for size in sizes)


def _is_laid_anew(node: Node) -> bool:
    """Whether a value is put together of parts, densely, that did not lie so in the trace."""
    return assembles(node) and value_of(node).stride != value_of(source_of(node)).stride  # type: ignore[union-attr]

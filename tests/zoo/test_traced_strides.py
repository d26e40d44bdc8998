"""What a trace says of the strides of values is so when they are computed, for a batch of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx import GraphModule, Interpreter, Node

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.graph_module import graph_module
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.sizes import evaluate
from dovetail.compiler.ir.value import flat
from testbed.zoo.everything import FIRST
from testbed.zoo.tiny import TINY
from tests.cases import drawn

OTHERWISE = {
    "Kandinsky3UNet": "attention to one token",
    "UNetControlNetXSModel": "attention to one token",
    "AutoencoderKLHunyuanVideo-encode": "group norm of three axes",
    "AutoencoderKLHunyuanVideo-decode": "group norm of three axes",
}
"""Those in which a kernel gives an axis of size 1 another stride than PyTorch's fake of it."""

FRAMES = "AutoencoderKLTemporalDecoder-decode"
"""Whose batch are the frames of one video."""


class Strides(Interpreter):
    """Runs a graph, and notes where results have other strides than the program says, for sizes of its symbols."""

    def __init__(self, module: GraphModule, sizes: Mapping[str, int]) -> None:
        super().__init__(module)  # type: ignore[no-untyped-call]
        self.count = 0
        self.sizes = sizes
        self.other: list[str] = []

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        for one, value in zip(tensors(found), flat(n.meta["value"]) if n.op == "call_function" else (), strict=False):
            self.count += 1
            told = tuple(step if isinstance(step, int) else evaluate(step, self.sizes) for step in value.stride)
            if one.stride() != told:
                self.other.append(f"{n.name}, {tuple(one.shape)}: {told}, but {one.stride()}")
        return found


def tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, torch.Tensor)]


def of_one(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with the first of each batch."""
    batch = next((one.shape[0] for one in call.values() if isinstance(one, torch.Tensor) and one.dim() > 1), 1)
    return {
        name: one[:1] if isinstance(one, torch.Tensor) and one.dim() and len(one) == batch else one
        for name, one in call.items()
    }


def check(program: Program, module: nn.Module, call: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Runs a program of a module, and compares the strides of all values."""
    held: dict[str, Any] = {**program.constants}
    held |= {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    run = Strides(graph_module(program, lambda one: held[one.name], torch.device("cpu")), sizes)
    run.run(*program.signature.flatten((), call))  # type: ignore[no-untyped-call]
    assert run.count
    assert not run.other


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn([one for one in FIRST if one not in OTHERWISE], 4))
@torch.no_grad()
def test_values_have_the_strides_that_the_trace_says(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    call = call if name == FRAMES else of_one(call)
    check(trace(module, (), call), module, call, {})


@pytest.mark.fifth
@pytest.mark.parametrize("name", ["AutoencoderKL-encode", "AutoencoderKL-decode", "UNet2DModel"])
@torch.no_grad()
def test_where_sizes_are_dynamic_they_have_those_of_every_size(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    call = of_one(call)
    picture = next(key for key, value in call.items() if isinstance(value, torch.Tensor) and value.dim() == 4)
    sides = {2: Dim.AUTO, 3: Dim.AUTO}
    program = trace(module, (), call, dynamic_shapes={one: sides if one == picture else None for one in call})
    assert program.symbols
    for factor in (1, 2):
        larger = call[picture].repeat(1, 1, factor, factor)
        check(program, module, {**call, picture: larger}, {one: factor * size for one, size in program.symbols.items()})

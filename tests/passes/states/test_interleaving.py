"""What is written in turns into new memory is stacked, with the same bits; whatever else is written stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dovetail.compiler.ir.aliasing import writes
from dovetail.compiler.states.strategy import name_of
from dovetail.passes.states.interleaving import stack_turns
from dovetail.passes.verify.verifier import verify
from testbed.zoo.everything import TINY

from .groups import traced


class Turns(nn.Module):
    """Features of which every so many-th is written by itself."""

    def __init__(self, count: int = 2, dtype: torch.dtype = torch.float32, axis: int = -1) -> None:
        super().__init__()
        self.count, self.dtype, self.axis = count, dtype, axis

    def forward(self, x: Tensor) -> Tensor:
        parts = x.to(self.dtype).unflatten(self.axis, (-1, self.count)).unbind(self.axis + (self.axis >= 0))
        found = torch.empty_like(x)
        for at in reversed(range(self.count)):
            index = [slice(None)] * x.dim()
            index[self.axis] = slice(at, None, self.count)
            found[tuple(index)] = parts[at] * (at + 1)
        return found + x


class ReadBetween(Turns):
    """Somebody reads the memory before it is full."""

    def forward(self, x: Tensor) -> Tensor:
        found = torch.empty_like(x)
        found[..., 0::2] = x[..., 0::2]
        between = found[..., 0:2] * 1
        found[..., 1::2] = x[..., 1::2]
        return found + between.sum()


class WrittenBetween(Turns):
    """What is written has other numbers at the second turn."""

    def forward(self, x: Tensor) -> Tensor:
        found, half = torch.empty_like(x), x[..., 0::2] * 1.5
        found[..., 0::2] = half
        half.mul_(-1)
        found[..., 1::2] = half
        return found


class HalfWritten(nn.Module):
    """One turn is missing of three."""

    def forward(self, x: Tensor) -> Tensor:
        found = torch.empty_like(x)
        found[..., 0::3] = x[..., 0::3]
        found[..., 1::3] = x[..., 1::3]
        return found


@pytest.mark.parametrize(("count", "axis"), [(2, -1), (3, -1), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_turns_are_stacked_with_the_same_bits(count: int, axis: int, dtype: torch.dtype) -> None:
    module, x = Turns(count, dtype, axis), torch.randn(3, 12, 6).to(torch.bfloat16 if count == 2 else torch.float32)
    program = traced(module, x)
    assert any(map(writes, program.ops()))
    assert stack_turns(program) == 1
    assert not any(map(writes, program.ops()))
    assert "stack" in map(name_of, program.ops())
    verify(program)
    values = dict(zip(program.inputs(), [x], strict=True))
    for node in program.ops():
        args = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args[0], **args[1])  # type: ignore[operator]
    (result,) = program.output.args[0]  # type: ignore[misc]
    assert torch.equal(values[result], module(x))


@pytest.mark.parametrize(
    "module", [ReadBetween(), WrittenBetween(), HalfWritten()], ids=["read between", "written between", "half written"]
)
def test_other_writes_stay(module: nn.Module) -> None:
    program = traced(module, torch.randn(2, 6))
    names = [node.name for node in program.ops()]
    assert stack_turns(program) == 0
    assert [node.name for node in program.ops()] == names


@pytest.mark.fifth
def test_attention_of_a_published_class_is_no_longer_written() -> None:
    module, call = TINY["WanTransformer3DModel"].make(torch.float32)
    program = traced(module.eval(), **call)
    assert stack_turns(program) > 0
    assert not any(map(writes, program.ops()))
    verify(program)

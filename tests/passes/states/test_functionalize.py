"""What is written yields new values with the same bits, whatever is written where and read when; some writes stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dovetail.compiler.ir.aliasing import writes
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.passes.states.forms import put_in_form
from dovetail.passes.states.functionalize import functionalize
from dovetail.passes.verify.verifier import verify
from testbed.zoo.everything import TINY

from .groups import traced

PARTS = {
    "all": lambda one: one,
    "rows behind the second": lambda one: one[2:],
    "columns between": lambda one: one[:, 1:4],
    "last column": lambda one: one[..., -1],
    "a row": lambda one: one[3],
    "part of a part": lambda one: one[1:5][:, :3],
    "column of rows": lambda one: one[1:3, 2],
    "an element": lambda one: one[1, 1],
    "every other row": lambda one: one[::2],
    "turned": lambda one: one.t(),
    "half": lambda one: one.chunk(2, 1)[1],
}
WRITES = {
    "add_": lambda part, x: part.add_(x.mean()),
    "mul_ by itself": lambda part, x: part.mul_(part),
    "div_": lambda part, x: part.div_(3),
    "copy_": lambda part, x: part.copy_(part.clone() * 2),
    "copy_ of a number for each column": lambda part, x: part.copy_(part.double().amax(-1, keepdim=part.dim() > 0)),
    "fill_": lambda part, x: part.fill_(7),
    "fill_ with a tensor": lambda part, x: part.fill_(x.amax()),
    "zero_": lambda part, x: part.zero_(),
    "masked_fill_": lambda part, x: part.masked_fill_(part > 0.5, -1),
    "addcmul_ with a factor": lambda part, x: part.addcmul_(part, part, value=0.5),
    "pow_ with a number": lambda part, x: part.pow_(2),
    "pow_ with a tensor": lambda part, x: part.pow_(torch.full_like(part, 2)),
}


class Written(nn.Module):
    """Writes into parts of a value in turn, and reads parts that were named before, between and after."""

    def __init__(self, steps: list[tuple[str, str, str]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.steps, self.dtype = steps, dtype

    def forward(self, x: Tensor) -> list[Tensor]:
        value = (x * 2).to(self.dtype) + 1
        named = [PARTS[later](value) for _, _, later in self.steps]
        found = []
        for part, write, later in self.steps:
            yielded = WRITES[write](PARTS[part](value), x)
            found += [named[0] * 3, yielded + 1, PARTS[later](value).exp()]
        return [one * 5 for one in named] + found + [value + 0]


def computed(program: Program, *given: Tensor) -> list[Tensor]:
    """What a program yields, operation by operation; each value lies as the program says."""
    values = dict(zip(program.inputs(), given, strict=True))
    for node in program.ops():
        args = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args[0], **args[1])  # type: ignore[operator]
        for kind in tensors_of(node) if isinstance(values[node], Tensor) else ():
            assert values[node].stride() == kind.stride, node
    return [values[one] for one in program.output.args[0]]  # type: ignore[union-attr, misc, index]


@pytest.mark.fifth
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(*map(st.sampled_from, (list(PARTS), list(WRITES), list(PARTS)))), min_size=1, max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_whatever_is_written_the_bits_are_those_of_the_module(
    steps: list[tuple[str, str, str]], dtype: torch.dtype
) -> None:
    module, x = Written(steps, dtype), torch.randn(6, 6)
    program = traced(module, x)
    functionalize(program)
    verify(program)
    assert all(map(torch.equal, computed(program, x), module(x)))


@pytest.mark.few(quick=40)
@pytest.mark.parametrize("part", [name for name in PARTS if name not in ("every other row", "turned", "half")])
@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_into_stretches_and_elements_of_a_value(part: str, write: str) -> None:
    module, x = Written([(part, write, "all")]), torch.randn(6, 6)
    program = traced(module, x)
    assert functionalize(program) == 1
    assert not any(map(writes, program.ops()))
    verify(program)
    assert all(map(torch.equal, computed(program, x), module(x)))


class Beside(nn.Module):
    """Writes into rows of which others are read that are no part of the value."""

    def forward(self, x: Tensor) -> Tensor:
        value = x * 2
        odd, half = value[::2], value[1:]
        odd.mul_(3)
        return half + 1


def test_a_write_stays_of_which_another_view_is_read() -> None:
    program = traced(Beside(), torch.randn(6, 6))
    names = [node.name for node in program.ops()]
    assert functionalize(program) == 0
    assert [node.name for node in program.ops()] == names


class Placed(nn.Module):
    """Writes into a row of which the memory is also named by its place in the storage, before and after."""

    def __init__(self, is_before: bool) -> None:
        super().__init__()
        self.is_before = is_before

    def forward(self, x: Tensor) -> list[Tensor]:
        row = (x * 2)[3]
        first = row.as_strided((6,), (1,), 0) if self.is_before else None
        row.mul_(3)
        return [(row.as_strided((6,), (1,), 0) if first is None else first) + 1]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_write_stays_where_memory_is_named_by_its_place_in_a_storage(is_before: bool) -> None:
    module, x = Placed(is_before), torch.randn(6, 6)
    program = traced(module, x)
    assert functionalize(program) == 0
    assert all(map(torch.equal, computed(program, x), module(x)))


OTHERS = {
    "turned": lambda x: x.double().add(1).transpose(-1, -2),
    "channels last": lambda x: x.double().contiguous(memory_format=torch.channels_last),
    "a column": lambda x: x.double()[..., :1],
    "a channel": lambda x: x.double()[:, :1].transpose(-1, -2),
    "half as wide": lambda x: x.half(),
}


class Copied(nn.Module):
    """Copies numbers of another dtype, which lie otherwise, over a value that is read as one row."""

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other

    def forward(self, x: Tensor) -> list[Tensor]:
        value = x * 2
        row = value.view(-1)
        value.copy_(OTHERS[self.other](x))
        return [row + 1, value.view(-1) * 3]


@pytest.mark.parametrize("other", OTHERS)
def test_numbers_of_another_dtype_are_copied_in_the_order_of_the_value(other: str) -> None:
    module, x = Copied(other), torch.randn(2, 3, 6, 6)
    program = traced(module, x)
    assert functionalize(program) == 1
    verify(program)
    assert all(map(torch.equal, computed(program, x), module(x)))


@pytest.mark.fifth
@pytest.mark.parametrize("name", ["CogView4Transformer2DModel", "HunyuanVideoTransformer3DModel", "UMT5EncoderModel"])
def test_a_published_class_writes_nothing_where_devices_compute_together(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    program = traced(module.eval(), **call)
    assert any(map(writes, program.ops()))
    put_in_form(program)
    assert not any(map(writes, program.ops()))
    verify(program)

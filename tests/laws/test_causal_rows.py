"""Causal attention of which devices have rows of queries is the whole, to the bit where rows are cut as they are."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import Node
from torch.nn.functional import scaled_dot_product_attention

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.ops import CAUSAL_ATTENTION_OF_ROWS
from dovetail.compiler.ir.program import Program, state_of
from dovetail.compiler.ir.state import Split
from dovetail.compiler.states.parts import call_on
from dovetail.compiler.states.strategy import Strategy, name_of
from dovetail.compiler.states.table import strategies
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.lowering.verification import Verify
from dovetail.passes.placement.assignment import Assign
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.placement.cut import Cut
from dovetail.passes.placement.pin import Pin

from .parts import is_near, run_in_parts, values_in
from .test_shared import Share, expect_sound

ATTENTION = "scaled_dot_product_attention"


class Causal(nn.Module):
    """Attention of queries to the keys before them."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gqa = query.shape[1] != key.shape[1]
        found = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale, enable_gqa=gqa)
        return found * 2


def operands(rows: int, keys: int, heads: int, of_keys: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    drawn = torch.Generator().manual_seed(rows)
    shapes = (heads, rows), (of_keys, keys), (of_keys, keys)
    return tuple(torch.randn(1, *shape, 16, generator=drawn, dtype=torch.float64).to(dtype) for shape in shapes)


def by_rows(node: Node, state: Split) -> Strategy | None:
    return next((way for way in strategies(node, lambda _: [state]) if way.results == (state,)), None)


def in_parts(args: tuple[Tensor, ...], state: Split, scale: float | None) -> tuple[Tensor, Tensor, list[Tensor]]:
    """An attention in parts, as a whole, and what it is given."""
    module = Causal(scale)
    program = trace(module, args)
    for node, values in values_in(program, module, args, {}):
        if name_of(node) == ATTENTION:
            chosen = by_rows(node, state)
            assert chosen is not None
            return run_in_parts(node, chosen, len(state.segments[0]), values)[0], values[node], list(values.values())
    raise AssertionError("no attention was traced")


@pytest.mark.fifth
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=3).filter(any),
    st.integers(1, 30),
    st.sampled_from([(2, 2), (4, 2)]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_rows_of_causal_attention_are_those_of_the_whole(
    lengths: list[int], keys: int, heads: tuple[int, int], scale: float | None, dtype: torch.dtype
) -> None:
    ends = [0, *(sum(lengths[: at + 1]) for at in range(len(lengths)))]
    args = operands(ends[-1], keys, *heads, dtype)
    found, whole, given_to = in_parts(args, Split(2, (tuple(pairwise(ends)),)), scale)
    assert is_near(found, whole, given_to)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [77, 128, 512])
def test_rows_have_the_bits_of_the_whole(rows: int, dtype: torch.dtype) -> None:
    threads, middle = torch.get_num_threads(), rows // 2 // 32 * 32
    torch.set_num_threads(1)
    try:
        found, whole, _ = in_parts(operands(rows, rows, 4, 4, dtype), Split(2, (((0, middle), (middle, rows)),)), None)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found, whole)


def test_queries_of_two_stretches_stay_together() -> None:
    program = trace(Causal(), operands(8, 8, 2, 2, torch.float32))
    node = next(one for one in program.ops() if name_of(one) == ATTENTION)
    assert by_rows(node, Split(2, (((0, 2), (2, 4)), ((4, 6), (6, 8))))) is None


def test_a_program_of_causal_rows_is_sound() -> None:
    """Its peak is that predicted, with the masks; its text says it, and the verifier accepts it."""
    args, state = operands(48, 48, 2, 2, torch.float64), Split(2, (((0, 32), (32, 48)),))
    module = Causal()
    program = trace(module, (), dict(zip(("query", "key", "value"), args, strict=True)))
    program.rig = Rig.parse("sim0=1GiB,sim1=1GiB")

    def chooser(_: Program) -> object:
        return lambda node: by_rows(node, state)

    found = PassManager([FindBlocks(), Assign({}), Pin(), Share(chooser), Cut(), Lower(), Verify()]).run(program)  # type: ignore[arg-type]
    (node,) = [one for one in found.ops() if name_of(one) == ATTENTION]
    assert state_of(node) == state
    assert {call_on(node, device)[0] for device in found.devices} == {CAUSAL_ATTENTION_OF_ROWS}
    expect_sound(module, dict(zip(("query", "key", "value"), args, strict=True)), found)

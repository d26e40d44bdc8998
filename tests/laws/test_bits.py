"""Parts that are said to keep bits keep them: each is what the whole has there, to the last bit, with one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional

from dovetail.compiler.ir.state import Split
from dovetail.compiler.states.strategy import Strategy, name_of, shape_of
from dovetail.compiler.states.table import strategies
from dovetail.passes.states.candidates import QUERIES
from dovetail.passes.states.exactness import keeps_bits
from dovetail.passes.states.shares import cut_in_units
from testbed.differences import differences
from testbed.mode_cells import Cell
from testbed.spatial import one_thread
from tests.passes.states.groups import traced

from .parts import run_in_parts, values_in

few = settings(max_examples=max(15, settings().max_examples // 5))

SHARES = st.sampled_from([(1, 1), (3, 1), (5, 3, 2), (1, 1, 1, 1), (2, 0, 1)])
Case = tuple[Callable[[Tensor], Tensor], Tensor, int, int]
"""A function of one operand, and the axis along which that is split, in a unit."""


class Of(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@st.composite
def attentions(draw: st.DrawFn) -> Case:
    """Attention whose queries are cut on multiples of blocks."""
    count, keys, size = draw(st.integers(2 * QUERIES, 900)), draw(st.integers(1, 90)), draw(st.sampled_from([16, 64]))
    k, v = torch.randn(2, 2, keys, size), torch.randn(2, 2, keys, size)
    return lambda q: functional.scaled_dot_product_attention(q, k, v), torch.randn(2, 2, count, size), 2, QUERIES


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Convolutions of pictures of a batch, and of rows of one."""
    count, into, out = draw(st.integers(1, 4)), draw(st.sampled_from([3, 8, 32])), draw(st.sampled_from([4, 16]))
    size, kernel, stride = draw(st.integers(9, 60)), draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))
    weight, x = torch.randn(out, into, kernel, kernel), torch.randn(count, into, size, size)
    axis = 0 if count > 1 else 2
    return lambda x: functional.conv2d(x, weight, None, stride, kernel // 2), x, axis, 1


@st.composite
def films(draw: st.DrawFn) -> Case:
    """Convolutions of films, of which a device may have but one."""
    count, size, frames = draw(st.integers(2, 3)), draw(st.integers(5, 24)), draw(st.integers(2, 9))
    weight, x = torch.randn(8, 8, 3, 3, 3), torch.randn(count, 8, frames, size, size)
    return lambda x: functional.conv3d(x, weight, None, 1, 1), x, 0, 1


@st.composite
def activations(draw: st.DrawFn) -> Case:
    """Activations, of tokens or of channels."""
    function = draw(st.sampled_from([functional.silu, functional.gelu, functional.mish, torch.sigmoid]))
    shape = draw(st.lists(st.integers(1, 40), min_size=3, max_size=3).filter(lambda one: max(one) > 1))
    axis = draw(st.sampled_from([at for at, size in enumerate(shape) if size > 1]))
    return function, torch.randn(*shape), axis, draw(st.sampled_from([1, 8, 32]))


@st.composite
def sums(draw: st.DrawFn) -> Case:
    """Sums and means of channels, which lie outside what they are taken for, or inside."""
    function = draw(st.sampled_from([torch.sum, torch.mean, torch.linalg.vector_norm]))
    shape = [draw(st.integers(1, 3)), draw(st.integers(2, 70)), draw(st.integers(2, 40)), draw(st.integers(1, 40))]
    gone = draw(st.sampled_from([1, 3]))
    x = torch.randn(*shape)
    axis = draw(st.sampled_from([at for at, size in enumerate(shape) if size > 1 and at != gone]))
    return lambda x: function(x, dim=gone), x, axis, draw(st.sampled_from([1, 32]))


def parts_of(case: Case, shares: Sequence[int]) -> tuple[Node, list[Strategy], dict[Node, object]]:
    """The operation of a case, the ways in which its operand is split so, and what it has."""
    function, x, axis, unit = case
    program = traced(Of(function), x)

    def offers(one: Node) -> list[Split]:
        sizes = shape_of(one)
        is_cut = axis < len(sizes) and sizes[axis] > 1
        return [Split(axis, (cut_in_units(sizes[axis], shares, unit),))] if is_cut else []

    with torch.no_grad():
        *_, (node, values) = values_in(program, Of(function), (x,), {})
    ways = [way for way in strategies(node, offers) if any(isinstance(one, Split) for one in way.results)]
    return node, ways, values


CASES = st.one_of(attentions(), convolutions(), films(), activations(), sums())


@pytest.mark.fifth
@given(CASES, SHARES)
@few
def test_what_is_said_to_keep_bits_keeps_them(case: Case, shares: tuple[int, ...]) -> None:
    node, ways, values = parts_of(case, shares)
    with one_thread():
        whole = case[0](case[1])
        for way in ways:
            if keeps_bits(node, way):
                (found,) = run_in_parts(node, way, len(shares), values)
                assert torch.equal(found, whole), f"{name_of(node)} {tuple(case[1].shape)}: {way}"


@pytest.mark.parametrize(
    ("case", "is_kept"),
    [
        ((lambda x: functional.conv2d(x, torch.ones(4, 4, 3, 3)), torch.randn(2, 4, 20, 20), 0, 1), False),
        ((lambda x: functional.conv2d(x, torch.ones(4, 4, 3, 3)), torch.randn(2, 4, 80, 80), 0, 1), True),
        ((lambda x: functional.conv2d(x, torch.ones(4, 4, 3, 3)), torch.randn(4, 4, 20, 20), 0, 1), True),
        ((functional.silu, torch.randn(1, 2, 20), 1, 1), False),
        ((functional.silu, torch.randn(1, 3, 32), 1, 1), True),
        ((lambda x: x.mean(1), torch.randn(1, 8, 3, 17), 2, 1), False),
        ((lambda x: x.mean(-1), torch.randn(1, 8, 3, 17), 2, 1), True),
    ],
)
def test_operations_are_kept_whole_where_parts_round_otherwise_and_only_there(case: Case, is_kept: bool) -> None:
    node, ways, _ = parts_of(case, (1, 1))
    assert ways
    assert [keeps_bits(node, way) for way in ways] == [is_kept] * len(ways)


def test_the_last_block_of_queries_of_a_device_has_few_rows_where_that_of_all_has() -> None:
    for count, is_kept in ((291, False), (288, True), (300, True), (129, True)):
        k = torch.randn(1, 2, 8, 16)
        case = (
            (lambda q, k=k: functional.scaled_dot_product_attention(q, k, k)),
            torch.randn(1, 2, count, 16),
            2,
            QUERIES,
        )  # type: ignore[misc]
        node, ways, _ = parts_of(case, (1, 1))
        assert [keeps_bits(node, way) for way in ways] == [is_kept] * len(ways)


@pytest.mark.fifth
def test_it_is_told_which_operations_have_other_bits_in_parts() -> None:
    cell = Cell("CLIPTextModel", "tensor", (1, 1), "fp32", None)
    with one_thread():
        assert {one.name for one in differences(cell)} == {"linear"}
        assert not differences(replace(cell, mode="sequence"))

"""States that are wanted keep units, and go where operations cut and join."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.state import WHOLE, Split
from dovetail.compiler.states.strategy import name_of
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.candidates import wanted, ways
from dovetail.passes.states.exactness import VECTORS
from dovetail.passes.states.folding import folded
from dovetail.passes.states.modes import posed
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from testbed.zoo.everything import TINY

from .groups import Attention, Gated, group, traced


def _splits(program: Program, name: str, shares: tuple[int, ...]) -> list[Split]:
    """The ways in which the results of a kind of operation may be split."""
    whole = folded(program)
    every = ways(whole, shares, {}, wanted(whole, shares))
    states = (way.results[0] for node, some in every.items() if name_of(node) == name for way in some)
    return [state for state in states if isinstance(state, Split)]


class Joint(nn.Module):
    """Attention among the tokens of a text and of a picture, each of which has matmuls of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture = nn.Linear(64, 192), nn.Linear(64, 192)
        self.text_out, self.picture_out = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, text: Tensor, picture: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.text(text), self.picture(picture)], 1)
        q, k, v = both.view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()
        found = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        count = text.shape[1]
        return text + self.text_out(found[:, :count]), picture + self.picture_out(found[:, count:])


class Rotated(nn.Module):
    """Attention whose queries and keys are rotated in pairs before heads are told apart, maybe in written memory."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k = (self.rotated(one(x), angles) for one in (self.q, self.k))
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in (q, k, self.v(x)))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def rotated(self, x: Tensor, angles: Tensor) -> Tensor:
        """Pairs of features, turned by angles."""
        one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()
        if not self.in_place:
            return torch.stack(turned, -1).flatten(2)
        made = torch.empty_like(x)
        made[..., 0::2], made[..., 1::2] = turned
        return made


def test_queries_are_cut_on_multiples_of_32_where_there_are_enough() -> None:
    states = _splits(traced(Attention(4, 4, 16), torch.randn(1, 200, 64)), "scaled_dot_product_attention", (5, 3))
    rows = [state for state in states if state.axis == 2]
    assert rows
    assert all(bounds[0] % 32 == 0 for state in rows for segment in state.segments for bounds in segment)


def test_no_device_has_fewer_than_four_rows_of_a_matmul() -> None:
    few, enough = (_splits(traced(Gated(16), torch.randn(1, tokens, 16)), "linear", (1, 1)) for tokens in (7, 8))
    assert not [state for state in few if state.axis == 1]
    assert [state for state in enough if state.axis == 1]


def test_text_and_picture_are_split_each_by_itself() -> None:
    program = traced(Joint(), torch.randn(1, 64, 64), torch.randn(1, 256, 64))
    states = _splits(program, "scaled_dot_product_attention", (1, 1))
    assert Split(2, (((0, 32), (32, 64)), ((64, 192), (192, 320)))) in states
    found = solve(program, group(1, 1), "sequence")
    assert isinstance(found, Solution)
    inner = [change for change in found.account.changes if change.readers != (program.output,)]
    assert len(inner) <= 2


def test_heads_that_lie_packed_with_others_are_split_in_three_segments() -> None:
    states = _splits(traced(Joint(), torch.randn(1, 64, 64), torch.randn(1, 256, 64)), "linear", (3, 1))
    segments = [state.segments for state in states if state.axis == 2 and len(state.segments) == 3]
    assert (((0, 48), (48, 64)), ((64, 112), (112, 128)), ((128, 176), (176, 192))) in segments


@pytest.mark.fifth
def test_rotated_queries_stay_with_their_heads() -> None:
    for in_place in (False, True):
        program = traced(Rotated(in_place), torch.randn(1, 32, 64), torch.randn(32, 32))
        found = solve(program, group(1, 1), "tensor")
        assert isinstance(found, Solution)
        between = [change for change in found.account.changes if change.readers != (program.output,)]
        assert between == [], in_place


def test_no_device_has_an_activation_whose_row_ends_within_a_vector_where_bits_are_kept() -> None:
    """Kernels compute so many numbers at once, and what is left of a row one by one, which rounds otherwise."""
    for features in (20, 64):
        program = traced(nn.Sequential(nn.Linear(16, features), nn.SiLU()), torch.randn(1, 12, 16))
        question = posed(program, group(2, 1), "sequence").problem
        (silu,) = (node for node in question.ways if name_of(node) == "silu")
        inner = [
            state.length(member) * (features if state.axis == 1 else 1)
            for way in question.ways[silu]
            for state in way.results
            if isinstance(state, Split)
            for member in (0, 1)
        ]
        assert all(length % VECTORS == 0 for length in inner)
        assert bool(inner) == (features == 64)


@pytest.mark.fifth
def test_patches_of_pictures_are_split_by_the_batch() -> None:
    """What makes them of an input are views alone, in which no parameter has a part."""
    module, call = TINY["LuminaNextDiT2DModel"].make(torch.float32)
    program = trace(module, (), call)
    Simplify().run(program)
    found = solve(program, group(1, 1), "batch")
    assert isinstance(found, Solution)
    (first, *_) = (node for node in found.strategies if name_of(node) == "linear")
    assert found.strategies[first].results == (Split(0, (((0, 1), (1, 2)),)),)


class Prompted(nn.Module):
    """Attention over tokens of a prompt that one matmul of a row a picture makes."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.q, self.k, self.out = (nn.Linear(32, size) for size in (16 * 32, 32, 32, 32))

    def forward(self, x: Tensor, prompt: Tensor) -> Tensor:
        keys = self.k(self.prompt(prompt).reshape(-1, 16, 32))
        q, k = (one.unflatten(-1, (2, 16)).transpose(1, 2) for one in (self.q(x), keys))
        return self.out(functional.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2))


def test_what_one_row_a_picture_makes_is_split_by_pictures_where_it_has_many() -> None:
    program = traced(Prompted(), torch.randn(2, 64, 32), torch.randn(2, 32))
    question = posed(program, group(1, 1, 1, 1), "batch").problem
    linears = [some for node, some in question.ways.items() if name_of(node) == "linear"]
    rows, *others = [any(way.results[0] != WHOLE for way in some) for some in linears]
    assert sorted([rows, *others]) == [False, True, True, True], "but the one of few rows"


def test_no_device_has_but_a_few_channels_of_a_convolution_that_has_many() -> None:
    """Kernels of one to three channels are up to three times as far from exact as those of eight."""
    for channels, lengths in ((8, {0, 4}), (6, {2}), (16, {4, 5, 6, 7, 8})):
        module = nn.Sequential(nn.Conv2d(8, channels, 3), nn.GroupNorm(channels, channels), nn.Conv2d(channels, 8, 3))
        found = _splits(traced(module, torch.randn(1, 8, 12, 12)), "conv2d", (1, 1, 1))
        of_channels = [one for one in found if one.axis == 1 and one.size == channels]
        assert of_channels
        assert {one.length(member) for one in of_channels for member in range(3)} <= lengths

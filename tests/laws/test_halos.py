"""What is split in space is the whole: devices get the borders that their windows read, and zeros beyond the ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import Node

from dovetail.compiler.errors import TextError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.boxes import landings, zeros
from dovetail.compiler.ir.program import state_of
from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.ir.state import WHOLE, Halo, Split, State
from dovetail.compiler.states.strategy import Strategy, name_of
from dovetail.compiler.states.table import local_call, strategies, tells_all
from dovetail.compiler.states.windows import Window
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.compiler.text.tokens import Line
from dovetail.compiler.text.weight_text import read_states
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from dovetail.passes.verify.deep import verify_deep
from testbed.sharing import slow_group
from testbed.spatial import run, split

from .parts import cut, is_near, run_in_parts, values_in

few = settings(max_examples=max(15, settings().max_examples // 5))

SHARES = [(1, 1), (3, 1), (5, 3, 2), (1, 0), (0, 1, 1), (1, 1, 1, 1), (1, 0, 2)]
FUNCTIONS: Mapping[tuple[bool, int], Callable[..., torch.Tensor]] = {
    (False, 1): nn.functional.conv1d,
    (False, 2): nn.functional.conv2d,
    (False, 3): nn.functional.conv3d,
    (True, 1): nn.functional.conv_transpose1d,
    (True, 2): nn.functional.conv_transpose2d,
    (True, 3): nn.functional.conv_transpose3d,
}


class Of(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """A convolution of some axes, with its operand."""
    axes, is_transposed = draw(st.integers(1, 3)), draw(st.booleans())
    each = st.lists(st.integers(1, 3), min_size=axes, max_size=axes)
    kernel, stride, dilation = draw(each), draw(each), draw(each)
    reach = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
    groups = draw(st.sampled_from([1, 2]))
    padding = [draw(st.integers(0, one if is_transposed else one + 1)) for one in reach]
    sizes = [draw(st.integers(one + 1, one + 9)) for one in reach]
    more = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if is_transposed:
        more["output_padding"] = [draw(st.integers(0, max(one) - 1)) for one in zip(stride, dilation, strict=True)]
    weight, bias = torch.rand((2, 2 // (1 if is_transposed else groups), *kernel)), torch.rand(2)
    bias = bias if not is_transposed else torch.rand(2 * groups)
    function = FUNCTIONS[is_transposed, axes]
    weight, bias = weight.double(), bias.double()
    return Of(lambda x: function(x, weight, bias, **more)), torch.rand((1, 2, *sizes), dtype=torch.float64)


@st.composite
def paddings(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """What pads some axes, with its operand."""
    mode, axes = draw(st.sampled_from(["constant", "reflect", "replicate"])), draw(st.integers(1, 2))
    pads = draw(st.lists(st.integers(0, 2), min_size=2 * axes, max_size=2 * axes).filter(any))
    x = torch.rand((1, 2, *draw(st.lists(st.integers(16, 20), min_size=axes, max_size=axes))), dtype=torch.float64)
    return Of(lambda x: nn.functional.pad(x, pads, mode)), x


@st.composite
def resamplings(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """What makes a picture, a row or a film larger or smaller, with its operand."""
    axes = draw(st.integers(1, 3))
    x = torch.rand((1, 4, *draw(st.lists(st.integers(2, 8), min_size=axes, max_size=axes))), dtype=torch.float64)
    kind = draw(st.sampled_from(["factor", "size", "exact", "pool", "shuffle", "unshuffle"]))
    if kind == "pool":
        size, stride = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        function = (nn.functional.avg_pool1d, nn.functional.avg_pool2d, nn.functional.avg_pool3d)[axes - 1]
        return Of(lambda x: function(x, size, stride)), x
    if kind == "shuffle":
        return Of(lambda x: nn.functional.pixel_shuffle(x, 2)), torch.rand((1, 8, 3, 5), dtype=torch.float64)
    if kind == "unshuffle":
        return Of(lambda x: nn.functional.pixel_unshuffle(x, 2)), torch.rand((1, 2, 6, 8), dtype=torch.float64)
    mode, factor = "nearest-exact" if kind == "exact" else "nearest", draw(st.sampled_from([1.5, 2, 3, 0.5]))
    if kind == "size":
        sizes = [draw(st.integers(1, 3)) * size for size in x.shape[2:]]
        return Of(lambda x: nn.functional.interpolate(x, size=sizes, mode=mode)), x
    return Of(lambda x: nn.functional.interpolate(x, scale_factor=factor, mode=mode)), x


def spatial(node: Node, shares: Sequence[int]) -> Callable[[Node], list[State]]:
    """States in which the axes behind the second of a result and of its operand are split, evenly and at random."""

    def offers(one: Node) -> list[State]:
        sizes = one.meta["value"].sizes if one in (node, node.args[0]) else ()
        return [Split(axis, (bounds_of(size, shares),)) for axis, size in enumerate(sizes) if axis > 1]

    return offers


def expect_whole(module: nn.Module, x: torch.Tensor, shares: Sequence[int]) -> list[Strategy]:
    """Every strategy of an operation in space gives the whole, and its states say it; returns them."""
    program = trace(module, (x,))
    found = []
    for node, values in values_in(program, module, (x,), {}):
        for way in list(strategies(node, spatial(node, shares)))[1:]:
            assert is_near(run_in_parts(node, way, len(shares), values)[0], values[node], values.values()), str(way)
            assert tells_all(node, way)
            found.append(way)
    return found


@pytest.mark.fifth
@given(convolutions(), st.sampled_from(SHARES))
@few
def test_convolutions_of_parts_with_their_borders_are_the_whole(
    drawn: tuple[nn.Module, torch.Tensor], shares: tuple[int, ...]
) -> None:
    module, x = drawn
    ways = expect_whole(module, x, shares)
    axes = {state.axis for way in ways for state in way.results if isinstance(state, Split)}
    assert axes >= set(range(2, x.dim())), "every axis can be split"


@pytest.mark.fifth
@given(paddings(), st.sampled_from(SHARES))
@few
def test_what_is_padded_in_parts_is_the_whole(drawn: tuple[nn.Module, torch.Tensor], shares: tuple[int, ...]) -> None:
    assert expect_whole(*drawn, shares)


@pytest.mark.fifth
@given(st.data(), st.integers(1, 3), st.sampled_from(SHARES))
@few
def test_what_pads_a_border_yields_what_a_device_has_of_the_whole_with_its_border(
    data: st.DataObject, axes: int, shares: tuple[int, ...]
) -> None:
    pads = data.draw(st.lists(st.integers(0, 2), min_size=2 * axes, max_size=2 * axes))
    x, axis, extent = torch.rand(1, 2, *([6] * axes)), data.draw(st.integers(2, 1 + axes)), data.draw(st.integers(2, 4))
    module = Of(lambda x: nn.functional.pad(x, pads))
    program, whole = trace(module, (x,)), module(x)
    (node,), (given_x,) = program.ops(), program.inputs()
    around = data.draw(st.integers(0, extent - 1))
    made = whole.shape[axis] + 2 * around - extent + 1
    border = Window(whole.shape[axis], made, extent, 1, around).read(axis, bounds_of(made, shares))
    for way in strategies(node, lambda one: [border] if one is node else []):
        if way.results == (border,):
            assert tells_all(node, way)
            for member in range(len(shares)):
                target, (_, *rest), kwargs = local_call(node, way, member)
                found = target(cut(x, way.takes(given_x), member, 1), *rest, **kwargs)
                assert torch.equal(found, cut(whole, border, member, 1))
            break
    else:
        assert not isinstance(border, Halo) or not any(map(any, border.zeros)), "zeros are brought with the border"


def test_a_border_is_brought_to_what_is_padded_and_less_is_sent() -> None:
    weight = torch.rand(2, 2, 3, 3, 3)

    def causal(x: torch.Tensor) -> torch.Tensor:
        value = x.sigmoid()
        between = value.exp()
        return between + nn.functional.conv3d(nn.functional.pad(value, (1, 1, 1, 1, 2, 0)), weight)

    x = torch.rand(1, 2, 1, 16, 8)
    program = split(Of(causal), {"x": x}, (1, 1))
    (pad,) = (node for node in program.ops() if name_of(node) == "pad")
    assert isinstance(state_of(pad), Halo)
    (found,) = (outcome := run(Of(causal), {"x": x}, program)).yielded
    assert torch.allclose(found, causal(x))
    row, half = 2 * 8 * 4, 2 * 8 * 8 * 4
    assert outcome.sent == outcome.planned == half + 2 * row + half, (
        "half of the picture, a row each way, and the result"
    )
    solved = solve(trace(Of(causal), (x,)), slow_group((1, 1)), "spatial")
    assert isinstance(solved, Solution)
    assert [sum(one.sent) for one in solved.account.changes if isinstance(one.target, Halo)] == [2 * row]
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    assert verify_deep(program) > 0


@pytest.mark.fifth
@given(resamplings(), st.sampled_from(SHARES))
@few
def test_what_is_resampled_in_parts_is_the_whole(
    drawn: tuple[nn.Module, torch.Tensor], shares: tuple[int, ...]
) -> None:
    expect_whole(*drawn, shares)


def test_even_shares_of_a_picture_are_enlarged_where_they_are() -> None:
    ways = expect_whole(Of(lambda x: nn.functional.interpolate(x, scale_factor=2.0)), torch.rand(1, 2, 8, 8), (1, 1))
    assert any(str(way).startswith("split 2 [0:8, 8:16] from %x split 2 [0:4, 4:8]") for way in ways)


def test_a_causal_convolution_reads_of_its_neighbour_on_one_side() -> None:
    """Frames are padded in front alone; then a device reads the last two of the one before it, and none behind."""
    weight = torch.rand(2, 2, 3, 3, 3, dtype=torch.float64)

    def causal(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv3d(nn.functional.pad(x, (1, 1, 1, 1, 2, 0)), weight)

    x = torch.rand(1, 2, 8, 4, 4, dtype=torch.float64)
    program = trace(Of(causal), (x,))
    pad, conv = (node for node in program.ops() if name_of(node) in ("pad", "conv3d"))
    given_frames = {program_input: [Split(2, (((0, 4), (4, 8)),))] for program_input in program.inputs()}
    (grown,) = [way.results[0] for way in strategies(pad, lambda one: given_frames.get(one, [])) if way.operands]
    assert str(grown) == "split 2 [0:6, 6:10]"
    (way,) = [one for one in strategies(conv, lambda one: [grown] if one is pad else []) if one.operands]
    assert str(way) == f"split 2 [0:4, 4:8] from %{pad.name} halo 2 of 10 [0:6, 4:10]"
    expect_whole(Of(causal), x, (1, 1))


@st.composite
def changes(draw: st.DrawFn) -> tuple[State, Halo, tuple[int, ...]]:
    """A state, a halo that it becomes, and the shape of the value."""
    shares, axis = draw(st.sampled_from(SHARES)), draw(st.integers(0, 1))
    window = Window(12, 12, 2 * draw(st.integers(0, 3)) + 1, 1, 0)
    window = Window(12, 12, window.extent, 1, window.extent // 2)
    target = window.read(axis, bounds_of(12, draw(st.permutations(shares))))
    state = target if isinstance(target, Halo) else Halo(axis, target.segments[0], ((0, 0),) * len(shares), 12)
    source = draw(st.sampled_from([WHOLE, *(Split(at, (bounds_of(12, shares),)) for at in (0, 1))]))
    return source, state, (12, 12)


@given(changes())
def test_what_lands_with_zeros_is_what_a_device_has_of_a_halo(
    drawn: tuple[State, Halo, tuple[int, ...]],
) -> None:
    source, target, shape = drawn
    value, count = torch.rand(shape), len(target.bounds)
    for receiver in range(count):
        expected = cut(value, target, receiver, 1)
        memory = torch.full_like(expected, torch.nan)
        for box in zeros(target, receiver):
            box.of(memory).zero_()
        for sender in range(count) if source != WHOLE else [receiver]:
            for one in landings(source, target, sender, receiver):
                place = one.into.of(memory)
                assert place.isnan().all(), "each element comes once"
                place.copy_(one.taken.of(cut(value, source, sender, 1)))
        assert torch.equal(memory, expected)


@given(changes())
def test_a_halo_is_read_as_it_is_printed(drawn: tuple[State, Halo, tuple[int, ...]]) -> None:
    _, state, _ = drawn
    line = Line(str(state))
    assert list(read_states(line, len(state.bounds))) == [(state,)]


@pytest.mark.parametrize(
    "text", ["halo 0 of 4 [0:5, 2:4]", "halo 0 of 4 [3:2, 0:4]", "halo 0 of 4 [0:4]", "halo 0 of 4 [0:4, 0:4 zeros 1]"]
)
def test_a_halo_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TextError):
        list(read_states(Line(text), 2))

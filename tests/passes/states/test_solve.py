"""What is solved of small models whose best states are known."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

import pytest
import torch
from torch.fx import Node

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.state import PARTIAL, Split
from dovetail.compiler.states.strategy import name_of
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.exchanges import kind_of
from dovetail.passes.states.solution import NotPossible, Solution
from dovetail.passes.states.solve import solve
from testbed.zoo.everything import TINY

from .groups import Attention, Gated, Layers, group, traced


def _solved(program: Program, *shares: int, mode: str = "free", **options: object) -> Solution:
    found = solve(program, group(*shares), mode, **options)  # type: ignore[arg-type]
    assert isinstance(found, Solution)
    return found


def _ops(program: Program, name: str) -> list[Node]:
    return [node for node in program.ops() if name_of(node) == name]


def test_packed_queries_keys_and_values_are_split_by_whole_groups_without_an_exchange() -> None:
    program = traced(Attention(8, 2, 16), torch.randn(1, 24, 128))
    found = _solved(program, 1, 1, mode="tensor")
    packed, out = _ops(program, "linear")
    state = found.strategies[packed].results[0]
    assert isinstance(state, Split)
    assert [segment[0][1] - segment[0][0] for segment in state.segments] == [64, 16, 16]
    assert found.strategies[out].results == (PARTIAL,)
    kinds = [kind_of(one.source, one.target) for one in found.account.changes]
    assert kinds in (["all-reduce"], ["reduce-scatter", "all-gather"])


def test_a_device_has_no_part_of_two_groups_where_three_devices_share_them() -> None:
    program = traced(Attention(8, 2, 16), torch.randn(1, 24, 128))
    found = _solved(program, 1, 1, 1, mode="tensor", most=(80_000, 80_000, 80_000))
    (attention,) = _ops(program, "scaled_dot_product_attention")
    state = found.strategies[attention].results[0]
    assert isinstance(state, Split)
    assert [state.length(member) for member in range(3)] in ([4, 4, 0], [8, 8, 8])


def test_a_gate_and_its_value_are_split_alike() -> None:
    program = traced(Gated(32), torch.randn(1, 16, 32))
    found = _solved(program, 1, 1, mode="tensor")
    state = found.strategies[_ops(program, "linear")[0]].results[0]
    assert isinstance(state, Split)
    assert state.segments == (((0, 64), (64, 128)), ((128, 192), (192, 256)))


def test_tokens_stay_apart_where_weights_are_whole() -> None:
    program = traced(Gated(32), torch.randn(1, 64, 32))
    found = _solved(program, 1, 1, mode="sequence")
    states = [found.strategies[node].results[0] for node in _ops(program, "linear")]
    assert all(isinstance(state, Split) and state.axis == 1 for state in states)
    assert [kind_of(one.source, one.target) for one in found.account.changes] == ["all-gather"]


def test_pictures_stay_apart_but_for_the_result() -> None:
    program = traced(Layers(Attention(4, 4, 8), Gated(32)), torch.randn(4, 16, 32))
    found = _solved(program, 3, 1, mode="batch")
    (attention,) = _ops(program, "scaled_dot_product_attention")
    assert found.strategies[attention].results == (Split(0, (((0, 3), (3, 4)),)),)
    assert [change.readers for change in found.account.changes] == [(program.output,)]


def test_one_picture_is_not_split() -> None:
    found = solve(traced(Gated(32), torch.randn(1, 16, 32)), group(1, 1), "batch")
    assert str(found) == "batch is not possible: the inputs are of one picture"


def test_weights_for_which_there_is_no_room_are_a_reason() -> None:
    found = solve(traced(Gated(32), torch.randn(1, 16, 32)), group(1, 1), "tensor", (100, 100))
    assert isinstance(found, NotPossible)
    assert "there are none" in found.reason


def test_equal_layers_are_solved_as_one() -> None:
    program = traced(Layers(*(Gated(32) for _ in range(5))), torch.randn(1, 16, 32))
    found = _solved(program, 1, 1, mode="tensor")
    linears = _ops(program, "linear")
    assert max(found.counts.values()) == 5
    assert {found.strategies[node].results for node in linears[2::2]} == {found.strategies[linears[0]].results}
    assert len(found.counts) < len(list(program.ops())) / 3


def test_a_device_of_no_share_has_nothing_to_do_and_no_weights() -> None:
    found = _solved(traced(Gated(32), torch.randn(1, 16, 32)), 1, 0, mode="tensor")
    assert found.account.weights[1] <= 0.06 * found.account.weights[0] + 1000


def test_weights_and_values_together_keep_to_the_room_that_there_is() -> None:
    program = traced(Layers(Attention(8, 2, 16), Gated(128)), torch.randn(1, 256, 128))
    free = _solved(program, 1, 1).account
    room = round(0.85 * (free.weights[0] + free.alive[0]))
    found = _solved(program, 1, 1, room=(room, room)).account
    assert all(held + alive <= room for held, alive in zip(found.weights, found.alive, strict=True))
    assert found.seconds > free.seconds


def test_an_effort_of_nothing_takes_the_recipe() -> None:
    program = traced(Layers(Attention(8, 2, 16), Gated(128)), torch.randn(1, 64, 128))
    found = _solved(program, 1, 1, mode="tensor", node_limit=0)
    assert found.floor is not None
    assert found.account.seconds <= found.floor


_PRINTING = """
import torch
from tests.passes.states.groups import Attention, Gated, Layers, group, traced
from dovetail.passes.states.solve import solve
torch.manual_seed(0)
program = traced(Layers(Attention(8, 2, 16), Gated(128), Gated(128)), torch.randn(1, 64, 128))
for mode in ("free", "tensor", "sequence"):
    print(solve(program, group(5, 3, 2), mode))
"""


@pytest.mark.slow
def test_equal_input_gives_an_equal_plan_in_every_process() -> None:
    """Another process has another order of sets."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(_PRINTING, {})
    first, environment = printed.getvalue(), {**os.environ, "PYTHONHASHSEED": "1"}
    other = [sys.executable, "-c", _PRINTING]
    assert first == subprocess.run(other, env=environment, capture_output=True, text=True, check=True).stdout
    assert first.count(" over 5:3:2, ") == 3


def test_a_solution_says_each_change_with_its_bytes() -> None:
    program = traced(Gated(32), torch.randn(1, 64, 32))
    text = str(_solved(program, 1, 1, mode="sequence"))
    assert text.startswith("sequence over 1:1, ")
    assert "all-gather × 1 to whole for %output: sends 4096 4096 B" in text


def test_three_devices_have_four_heads_apart() -> None:
    """One of them has two heads, half of the weights of attention, which is more than its share and a little."""
    module, call = TINY["CLIPVisionModel"].make(torch.float32)
    program = trace(module, (), call)
    Simplify().run(program)
    found = solve(program, group(1, 1, 1), "tensor")
    assert isinstance(found, Solution)
    assert max(found.account.weights) < 0.6 * sum(weight.nbytes for weight in program.weights.values())

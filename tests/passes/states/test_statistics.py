"""Norms over all heads are taken apart where heads are wanted split, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.compiler.ir.state import WHOLE
from dovetail.compiler.states.strategy import Strategy, name_of
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.fitting import Fitted, fitted, group_of
from dovetail.passes.states.forms import forms_of
from dovetail.passes.states.modes import posed
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from dovetail.passes.states.statistics import take_norms_apart, with_statistics
from testbed.zoo.everything import TINY
from tests.laws.members import run_by_members

from .groups import group
from .test_packed import WIDE, packed

OVER_HEADS = ["WanTransformer3DModel", "LTXVideoTransformer3DModel", "LuminaNextDiT2DModel"]


class Normed(nn.Module):
    """Attention of queries and keys that are normalized over all heads, on a stream that is normalized before."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.of_q, self.of_k = (nn.RMSNorm(WIDE) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        each = self.of_q(self.q(y)), self.of_k(self.k(y)), self.v(y)
        q, k, v = (one.unflatten(-1, (8, -1)).transpose(1, 2) for one in each)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def _traced(name: str, dtype: torch.dtype) -> tuple[Program, torch.nn.Module, dict[str, object]]:
    module, call = TINY[name].make(dtype)
    program = trace(module, (), call)
    Simplify().run(program)
    return program, module, call


def _run(program: Program, module: torch.nn.Module, call: dict[str, object]) -> list[torch.Tensor]:
    wholes = {node: Strategy((WHOLE,) * len(tensors_of(node)), {}) for node in program.ops()}
    return run_by_members(program, module, call, wholes, 1)


def _norms(program: Program) -> int:
    return sum(name_of(node) in ("rms_norm", "layer_norm") for node in program.ops())


@pytest.mark.fifth
@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OVER_HEADS)
def test_a_norm_over_all_heads_is_what_its_statistics_and_the_rest_are(name: str, dtype: torch.dtype) -> None:
    program, module, call = _traced(name, dtype)
    apart = with_statistics(program)
    assert _norms(apart) < _norms(program)
    error = 50 * torch.finfo(dtype if dtype == torch.bfloat16 else torch.float32).eps
    for found, whole in zip(_run(apart, module, call), _run(program, module, call), strict=True):
        assert found.dtype == whole.dtype
        torch.testing.assert_close(found, whole, rtol=error, atol=error * max(1.0, whole.abs().max().item()))


@pytest.mark.fifth
@pytest.mark.parametrize("name", OVER_HEADS[:2])
def test_members_without_whole_weights_send_less_of_norms_that_are_taken_apart(name: str) -> None:
    program, module, call = _traced(name, torch.float64)
    apart = with_statistics(program)
    most = posed(program, group(1, 1), "tensor").most
    before, after = (solve(one, group(1, 1), "tensor", most) for one in (program, apart))
    assert isinstance(before, Solution)
    assert isinstance(after, Solution)
    assert max(after.account.sent) < max(before.account.sent)
    for found, whole in zip(
        run_by_members(apart, module, call, after.strategies, 2), _run(program, module, call), strict=True
    ):
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.fifth
def test_what_is_taken_apart_can_be_printed_and_equal_blocks_stay_equal() -> None:
    program, _, _ = _traced("WanTransformer3DModel", torch.float32)
    apart = with_statistics(program)
    assert print_program(parse_program(print_program(apart))) == print_program(apart)
    both = [posed(one, group(1, 1), "free").problem.folded for one in (program, apart)]
    assert [len(one.blocks[0]) for one in both] == [3, 3]


@pytest.mark.fifth
def test_norms_of_each_head_and_of_tokens_stay_as_they_are() -> None:
    program, _, _ = _traced("FluxTransformer2DModel", torch.float32)
    assert [name_of(node) for node in with_statistics(program).ops()] == [name_of(node) for node in program.ops()]


def test_the_norm_of_a_stream_of_packed_weights_stays_as_it_is() -> None:
    """Packed matmuls want blocks of columns of what they read, which is no reason to take norms before them apart."""
    program, _ = packed("Q8_0", Normed())
    apart = with_statistics(program)
    assert [_norms(one) for one in (program, apart)] == [3, 1]


@pytest.mark.fifth
@pytest.mark.parametrize("name", OVER_HEADS)
def test_a_program_and_its_copy_are_taken_apart_alike(name: str) -> None:
    program, _, _ = _traced(name, torch.float32)
    copy = program.copy()
    assert take_norms_apart(program) == take_norms_apart(copy) > 0
    assert [(one.name, one.target) for one in program.ops()] == [(one.name, one.target) for one in copy.ops()]


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
@pytest.mark.parametrize("name", OVER_HEADS)
def test_the_form_is_taken_whose_states_take_less(name: str, mode: str) -> None:
    program = _traced(name, torch.float32)[0]
    program.rig = Rig.parse("sim0=8GiB,sim1=8GiB")
    devices, found = group_of(program), fitted(program, mode)
    assert isinstance(found, Fitted)
    forms = list(forms_of(program, mode, devices.shares))
    assert len(forms) == (2 if mode == "tensor" else 1)
    solved = [solve(one, devices, mode, room=(8 << 30, 8 << 30)) for one in forms]
    assert found.alone is not None or found.solution.account.seconds == min(one.account.seconds for one in solved)
    assert any(len(found.graph.nodes) == len(one.graph.nodes) for one in forms)

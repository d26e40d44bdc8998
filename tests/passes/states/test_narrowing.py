"""Slices are taken before what is elementwise, which changes no number, and less is sent of sums."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.compiler.ir.state import WHOLE
from dovetail.compiler.states.strategy import Strategy, name_of
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.narrowing import narrow
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from testbed.zoo.everything import TINY
from tests.cases import drawn
from tests.laws.members import run_by_members

from .groups import group

FLUX = "FluxTransformer2DModel"


def _traced(name: str) -> tuple[Program, torch.nn.Module, dict[str, object]]:
    module, call = TINY[name].make(torch.float32)
    program = trace(module, (), call)
    Simplify().run(program)
    return program, module, call


def _run(program: Program, module: torch.nn.Module, call: dict[str, object]) -> list[torch.Tensor]:
    wholes = {node: Strategy((WHOLE,) * len(tensors_of(node)), {}) for node in program.ops()}
    return run_by_members(program, module, call, wholes, 1)


@pytest.mark.fifth
def test_the_last_block_adds_and_sends_no_rows_that_nobody_reads() -> None:
    program, _, _ = _traced(FLUX)
    narrowed = program.copy()
    assert narrow(narrowed) == 2
    *_, last = (node for node in narrowed.ops() if name_of(node) == "slice")
    assert tensors_of(last)[0].shape == (1, 16, 32)
    before, after = (solve(one, group(1, 1), "tensor") for one in (program, narrowed))
    assert isinstance(before, Solution)
    assert isinstance(after, Solution)
    assert max(after.account.sent) < max(before.account.sent)
    assert print_program(parse_program(print_program(narrowed))) == print_program(narrowed)


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn([one for one in TINY if one != "CosmosTransformer3DModel"], 5))
def test_no_number_changes(name: str) -> None:
    program, module, call = _traced(name)
    expected = _run(program, module, call)
    narrow(program)
    for found, whole in zip(_run(program, module, call), expected, strict=True):
        assert torch.equal(found.nan_to_num(), whole.nan_to_num())

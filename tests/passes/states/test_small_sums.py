"""Of a small sum each device is sent all terms: one exchange instead of two, of as many bytes between two devices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import Node

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.ops import SUM_TERMS
from dovetail.compiler.ir.program import Program, state_of
from dovetail.compiler.ir.split import assembles
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.states.strategy import Strategy
from dovetail.compiler.states.table import strategies
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.placement.assignment import Assign, Assigned
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.placement.cut import Cut
from dovetail.passes.placement.pin import Pin
from dovetail.passes.states import shares
from dovetail.passes.states.share import share
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights

COLUMNS = Split(1, (((0, 4), (4, 8)),))


def in_terms(module: nn.Module, x: torch.Tensor) -> Program:
    """A program whose product two devices have terms of."""

    def choose(node: Node) -> Strategy | None:
        return next((way for way in strategies(node, lambda _: [COLUMNS]) if way.results == (PARTIAL,)), None)

    program = trace(module, (x,))
    program.rig = Rig.parse("sim0=1GiB,sim1=1GiB")
    everything = {weight: Assigned(program.main) for weight in program.weights}
    for step in (FindBlocks(), Assign(everything), Pin()):
        step.run(program)
        program.facts |= step.ensures
    share(program, choose)
    for step in (Cut(), Lower()):
        step.run(program)
        program.facts |= step.ensures
    verify(program)
    return program


def test_a_small_sum_crosses_once_and_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU()), torch.randn(5, 8)
    small = in_terms(module, x)
    monkeypatch.setattr(shares, "SMALL_SUM", 0)
    large = in_terms(module, x)
    states = [[state_of(one) for one in program.ops() if one.target is SUM_TERMS] for program in (small, large)]
    assert states[0] == [WHOLE]
    assert isinstance(states[1][0], Split)
    assert sum(map(assembles, large.transfers())) == sum(map(assembles, small.transfers())) + 1
    assert crossing_bytes(small) == crossing_bytes(large)
    found = []
    for program in (small, large):
        assert program.schedule is not None
        sim.enable({0: 2**30, 1: 2**30})
        executor = Executor(program, program.schedule)
        executor.bind(ProgramWeights.of_module(module, program))
        found.append(executor([x.to("sim:0")])[0].cpu())
    assert torch.equal(*found)
    assert torch.allclose(found[0], module(x), atol=1e-5)

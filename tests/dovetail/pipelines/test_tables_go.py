"""Buffers and constants come and go as parameters do where a pipeline has no room for them otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Load
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.planning.phases import Phases, let_tables_go


class Tables(nn.Module):
    """Reads a buffer, and a tensor that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.ones(8))
        self.plain = torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.table * self.plain


def lowered(goes: bool) -> Program:
    program = trace(Tables(), (torch.ones(1, 8),))
    program.rig = Rig.of(sim0=2**20)
    program.keep(Residency.HOST)
    if goes:
        let_tables_go(program)
    return PassManager(default_passes()).run(program)


def staying(program: Program) -> set[str]:
    loads = [one for one in program.schedule or () if isinstance(one, Load) and one.slot < 0]
    return {name for load in loads for name in load.weights}


def test_tables_stay_unless_they_are_to_come_and_go() -> None:
    assert len(staying(lowered(goes=False))) == 2
    assert staying(lowered(goes=True)) == set()


def test_components_whose_weights_do_not_stay_for_a_phase_are_told() -> None:
    phases = Phases().letting_go(["unet"])
    assert phases is not None
    assert not phases.keeps("unet")
    assert phases.keeps("vae")
    assert phases.letting_go(["unet"]) is None
    assert phases.letting_go([]) is None
    assert phases.together().keeps("unet")

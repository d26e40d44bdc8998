"""States of a plan are taken as they stand there: a program that is placed by its plan is not solved for again."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.modes import inner_mode
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import as_planned, default_passes
from dovetail.passes.states.solve import Solver
from testbed.zoo.everything import TINY

CASES = [
    ("WanTransformer3DModel", "tensor"),  # whose norms are taken apart
    ("FluxTransformer2DModel", "sequence"),
    ("UNet2DConditionModel", "batch"),
    ("AutoencoderKL-decode", "spatial"),
    ("SD3Transformer2DModel", "batch+tensor"),
    ("UNet2DConditionModel", "batch+sequence"),
]


def _fresh(name: str, size: str = "8GiB", devices: int = 2) -> Program:
    module, call = TINY[name].make(torch.float32)
    program = trace(module, (), call)
    program.rig = Rig.parse(",".join(f"sim{index}={size}" for index in range(devices)))
    return program


def _devices(mode: str) -> int:
    return 4 if inner_mode(mode) else 2


def _planned(name: str, mode: str) -> Program:
    return PassManager(default_passes(split_mode=mode)).run(_fresh(name, devices=_devices(mode)))


def _by_plan(plan: Program, program: Program, mode: str) -> Program:
    return PassManager(as_planned(default_passes(split_mode=mode), plan, {})).run(program)


def _refuse(*_: Any) -> NoReturn:
    raise AssertionError("states are solved for again")


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_program_by_its_plan_is_as_it_was_solved(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = print_program(_planned(name, mode))
    assert f"states{{mode={mode}" in wanted
    monkeypatch.setattr(Solver, "solved", _refuse)
    fresh = _fresh(name, devices=_devices(mode))
    assert print_program(_by_plan(parse_program(wanted), fresh, mode)) == wanted


@pytest.mark.fifth
def test_a_plan_of_other_operations_is_solved_anew() -> None:
    plan, wanted = _planned("FluxTransformer2DModel", "tensor"), _planned("WanTransformer3DModel", "tensor")
    found = _by_plan(plan, _fresh("WanTransformer3DModel"), "tensor")
    assert print_program(found) == print_program(wanted)


@pytest.mark.fifth
def test_a_plan_for_which_devices_have_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _planned("FluxTransformer2DModel", "sequence")
    monkeypatch.setattr(Solver, "solved", _refuse)
    with pytest.raises(DoesNotFitError):
        _by_plan(plan, _fresh("FluxTransformer2DModel", "16KiB"), "sequence")

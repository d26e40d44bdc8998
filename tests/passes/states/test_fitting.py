"""States are solved for as much room as devices have, quickly, and in the same way each time."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

import pytest
import torch
from scipy import optimize

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.ir.program import Program
from dovetail.passes.states import fitting, kept_forms
from dovetail.passes.states.fitting import Fitted, fitted, quickest
from dovetail.passes.states.model import Model
from dovetail.passes.states.solution import NotPossible
from dovetail.passes.states.solve import solve

from .groups import Attention, Gated, Layers, group, traced


def _placeable(nbytes: int) -> Program:
    program = traced(Layers(Attention(8, 2, 16), Gated(128), Gated(128)), torch.randn(1, 256, 128))
    program.rig = Rig.parse(f"sim0={nbytes // 1024}KiB,sim1={nbytes // 1024}KiB")
    program.rig = Rig({device: one for device, one in program.rig.memory.items() if not device.is_host})
    return program


def _counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """A list that grows by one with each call of a function."""
    calls, real = [], getattr(owner, name)

    def called(*args: object, **options: object) -> object:
        calls.append(name)
        return real(*args, **options)

    monkeypatch.setattr(owner, name, called)
    return calls


@pytest.mark.parametrize("nbytes", [100_000, 600_000, 900_000, 1_200_000])
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
def test_what_does_not_depend_on_room_is_built_once(nbytes: int, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _placeable(nbytes)
    built = _counted(monkeypatch, kept_forms, "solver_of")
    lowered = _counted(monkeypatch, fitting, "_in_states")
    solved = _counted(monkeypatch, Model, "solved")
    found = fitted(program, mode)
    assert isinstance(found, Fitted)
    assert len(built) == 1
    assert len(lowered) <= max(1, len(solved))


def test_bytes_that_no_states_keep_to_are_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = _counted(monkeypatch, optimize, "milp")
    program = traced(Gated(32), torch.randn(1, 16, 32))
    for most, room in (((100, 100), ()), ((), (100, 100))):
        found = solve(program, group(1, 1), "free", most, room)
        assert isinstance(found, NotPossible)
        assert "there are none" in found.reason
    assert not searched


def test_a_search_is_told_of_states_for_which_there_is_room() -> None:
    program = _placeable(2**30)
    loose = quickest(program, "free")
    assert isinstance(loose, Fitted)
    room = round(0.95 * (loose.solution.account.weights[0] + loose.solution.account.alive[0]))
    tight = quickest(program, "free", room=(room, room))
    assert isinstance(tight, Fitted)
    account = tight.solution.account
    assert all(held + alive <= room for held, alive in zip(account.weights, account.alive, strict=True))
    assert account.seconds >= loose.solution.account.seconds
    assert isinstance(quickest(program, "free", room=(100, 100)), NotPossible)


_PRINTING = """
import torch
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from testbed.zoo.everything import TINY
module, call = TINY["WanTransformer3DModel"].make(torch.float32)
for size in ("8GiB", "16KiB"):
    program = trace(module, (), call)
    program.rig = Rig.parse(f"sim0={size},sim1={size}")
    try:
        print(print_program(PassManager(default_passes(split_mode="tensor")).run(program)))
    except DoesNotFitError as error:
        print("refused:", error)
"""


@pytest.mark.fifth
def test_equal_programs_are_placed_by_equal_texts_in_every_process() -> None:
    """Another process has another order of sets."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(_PRINTING, {})
    first, environment = printed.getvalue(), {**os.environ, "PYTHONHASHSEED": "1"}
    other = [sys.executable, "-c", _PRINTING]
    assert first == subprocess.run(other, env=environment, capture_output=True, text=True, check=True).stdout
    assert "states{mode=tensor" in first
    assert "refused:" in first

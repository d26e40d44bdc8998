"""While one plan is made, what solves for states is built once for equal programs, and says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.ir.program import Block, Program
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.states import kept_forms
from dovetail.passes.states.exchanges import Group
from dovetail.passes.states.fitting import Fitted, fitted, quickest
from dovetail.passes.states.kept_forms import forms_with_solvers, kept
from dovetail.passes.states.solve import Solver, solver_of

from .groups import Attention, Gated, Layers, group, traced

BASE = traced(Layers(Attention(8, 2, 16), Gated(128), Gated(128)), torch.randn(1, 256, 128))
ROOMS = (100_000, 600_000, 1_200_000)


def on(nbytes: int, **facts: object) -> Program:
    program = BASE.copy()
    rig = Rig.parse(f"sim0={nbytes // 1024}KiB,sim1={nbytes // 1024}KiB")
    program.rig = Rig({device: one for device, one in rig.memory.items() if not device.is_host})
    vars(program).update(facts)
    return program


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has the mode of each solver that is built."""
    found: list[str] = []

    def noted(program: Program, devices: Group, mode: str) -> Solver:
        found.append(mode)
        return solver_of(program, devices, mode)

    monkeypatch.setattr(kept_forms, "solver_of", noted)
    return found


def said(found: object) -> object:
    """What is found, in words."""
    if not isinstance(found, Fitted):
        return str(found)
    needs = {device: (need.total, need.values, str(need.node)) for device, need in found.needs.items()}
    strategies = {node.name: str(way) for node, way in found.solution.strategies.items()}
    return strategies, str(found.solution), needs, found.alone, found.seconds, str(found.graph)


@pytest.mark.fifth
@pytest.mark.few(quick=1)
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
def test_what_is_kept_is_what_would_be_found_anew(mode: str, built: list[str]) -> None:
    resting = {"residency": dict.fromkeys(BASE.weights, Residency.HOST)}
    given = {"given": frozenset({0})}
    asked = [on(nbytes, **facts) for nbytes in (*ROOMS, *ROOMS[::-1]) for facts in ({}, resting, given)]
    direct = [said(fitted(program, mode)) for program in asked]
    built.clear()
    with kept():
        assert said(quickest(asked[0], mode)) == said(quickest(asked[-1], mode))
        assert [said(fitted(program, mode)) for program in asked] == direct
    assert len(built) <= 2  # a form each
    fitted(asked[0], mode)
    assert len(built) > 1  # nothing is kept outside


def test_what_is_lowered_leaves_what_is_kept_as_it_is() -> None:
    def lowered(nbytes: int) -> str:
        program = PassManager(default_passes(split_mode="tensor")).run(on(nbytes))
        return print_program(program) + str(program.schedule)

    rooms = 3_000_000, 9_000_000
    direct = [lowered(nbytes) for nbytes in rooms]
    with kept():
        assert [lowered(nbytes) for nbytes in (*rooms, *rooms)] == direct * 2


def test_programs_that_differ_share_nothing() -> None:
    devices, base = group(1, 1), on(ROOMS[0])
    renamed, argued, of_blocks, packed, moved = (base.copy() for _ in range(5))
    next(renamed.ops()).name = "other"
    scaled = next(node for node in argued.ops() if any(isinstance(one, (int, float)) for one in node.args))
    scaled.args = tuple(one + 1 if isinstance(one, (int, float)) else one for one in scaled.args)
    of_blocks.blocks = (*of_blocks.blocks, Block("other", ()))
    name, weight = next(iter(packed.weights.items()))
    packed.weights[name] = replace(weight, dtype=torch.float64)
    node = next(moved.ops())
    node.meta["value"] = replace(node.meta["value"], storage=10_000)
    others = [renamed, argued, of_blocks, packed, moved]
    with kept():
        first = forms_with_solvers(base, "sequence", devices)
        assert forms_with_solvers(base.copy(), "sequence", devices) is first
        assert all(forms_with_solvers(one, "sequence", devices) is not first for one in others)
        assert forms_with_solvers(base, "tensor", devices) is not first
        assert forms_with_solvers(base, "sequence", group(1, 2)) is not first


@pytest.mark.parametrize("place", ["args", "meta"])
def test_the_sign_of_a_zero_tells_programs_apart(place: str) -> None:
    programs = [BASE.copy() for _ in range(3)]
    for program, zero in zip(programs, (0.0, -0.0, 0.0), strict=True):
        node = next(program.ops())
        if place == "args":
            node.args = (*node.args, zero)
        else:
            node.meta["noted"] = {"fill": (zero,)}
    positive, negative, same = programs
    assert kept_forms._are_equal(positive, same)
    assert not kept_forms._are_equal(positive, negative)


def test_few_are_kept(built: list[str]) -> None:
    with kept():
        for share in range(1, 9):
            forms_with_solvers(BASE, "sequence", group(1, share))
        count = len(built)
        forms_with_solvers(BASE, "sequence", group(1, 8))
        assert len(built) == count
        forms_with_solvers(BASE, "sequence", group(1, 1))
        assert len(built) > count

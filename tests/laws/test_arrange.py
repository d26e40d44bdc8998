"""Exchanges that begin early, of any program that devices compute together, change no bit and are accounted for."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.split import EARLY
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.simulate.timeline import timeline
from dovetail.passes.states import arrange
from dovetail.passes.states.arrange import put_exchanges_early, send_early
from testbed.published_states import traced
from testbed.zoo.everything import TINY
from testbed.zoo.full_size_diffusion import deepened
from tests.cases import drawn

from .test_shared import OWN_PYTHON, SHARES, Chooser, expect_sound, outcome, shared

LATE = [step for step in default_passes(split_mode="sequence") if step.name != "arrange"]


@dataclass(frozen=True)
class Early(Pass):
    """Has parts sent early, whether that is quicker or not."""

    name: ClassVar[str] = "early"
    keeps_values: ClassVar[bool] = True
    way: Callable[[Program], int] = field(default=put_exchanges_early)

    def run(self, program: Program) -> Change:
        return Change(self.way(program), "nodes in another place")


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("way", [put_exchanges_early, send_early])
@pytest.mark.parametrize("name", drawn([one for one in TINY if one not in OWN_PYTHON], 2))
def test_parts_that_are_sent_early_change_no_bit(name: str, way: Callable[[Program], int]) -> None:
    seed = f"{name} {os.environ['DOVETAIL_TEST_SEED']}"
    shares = random.Random(seed).choice(SHARES)
    module, call, late = shared(name, shares, lambda _: Chooser(shares, seed))
    _, _, early = shared(name, shares, lambda _: Chooser(shares, seed), behind_cut=[Early(way)])
    expect_sound(module, call, early)
    assert crossing_bytes(early) == crossing_bytes(late)
    (mine, _, _), (theirs, _, _) = outcome(module, call, early), outcome(module, call, late)
    assert all(map(torch.equal, mine, theirs))


@pytest.mark.fifth
@pytest.mark.parametrize(("mode", "least"), [("sequence", 0.03), ("tensor", 0.002)])
def test_a_published_model_waits_less(mode: str, least: float) -> None:
    program = traced(deepened("flux-dev", 1))
    program.rig = Rig.parse("cuda0=48GiB@L20,cuda1=48GiB@L20")
    every = default_passes((1.0, 1.0), split_mode=mode)
    late = PassManager([one for one in every if one.name != "arrange"]).run(program.copy())
    early = PassManager(every).run(program.copy())
    before, after = (timeline(one, speeds_of(program.rig)).seconds for one in (late, early))
    assert after < (1 - least) * before
    assert EARLY in early.facts


@pytest.mark.fifth
@pytest.mark.parametrize("left", [-1, 2**20])
def test_a_budget_is_kept(left: int) -> None:
    """Of two devices that have as much as the traced order needs, or little more."""
    program = traced(deepened("flux-dev", 1))
    program.rig = Rig.parse("cuda0=48GiB@L20,cuda1=48GiB@L20")
    late = PassManager(LATE).run(program.copy())
    most = {device: usage.total for device, usage in simulate(late).items()}
    program.rig = Rig.parse(",".join(f"{device}={nbytes + max(0, left)}B@L20" for device, nbytes in most.items()))
    early = PassManager(default_passes(split_mode="sequence")).run(program)
    free = program.rig.free
    assert all(usage.total <= free[device] for device, usage in simulate(early).items())


@pytest.mark.fifth
def test_what_is_not_quicker_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    program = traced(deepened("flux-dev", 1))
    program.rig = Rig.parse("cuda0=48GiB@L20,cuda1=48GiB@L20")
    every = default_passes((1.0, 1.0), split_mode="sequence")
    at = [one.name for one in every].index("arrange")
    cut = PassManager(every[:at]).run(program)
    before, names = print_program(cut), [node.name for node in cut.graph.nodes]
    monkeypatch.setattr(arrange._Taken, "is_better", lambda *_: False)
    assert not arrange.Arrange().run(cut)
    assert [node.name for node in cut.graph.nodes] == names
    assert print_program(cut) == before
    assert [node for segment in cut.segments for node in segment.nodes] == list(cut.ops())

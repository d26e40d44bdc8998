"""Within one plan no trace is lowered twice of which all that passes read is equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.planning.lowerings import Lowerings

MIB = 2**20
RIGS = ("cuda0=64MiB,cuda1=64MiB", "cuda0=2MiB,cuda1=64MiB", "cuda1=64MiB,cuda0=64MiB", "cuda0=64MiB")


def traced() -> Program:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).requires_grad_(False)
    return trace(model, (torch.ones(2, 256),))


BASE = traced()


def lowered(program: Program) -> Program:
    return PassManager(default_passes()).run(program)


@st.composite
def given_to_passes(draw: st.DrawFn) -> dict[str, object]:
    """What may differ between two attempts at one trace."""
    rig = Rig.parse(draw(st.sampled_from(RIGS)))
    beside = draw(st.sampled_from([0, MIB]))
    rig = replace(rig, memory={device: replace(one, beside=beside) for device, one in rig.memory.items()})
    names = [name for name in BASE.weights if draw(st.booleans())]
    where = draw(st.sampled_from([Residency.HOST, Residency.DISK]))
    return {
        "rig": rig,
        "home": dict.fromkeys(names, rig.devices[-1]) if draw(st.booleans()) else {},
        "residency": dict.fromkeys(names, where) if draw(st.booleans()) else {},
        "keeps_staged": draw(st.booleans()),
        "given": draw(st.sampled_from([frozenset(), frozenset({0})])),
    }


@pytest.mark.fifth
@given(st.lists(given_to_passes(), min_size=2, max_size=4))
def test_what_is_kept_is_what_passes_would_make_now(attempts: list[dict[str, object]]) -> None:
    known = Lowerings()
    for one in [*attempts, *attempts]:
        vars(BASE).update(one)
        try:
            direct = str(lowered(BASE.copy()).schedule)
        except DoesNotFitError as refused:
            with pytest.raises(DoesNotFitError) as again:
                known.of(BASE, "", lowered)
            assert str(again.value) == str(refused)
            continue
        assert str(known.of(BASE, "", lowered).schedule) == direct


def test_equal_is_lowered_once_and_otherwise_anew() -> None:
    known, times, base = Lowerings(), [], traced()
    base.rig = Rig.parse(RIGS[0])

    def run(program: Program) -> Program:
        times.append(program)
        return lowered(program)

    first = known.of(base, "layer", run)
    assert known.of(base, "layer", run) is first
    assert known.of(base, "row", run) is not first
    base.rig = Rig({device: replace(one, free=32 * MIB) for device, one in base.rig.memory.items()})
    assert known.of(base, "layer", run) is not first
    base.rig = Rig.parse(RIGS[0])
    assert known.of(base, "layer", run) is first
    assert known.of(traced_like(base), "layer", run) is not first
    known.forget()
    assert known.of(base, "layer", run) is not first
    assert len(times) == 5
    assert not base.segments
    assert base.schedule is None


def traced_like(base: Program) -> Program:
    other = traced()
    other.rig = base.rig
    return other


def test_few_are_kept_of_each_trace() -> None:
    known, base, made = Lowerings(), traced(), []
    base.rig = Rig.parse(RIGS[0])
    for how in range(9):
        made.append(known.of(base, how, lowered))
    assert [known.of(base, how, lowered) is made[how] for how in (8, 7, 6, 5)] == [True] * 4
    assert known.of(base, 0, lowered) is not made[0]


@pytest.mark.slow
def test_a_refused_plan_lowers_no_trace_twice_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str, object]] = []
    own = PassManager.run

    def noted(self: PassManager, program: Program) -> Program:
        memory = tuple((device, one.free, one.beside) for device, one in program.rig.memory.items())
        places = tuple(program.home.items()), tuple(program.residency.items()), program.keeps_staged, program.given
        before = (program.name, str(len(list(program.ops()))), (str(self.passes), memory, places))
        made = own(self, program)
        done.append(before)
        return made

    monkeypatch.setattr(PassManager, "run", noted)
    words = ["plan", "--rig", "cuda0=16MiB,cuda1=12MiB,cpu=4GiB", "--backend", "cuda0&cuda1", "--steps", "1"]
    refused = CliRunner().invoke(app, [*words, "--params-backend", "device"])
    assert refused.exit_code == 3, refused.output
    assert len(done) > 8
    assert len(set(done)) == len(done)
    assert Device("cuda") in {one[0] for entry in done for one in entry[2][1]}  # type: ignore[index]

"""An assignment that is given to a component of a pipeline: where each weight is, and where it rests."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.placement.assignment import Assigned, Assignment
from dovetail.runtime import sim

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

FIRST, SECOND = Device("sim", 0), Device("sim", 1)
KIB = 1024


def half_staged(model: Any) -> dict[str, Assigned]:
    """Blocks 0 and 1 on the first device, 2 and 3 on the second; of each device one block rests in host memory."""
    kept = {1: Residency.HOST, 3: Residency.HOST}
    found = {}
    for name, _ in model.named_parameters():
        block = int(name.split(".")[1]) if name.startswith("blocks.") else 0
        found[name] = Assigned(SECOND if block > 1 else FIRST, (), kept.get(block, Residency.DEVICE))
    return found


def bytes_of(model: Any, assignment: Assignment, device: Device, residency: Residency) -> int:
    weights = dict(model.named_parameters())
    here = (name for name, one in assignment.items() if (one.device, one.residency) == (device, residency))
    return sum(weights[name].nbytes for name in here)


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [Block, Numpy])
@pytest.mark.parametrize("before", [{}, {"params_backend": "cpu"}])
def test_half_of_the_weights_staged_give_the_same_bits_within_the_budget(
    kind: type[Block], before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(kind).eval()
    pipe, x = Pipeline(copy.deepcopy(model)), torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        want = model(x)
    dovetail.compile_pipeline(pipe, "sim0&sim1", max_vram="sim0=80KiB,sim1=80KiB", **before)
    assert torch.equal(pipe(x), want)
    component, assignment = pipe.dovetail.components["unet"], half_staged(model)
    monkeypatch.setattr(torch.export, "export", None)  # from here on nothing can be traced
    component.assign(assignment)
    for index in range(2):
        sim.reset_stats(index)
    assert torch.equal(pipe(x), want)
    for device in (FIRST, SECOND):
        assert sim.stats(device.index).peak <= 80 * KIB
    if kind is Block:
        (program,) = component.programs
        assert {name for name, one in assignment.items() if one.residency is Residency.HOST} == set(
            program.program.residency
        )
        assert program.program.home == {name: one.device for name, one in assignment.items()}
    component.view.release()
    gc.collect()
    for device in (FIRST, SECOND):
        stays = bytes_of(model, assignment, device, Residency.DEVICE)
        comes = bytes_of(model, assignment, device, Residency.HOST)
        assert sim.stats(device.index).in_use == stays
        assert component.assigned.resident_on()[device.name] == stays
        assert component.assigned.staged_on()[device.name] == comes
    assert torch.equal(pipe(x), want)
    pipe.dovetail.undo()
    assert torch.equal(pipe(x), want)
    assert [sim.stats(index).in_use for index in range(2)] == [0, 0]


def test_what_does_not_fit_is_refused_and_all_is_as_before() -> None:
    model = Model().eval()
    pipe, x = Pipeline(copy.deepcopy(model)), torch.randn(2, 5, WIDTH)
    dovetail.compile_pipeline(pipe, "sim0&sim1", max_vram="sim0=80KiB,sim1=50KiB")
    want = pipe(x)
    component = pipe.dovetail.components["unet"]
    before = str(component.programs[0])
    names = dict(model.named_parameters())
    with pytest.raises(DoesNotFitError, match=r"KiB of weights on sim1, which has 50\.0 KiB free"):
        component.assign(dict.fromkeys(names, Assigned(SECOND)))
    tight = {name: Assigned(SECOND if "blocks" in name and "0" not in name else FIRST) for name in names}
    with pytest.raises(DoesNotFitError, match="of headroom on sim1"):
        component.assign(tight)
    assert str(component.programs[0]) == before
    assert torch.equal(pipe(x), want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift": None}, "says nothing of shift"),
        ({"shift": Assigned(Device("sim", 7))}, "shift is assigned to sim7"),
        ({"first.weight": Assigned(FIRST, ((0, 16), (16, 32)))}, "cannot be assigned rows"),
    ],
)
def test_an_assignment_that_is_none_of_the_component_is_refused(
    change: dict[str, Assigned | None], message: str
) -> None:
    pipe = Pipeline(Model().eval())
    dovetail.compile_pipeline(pipe, "sim0&sim1")
    changed = {**half_staged(pipe.unet), **change}
    with pytest.raises(UsageError, match=message):
        pipe.dovetail.components["unet"].assign({name: one for name, one in changed.items() if one is not None})


@pytest.mark.fifth
def test_weights_that_come_and_go_are_reserved_no_longer_once_a_program_says_so() -> None:
    model, x = Model().eval(), torch.randn(2, 400, WIDTH)
    pipe, total = Pipeline(copy.deepcopy(model)), sum(one.nbytes for one in model.parameters())
    with torch.no_grad():
        want = model(x)
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram="sim0=1GiB")
    sim.reset_stats(0)
    assert torch.equal(pipe(x), want)
    budget = sim.stats(0).peak - total // 3
    pipe.dovetail.undo()
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B")
    assert torch.equal(pipe(x), want)
    component = pipe.dovetail.components["unet"]
    component.assign({name: Assigned(FIRST, (), Residency.HOST) for name, _ in model.named_parameters()})
    assert 0 < (component.assigned.staged_on() + component.assigned.slots_on)[FIRST.name] < total
    sim.reset_stats(0)
    assert torch.equal(pipe(x), want)
    assert sim.stats(0).peak <= budget
    pipe.dovetail.undo()

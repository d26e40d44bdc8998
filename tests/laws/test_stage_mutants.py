"""Mutants of schedules whose weights come by stage: each load, await and release is spoiled in turn; none survives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.ir.schedule import Await, Lifetime, Load, Release, Schedule
from dovetail.runtime.store.program_weights import ProgramWeights

from .modules import WIDTH
from .schedules import changed, moved_before, without
from .subjects import TOWERS, Subject, count


@pytest.fixture(scope="module", params=TOWERS)
def subject(request: pytest.FixtureRequest) -> Subject:
    torch.manual_seed(0)
    module = TOWERS[request.param]().eval()
    args = (torch.randn(2, 4, WIDTH), torch.randn(2, WIDTH))
    rig = "sim0=24MiB,sim1=16MiB"
    compiled = dovetail.compile(module, args, backend="sim0&sim1", rig=rig, params_backend="cpu")
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*args))
    found = Subject(compiled, ProgramWeights.of_module(module, compiled.program), args, expected)
    assert len(stages(compiled.schedule)) > len(found.program.devices)
    assert found.is_accepted(compiled.schedule)
    assert found.survives(compiled.schedule)
    return found


def stages(schedule: Schedule) -> list[Load]:
    return [one for one in schedule if isinstance(one, Load) and one.lifetime is Lifetime.STAGE]


def place(schedule: Schedule, wanted: Any) -> int:
    return schedule.instructions.index(wanted)


def test_every_load_that_is_not_awaited_is_caught(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    mutants = [
        without(schedule, lambda one, load=load: isinstance(one, Await) and one.started == load)
        for load in stages(schedule)
    ]
    count([subject.is_accepted(mutant) for mutant in mutants], "loads that are not awaited", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "loads that are not awaited", "running")


def test_every_load_that_is_dropped_is_caught(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    mutants = [without(schedule, lambda one, load=load: one == load) for load in stages(schedule)]
    count([subject.is_accepted(mutant) for mutant in mutants], "dropped loads", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "dropped loads", "running")


def test_every_slot_that_is_taken_before_it_is_released_is_caught(subject: Subject) -> None:
    mutants = list(taken_early(subject.compiled.schedule))
    count([subject.is_accepted(mutant) for mutant in mutants], "slots taken early", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "slots taken early", "running")


def taken_early(schedule: Schedule) -> Iterator[Schedule]:
    """Each load into the slot of one that is not released by then."""
    for load in stages(schedule):
        here = place(schedule, load)
        before = (one for one in stages(schedule) if one.device == load.device and place(schedule, one) < here)
        taken = [one for one in before if place(schedule, Release(one)) > here]
        if taken:
            spoiled = {load: replace(load, slot=taken[-1].slot)}
            yield changed(schedule, lambda one, spoiled=spoiled: [in_slot(one, spoiled)])


def test_weights_are_on_their_way_while_the_stage_before_them_runs(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    pairs = [(a, b) for a, b in pairwise(stages(schedule)) if a.device == b.device]
    assert all(place(schedule, after) < place(schedule, Release(before)) for before, after in pairs)
    assert pairs


def in_slot(one: Any, slots: dict[Load, Load]) -> Any:
    match one:
        case Load():
            return slots.get(one, one)
        case Await(Load() as load):
            return replace(one, started=slots.get(load, load))
        case Release(load):
            return Release(slots.get(load, load))
    return one


def test_every_release_that_is_dropped_is_caught(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    mutants = [without(schedule, lambda one, load=load: one == Release(load)) for load in stages(schedule)]
    count([subject.is_accepted(mutant) for mutant in mutants], "dropped releases", "verifier")


def test_every_release_before_the_run_is_caught(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    mutants = [
        moved_before(schedule, place(schedule, Release(load)), place(schedule, load) + 1) for load in stages(schedule)
    ]
    count([subject.is_accepted(mutant) for mutant in mutants], "early releases", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "early releases", "running")


def test_every_use_of_the_weights_of_the_stage_before_is_caught(subject: Subject) -> None:
    """A stage awaits nothing, and its weights came with the stage before it on the device."""
    mutants = list(used_later(subject.compiled.schedule))
    count([subject.is_accepted(mutant) for mutant in mutants], "uses of another stage's weights", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "uses of another stage's weights", "running")


def used_later(schedule: Schedule) -> Iterator[Schedule]:
    found = stages(schedule)
    for first, second in ((a, b) for a, b in pairwise(found) if a.device == b.device):
        both = replace(first, weights=(*first.weights, *second.weights))

        def spoil(one: Any, first: Load = first, second: Load = second, both: Load = both) -> list[Any]:
            if one in (second, Release(second)) or (isinstance(one, Await) and one.started == second):
                return []
            return [in_slot(one, {first: both})]

        yield changed(schedule, spoil)

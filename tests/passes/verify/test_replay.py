"""What the replay of a schedule tells apart although it would run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dovetail.compiler.errors import VerificationError
from dovetail.compiler.ir.boxes import Box, Landing
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Await, Copy, Instruction, Load, Release, Run, Schedule
from dovetail.passes.verify.verifier import verify

from ..sample import sample


def awaits_of_copies(program: Program) -> Iterator[tuple[Await, Copy]]:
    for one in program.schedule.flat() if program.schedule else ():
        if isinstance(one, Await) and isinstance(one.started, Copy):
            yield one, one.started


def exchanged(program: Program, old: Await, new: Await) -> Schedule:
    """The schedule with another await in the place of one."""

    def renewed(one: Instruction) -> Instruction:
        if not isinstance(one, Run):
            return new if one == old else one
        steps = (replace(s, awaits=tuple(new if a == old else a for a in s.awaits)) for s in one.steps)
        return replace(one, steps=tuple(steps))

    return Schedule(tuple(map(renewed, program.schedule or ())))


def refused(program: Program, schedule: Schedule, why: str) -> None:
    kept, program.schedule = program.schedule, schedule
    with pytest.raises(VerificationError, match=why):
        verify(program)
    program.schedule = kept


def test_an_await_is_of_a_copy_that_was_sent_just_so() -> None:
    program = sample()
    found = list(awaits_of_copies(program))
    assert any(one.device == copy.source for one, copy in found)
    for one, copy in found:
        landing = replace(copy, landings=(Landing(Box(), Box(((0, 0, 1),))),))
        other = replace(copy, source=next(device for device in program.devices if device != copy.source))
        for started in (landing, other) if one.device == copy.target else (landing,):
            refused(program, exchanged(program, one, replace(one, started=started)), "rule wait: .*")


def loads_of_stages(program: Program) -> list[Load]:
    return [one.load for one in program.schedule or () if isinstance(one, Release)]


def with_load(program: Program, old: Load, new: Load) -> Schedule:
    """The schedule with another load in the place of one, which is awaited and released as that was."""
    awaited = exchanged(program, Await(old, old.device), Await(new, new.device))
    return Schedule(tuple(_other_load(one, old, new) for one in awaited))


def _other_load(one: Instruction, old: Load, new: Load) -> Instruction:
    if one == old:
        return new
    return Release(new) if one == Release(old) else one


def test_a_load_brings_each_weight_once() -> None:
    program = sample(rests="cpu")
    for load in loads_of_stages(program):
        twice = replace(load, weights=(*load.weights, load.weights[0]))
        refused(program, with_load(program, load, twice), "rule load: .*")


def test_no_two_loads_have_one_number() -> None:
    program = sample(rests="cpu")
    first, *others = loads_of_stages(program)
    for load in others:
        refused(program, with_load(program, load, replace(load, number=first.number)), "rule load: .*")

"""Other schedules than the right one: without some of its actions, or with them at another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dovetail.compiler.ir.schedule import Free, Instruction, Run, Schedule, Step


def changed(schedule: Schedule, change: Callable[[Any], list[Any]]) -> Schedule:
    """A schedule in which other instructions, and other actions of steps, stand in the place of each."""

    def step(one: Step) -> Step:
        parts = {
            name: [new for old in getattr(one, name) for new in change(old)] for name in ("awaits", "sends", "frees")
        }
        return replace(one, **{name: tuple(found) for name, found in parts.items()})

    found: list[Instruction] = []
    for one in schedule:
        found += [replace(one, steps=tuple(map(step, one.steps)))] if isinstance(one, Run) else change(one)
    return Schedule(tuple(found))


def without(schedule: Schedule, drop: Callable[[Any], bool]) -> Schedule:
    """A schedule without some of its instructions and of its steps' actions."""
    return changed(schedule, lambda one: [] if drop(one) else [one])


def freed_early(schedule: Schedule) -> Iterator[Schedule]:
    """Each free before the node, or the instruction, that touches its value last.

    Where a run begins with a node whose value is only sent, a free before it would free nothing: that is left out.
    """
    kept = schedule.instructions
    for index, one in enumerate(kept):
        if isinstance(one, Run):
            for place, step in enumerate(one.steps):
                for free in step.frees if place else (free for free in step.frees if free.value.node is not step.node):
                    yield _freed_before(schedule, index, place, free)
        elif isinstance(one, Free) and index and not isinstance(kept[index - 1], Free):
            yield Schedule((*kept[: index - 1], one, kept[index - 1], *kept[index + 1 :]))


def _freed_before(schedule: Schedule, index: int, place: int, free: Free) -> Schedule:
    """The free stands after the step before it, or before the run."""
    run = schedule.instructions[index]
    assert isinstance(run, Run)
    steps = list(run.steps)
    steps[place] = replace(steps[place], frees=tuple(one for one in steps[place].frees if one != free))
    ahead = [] if place else [free]
    if place:
        steps[place - 1] = replace(steps[place - 1], frees=(*steps[place - 1].frees, free))
    kept = schedule.instructions
    return Schedule((*kept[:index], *ahead, replace(run, steps=tuple(steps)), *kept[index + 1 :]))


def moved_before(schedule: Schedule, index: int, ahead: int) -> Schedule:
    """The instruction at an index stands before another one."""
    kept = list(schedule.instructions)
    kept.insert(ahead, kept.pop(index))
    return Schedule(tuple(kept))

"""What is issued for weights that rest elsewhere than where they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import ProgramTextError, VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Await, Lifetime, Load, Release, Run, Schedule
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.compiler.text.schedule_text import parse_schedule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import parse_passes
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from tests.laws.schedules import changed, without

from .sample import ALL, program_of, sample
from .test_schedule import Two, lines


def test_a_weight_that_rests_elsewhere_is_loaded_ahead_of_a_run_and_released_directly_after_it() -> None:
    program = program_of(Two(), (torch.randn(2, 8), torch.ones(1)), devices=2, rests="cpu")
    awaits = "await %linear_on_sim1 from sim0 to sim1 on sim1; await load 1 on sim1"
    frees = "free %linear_on_sim1 on sim1; free %linear_1 on sim1"
    assert lines(str(program.schedule).replace(awaits, "AWAITS").replace(frees, "FREES")) == lines(
        """
        input %x, %unread on sim0
        load 0 to slot 0 of sim0 for the stage: "blocks.0.weight", "blocks.0.bias"
        load 1 to slot 0 of sim1 for the stage: "blocks.1.weight", "blocks.1.bias"
        free %unread on sim0
        run segment 0 on sim0: %linear to %linear
        %linear: await load 0 on sim0; copy %linear_on_sim1 from sim0 to sim1; free %x on sim0; free %linear on sim0
        release load 0
        run segment 1 on sim1: %linear_1 to %linear_1
        %linear_1: AWAITS; copy %linear_1_on_sim0 from sim1 to sim0; FREES
        release load 1
        await %linear_1_on_sim0 from sim1 to sim0 on sim0
        output %linear_1_on_sim0 from sim0
        """
    )


@pytest.mark.parametrize("rests", ["cpu", "disk"])
def test_a_run_finds_the_weights_that_it_reads_and_no_others(rests: str) -> None:
    schedule = list(sample(rests=rests).schedule or ())
    loads = [one for one in schedule if isinstance(one, Load)]
    assert len(loads) == len([one for one in schedule if isinstance(one, Release)]) == 4
    for run in (one for one in schedule if isinstance(one, Run)):
        awaited = {one.started for step in run.steps for one in step.awaits if isinstance(one.started, Load)}
        found = {name for load in awaited for name in load.weights}
        assert found == {name for node in run.nodes for name in node.meta["placement"].weights}


def placed(module: nn.Module, x: Tensor, rests: str, *devices: str) -> Program:
    program = trace(module, (x,))
    program.rig = Rig.of(**dict.fromkeys(devices, 2**20))
    program.keep(Residency(rests or "device"))
    return PassManager(parse_passes(f"{ALL},verify")).run(program)


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))


@pytest.mark.parametrize(("rests", "staged"), [("", 0), ("cpu", 2), ("disk", 3)])
def test_what_rests_in_host_memory_is_not_staged_for_the_host(rests: str, staged: int) -> None:
    program = placed(layers(), torch.ones(1, 8), rests, "sim0", "cpu", "sim1")
    assert len([one for one in program.schedule or () if isinstance(one, Release)]) == staged


class Tables(nn.Module):
    """Reads a buffer, and returns one parameter and a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.returned = nn.Parameter(torch.ones(8))
        self.viewed = nn.Parameter(torch.ones(8, 8))
        self.register_buffer("table", torch.ones(8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.layer(x) + self.table + self.returned, self.returned, self.viewed.t()


def test_buffers_stay_and_so_does_what_is_seen_after_the_run() -> None:
    program = placed(Tables(), torch.ones(1, 8), "disk", "sim0")
    loads = [one for one in program.schedule or () if isinstance(one, Load)]
    names = [set(load.weights) for load in loads]
    assert names == [{"table", "returned", "viewed"}, {"layer.weight", "layer.bias"}]


def test_text_says_where_weights_rest() -> None:
    program = sample(rests="disk")
    assert "\nrests disk\n" in print_program(program)
    assert parse_program(print_program(program)).residency == program.residency
    assert print_program(parse_program(print_program(program))) == print_program(program)
    with pytest.raises(ProgramTextError, match="weights are kept on the cpu or the disk"):
        parse_program(print_program(program).replace("rests disk", "rests moon"))


def test_text_says_of_a_weight_where_it_rests_only_where_most_rest_elsewhere() -> None:
    program = sample(rests="cpu")
    first, second, *_ = program.weights
    program.residency[first] = Residency.DISK
    del program.residency[second]
    text = print_program(program)
    assert "\nrests cpu\n" in text
    assert [line.split('"')[1] for line in text.splitlines() if " rests " in line] == [first, second]
    assert parse_program(text).residency == program.residency
    assert print_program(parse_program(text)) == text


def test_the_deep_verifier_runs_a_staged_schedule() -> None:
    program = sample(rests="cpu")
    assert verify_deep(program) == len(list(program.ops()))


def drop_a_load(program: Program, load: int) -> list[object]:
    schedule = list(program.schedule or ())
    return [*schedule[:load], *schedule[load + 1 :]]


def release_before_the_run(program: Program, load: int) -> list[object]:
    schedule = list(program.schedule or ())
    release = next(index for index in range(load, len(schedule)) if isinstance(schedule[index], Release))
    moved = schedule.pop(release)
    return [*schedule[: load + 1], moved, *schedule[load + 1 :]]


def release_twice(program: Program, load: int) -> list[object]:
    schedule = list(program.schedule or ())
    release = next(index for index in range(load, len(schedule)) if isinstance(schedule[index], Release))
    return [*schedule[:release], schedule[release], *schedule[release:]]


def load_on_another_device(program: Program, load: int) -> list[object]:
    schedule = list(program.schedule or ())
    one = schedule[load]
    assert isinstance(one, Load)
    other = next(device for device in program.devices if device != one.device)
    return [*schedule[:load], replace(one, device=other, slot=9), *schedule[load + 1 :]]


def never_release(program: Program, load: int) -> list[object]:
    return [one for one in program.schedule or () if not isinstance(one, Release)]


def never_await(program: Program, load: int) -> list[object]:
    assert program.schedule is not None
    started = program.schedule.instructions[load]
    return list(without(program.schedule, lambda one: isinstance(one, Await) and one.started == started))


def take_the_slot_of_the_stage_before(program: Program, load: int) -> list[object]:
    """The second load of the device is started into the slot of the first, whose stage has not run."""
    assert program.schedule is not None
    kept, first = program.schedule.instructions, program.schedule.instructions[load]
    second = next(one for at, one in enumerate(kept) if at > load and is_load_of(program, at, load))
    assert isinstance(first, Load)
    assert isinstance(second, Load)
    there = replace(second, slot=first.slot)
    spoiled = changed(program.schedule, lambda one: rebound(one, second, there, there))
    renamed = {second: there, Release(second): Release(there)}
    return [renamed.get(one, one) for one in spoiled]  # type: ignore[call-overload]


def is_load_of(program: Program, index: int, load: int) -> bool:
    assert program.schedule is not None
    one, first = program.schedule.instructions[index], program.schedule.instructions[load]
    return isinstance(one, Load) and isinstance(first, Load) and one.device == first.device


def use_in_the_next_stage(program: Program, load: int) -> list[object]:
    """The second stage of the device has no load of its own, and finds what the first one has loaded."""
    assert program.schedule is not None
    kept, first = list(program.schedule), program.schedule.instructions[load]
    assert isinstance(first, Load)
    second = next(one for at, one in enumerate(kept) if at > load and is_load_of(program, at, load))
    assert isinstance(second, Load)
    both = replace(first, weights=(*first.weights, *second.weights))
    ours = (Load, Release)
    return [
        both if one == first else replace(one, load=both) if isinstance(one, Release) else one
        for one in changed(program.schedule, lambda one: rebound(one, first, both, second))
        if not (isinstance(one, ours) and getattr(one, "load", one) == second)
    ]


def rebound(one: Any, first: Load, both: Load, second: Load) -> list[Any]:
    if isinstance(one, Await) and one.started == second:
        return []
    return [replace(one, started=both)] if isinstance(one, Await) and one.started == first else [one]


def keep_for_a_phase_that_nobody_ends(program: Program, load: int) -> list[object]:
    assert program.schedule is not None
    first = program.schedule.instructions[load]
    assert isinstance(first, Load)
    kept = replace(first, lifetime=Lifetime.PHASE, slot=9)
    spoiled = changed(program.schedule, lambda one: rebound(one, first, kept, kept))
    return [kept if one == first else one for one in spoiled if one != Release(first)]


def two_stages() -> Program:
    """Two devices with two stages each."""
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    return placed(module, torch.ones(1, 8), "cpu", "sim0", "sim1")


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("wait", drop_a_load),
        ("load", release_before_the_run),
        ("load", release_twice),
        ("wait", load_on_another_device),
        ("slot", never_release),
        ("load", never_await),
        ("slot", take_the_slot_of_the_stage_before),
        ("load", use_in_the_next_stage),
        ("rest", keep_for_a_phase_that_nobody_ends),
    ],
)
def test_the_verifier_finds_what_is_staged_wrongly(rule: str, spoil: Callable[[Program, int], list[object]]) -> None:
    program = two_stages()
    verify(program)
    load = next(index for index, one in enumerate(program.schedule or ()) if isinstance(one, Load))
    program.schedule = Schedule(tuple(spoil(program, load)))  # type: ignore[arg-type]
    with pytest.raises(VerificationError, match=f"^rule {rule}: "):
        verify(program)


def kept(room: int) -> Program:
    """Six layers on a device with so many bytes, of which some come and go and as many as fit stay for a phase."""
    program = trace(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), (torch.ones(1, 8),))
    program.rig = Rig.of(sim0=room)
    program.keep(Residency.HOST)
    program.keeps_staged = True
    return PassManager(parse_passes(f"{ALL},verify")).run(program)


def loads_of(program: Program, lifetime: Lifetime) -> list[Load]:
    return [one for one in program.schedule or () if isinstance(one, Load) and one.lifetime is lifetime]


@pytest.mark.fifth
@given(st.integers(1100, 2400))
def test_each_load_of_a_phase_has_a_slot_of_its_own_behind_those_that_are_filled_again(room: int) -> None:
    program = kept(room)
    phase, stage = ([one.slot for one in loads_of(program, lasts)] for lasts in (Lifetime.PHASE, Lifetime.STAGE))
    refilled = sorted(set(stage))
    assert refilled == list(range(len(refilled)))
    assert phase == list(range(len(refilled), len(refilled) + len(phase)))
    assert len(phase) + len(stage) == 6
    assert str(parse_schedule(str(program.schedule), program)) == str(program.schedule)


def test_some_rooms_have_both_kinds_of_slots_and_a_large_one_those_of_a_phase_alone() -> None:
    assert loads_of(kept(1700), Lifetime.PHASE)
    assert loads_of(kept(1700), Lifetime.STAGE)
    assert not loads_of(kept(2**20), Lifetime.STAGE)


def in_no_slot(first: Load, stage: Load) -> Load:
    return replace(first, slot=-1)


def in_one_that_is_refilled(first: Load, stage: Load) -> Load:
    return replace(first, slot=stage.slot)


@pytest.mark.parametrize("move", [in_no_slot, in_one_that_is_refilled])
def test_the_verifier_finds_a_load_of_a_phase_whose_slot_is_not_its_own(move: Callable[[Load, Load], Load]) -> None:
    program = kept(1700)
    assert program.schedule is not None
    first, stage = (loads_of(program, lasts)[-1] for lasts in (Lifetime.PHASE, Lifetime.STAGE))
    moved = move(first, stage)
    spoiled = changed(program.schedule, lambda one: [moved] if one == first else rebound(one, first, moved, moved))
    program.schedule = Schedule(tuple(spoiled))
    with pytest.raises(VerificationError, match=r"^rule slot: "):
        verify(program)


def test_the_verifier_finds_slots_for_stages_that_are_not_counted_from_the_first() -> None:
    program = two_stages()
    assert program.schedule is not None
    last = loads_of(program, Lifetime.STAGE)[-1]
    moved = replace(last, slot=7)
    released = {Release(last): Release(moved), last: moved}
    spoiled = changed(
        program.schedule, lambda one: [released.get(one, new) for new in rebound(one, last, moved, moved)]
    )
    program.schedule = Schedule(tuple(spoiled))
    with pytest.raises(VerificationError, match=r"(?s)^rule slot: .*the one before it is not"):
        verify(program)

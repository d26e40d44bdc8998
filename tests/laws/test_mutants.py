"""Mutants: every transfer dropped, every weight misplaced, every value freed early, every wait dropped. None survives.

Each mutant is shown to the verifier and, apart from that, run on simulated devices: there it must raise, for it mixes
devices, reads what is not there or races, or it must at least yield other bits than the module. What runs differently
only where a device is slow is tried with the slow device as well (`Clockwork`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import VerificationError
from dovetail.compiler.ir.aliasing import storages_of, writes
from dovetail.compiler.ir.boxes import Box, Landing
from dovetail.compiler.ir.program import Program, place_node, placement_of
from dovetail.compiler.ir.schedule import Allocate, Await, Copy, Free, Run, Schedule
from dovetail.compiler.ir.split import maker_of, source_of, split_of
from dovetail.compiler.ir.state import WHOLE, Partial, Split
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.states.parts import pieces
from dovetail.passes.placement.pin import pinned
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim, steps, transport
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.devices.transfers import Arrival
from dovetail.runtime.store.program_weights import ProgramWeights
from tests.cases import slow_but

from .modules import WIDTH
from .oracles import Clockwork, contents, placed_by
from .schedules import changed, freed_early, moved_before, without
from .subjects import TOWERS, Subject, count
from .wide_modules import Gated

ROWS = "a split by rows"


def split_by_rows() -> Subject:
    """What its mutants must yield is what it yields itself: parts of a matrix may be multiplied by in another order."""
    for index in range(3):
        sim.synchronize(index)  # mutants before may have left copies on their way
    module, args = Wide().eval(), (torch.randn(2, 3, 256),)
    compiled = dovetail.compile(module, args, backend="sim0&sim1&sim2", split_mode="row", tensor_split="16,10,6")
    return Subject(compiled, ProgramWeights.of_module(module, compiled.program), args, [compiled(*args)])


@pytest.fixture(scope="module", params=[*slow_but({"writes that overtake"}, TOWERS), ROWS])
def subject(request: pytest.FixtureRequest) -> Subject:
    torch.manual_seed(0)
    if request.param == ROWS:
        return split_by_rows()
    module = TOWERS[request.param]().eval()
    args = (torch.randn(2, 4, WIDTH), torch.randn(2, WIDTH))
    compiled = dovetail.compile(module, args, backend="sim0&sim1&sim2", rig="sim0=24MiB,sim1=16MiB,sim2=8MiB")
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*args))
    found = Subject(compiled, ProgramWeights.of_module(module, compiled.program), args, expected)
    assert len(found.program.segments) >= 3
    assert found.is_accepted(compiled.schedule)
    assert found.survives(compiled.schedule)
    return found


class Wide(nn.Module):
    """Blocks with matrices large enough to be split by rows; a gate and what it multiplies stay apart."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Gated() for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def is_transfer(one: Any, copy: Copy) -> bool:
    return (
        one == copy
        or (isinstance(one, Await) and one.started == copy)
        or (isinstance(one, Free) and (one.value, one.device) == (copy.value, copy.target))
    )


def copies_of(schedule: Schedule) -> list[Copy]:
    return [one for one in schedule.flat() if isinstance(one, Copy)]


def test_every_dropped_transfer_is_caught_by_the_verifier(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    copies = copies_of(schedule)
    mutants = [without(schedule, lambda one, copy=copy: is_transfer(one, copy)) for copy in copies]
    count([subject.is_accepted(mutant) for mutant in mutants], "dropped transfers", "verifier")


def test_every_transfer_that_readers_pass_by_is_caught_by_the_verifier(subject: Subject) -> None:
    verdicts = []
    for transfer in list(subject.program.transfers()):
        for reader in list(transfer.users):
            kept = reader.args, reader.kwargs
            reader.replace_input_with(transfer, source_of(transfer))
            verdicts.append(subject.is_accepted(subject.compiled.schedule))
            reader.args, reader.kwargs = kept
    count(verdicts, "values read where they are not", "verifier")


def test_every_transfer_that_stands_elsewhere_is_caught_by_the_verifier(subject: Subject) -> None:
    """Before what makes its value, before its last write, or behind a later one; in between nothing else is right."""
    verdicts, program = [], subject.program
    for transfer in list(program.transfers()):
        before, maker = transfer.prev, maker_of(transfer)
        places = [maker.prev] if maker.op == "call_function" else []
        memory = set(storages_of(source_of(transfer)))
        places += [one for one in program.ops() if transfer < one and writes(one) & memory]
        for place in places:
            place.append(transfer)
            verdicts.append(subject.is_accepted(subject.compiled.schedule))
        before.append(transfer)
    count(verdicts, "misplaced transfers", "verifier")


@pytest.fixture
def spoiled_wholes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a whole holds no numbers at first: it may be that of the last call, which had the right ones."""
    allocate = steps.allocate

    def allocate_spoiled(slot: int, *rest: Any) -> steps.Step:
        make = allocate(slot, *rest)

        def spoil(values: steps.Values) -> None:
            make(values)
            values[slot].fill_(math.nan)

        return spoil

    monkeypatch.setattr(steps, "allocate", allocate_spoiled)


@pytest.mark.usefixtures("spoiled_wholes")
def test_every_value_that_stays_where_it_was_is_caught_when_it_runs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy yields the value itself, still where it was; only `copy_` may read it there, as on every device."""
    send, send_boxes, verdicts = transport.start_copy, transport.start_copies, []
    copies = [one for one in copies_of(subject.compiled.schedule) if one.source != one.target]
    for dropped in (index for index, one in enumerate(copies) if not is_read_by_copying(one)):
        turn = iter(range(10**6))

        def start(value: Any, target: torch.device, turn: Any = turn, dropped: int = dropped) -> Arrival:
            return send(value, value.device if next(turn) == dropped else target)

        def start_boxes(boxes: Any, target: torch.device, places: Any, turn: Any = turn, dropped: int = dropped) -> Any:
            return send(boxes[0], boxes[0].device) if next(turn) == dropped else send_boxes(boxes, target, places)

        monkeypatch.setattr(transport, "start_copy", start)
        monkeypatch.setattr(transport, "start_copies", start_boxes)
        verdicts.append(subject.survives(subject.compiled.schedule))
    count(verdicts, "values that stayed", "running")


def is_read_by_copying(copy: Copy) -> bool:
    """Whether all that reads a value on another device is `copy_`, which takes its source from anywhere."""
    readers = list(copy.value.node.users)
    return all(node.target is torch.ops.aten.copy_.default for node in readers)


def misplaced(subject: Subject) -> Iterator[tuple[Weight, torch.device]]:
    for weight, home in pieces(subject.program).values():
        yield weight, next(one for one in subject.program.devices if one != home).torch


def test_every_misplaced_weight_is_caught_by_the_verifier(subject: Subject) -> None:
    """One by which no operation is placed (a matrix with a bias) is read where it was: then nothing is elsewhere."""
    program, verdicts, homes = subject.program, [], subject.program.home
    followed, places = placed_by(program), ops_of(program, homes)
    for weight in program.weights.values():
        other = next(one for one in program.devices if one != homes[weight.name])
        program.home = {**homes, weight.name: other}
        verdict = subject.is_accepted(subject.compiled.schedule)
        if weight.name in followed:
            verdicts.append(verdict)
        else:
            assert verdict
            assert ops_of(program, program.home) == places
    program.home = homes
    count(verdicts, "misplaced weights", "verifier")


def ops_of(program: Program, home: dict[str, Device]) -> dict[Node, Device]:
    found = pinned(program, home)
    return {node: found[node][0] for node in program.ops()}


def test_every_weight_that_is_loaded_elsewhere_is_caught_by_the_verifier(subject: Subject) -> None:
    verdicts = []
    schedule = subject.compiled.schedule
    for index, one in enumerate(schedule):
        for name in getattr(one, "weights", ()):
            fewer = replace(one, weights=tuple(other for other in one.weights if other != name))  # type: ignore[call-arg, union-attr]
            elsewhere = next(device for device in subject.program.devices if device != one.device)  # type: ignore[union-attr]
            moved = (fewer, replace(fewer, number=99, device=elsewhere, weights=(name,)))  # type: ignore[call-arg]
            kept = schedule.instructions
            verdicts.append(subject.is_accepted(Schedule((*kept[:index], *moved, *kept[index + 1 :]))))
    count(verdicts, "weights loaded elsewhere", "verifier")


@pytest.mark.fifth
def test_every_misplaced_weight_is_caught_when_it_runs(subject: Subject) -> None:
    verdicts = []
    for weight, elsewhere in misplaced(subject):

        def load(one: Weight, device: torch.device, weight: Weight = weight, there: torch.device = elsewhere) -> Any:
            return subject.weights(one, there if one == weight else device)

        verdicts.append(subject.survives(subject.compiled.schedule, load))
    count(verdicts, "misplaced weights", "running")


@pytest.mark.fifth
def test_every_value_freed_one_node_early_is_caught(subject: Subject) -> None:
    mutants = list(freed_early(subject.compiled.schedule))
    count([subject.is_accepted(mutant) for mutant in mutants], "early frees", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "early frees", "running")


def is_timely(subject: Subject, schedule: Schedule, wait: Await) -> bool:
    """Whether a schedule is carried out rightly when the copy that a wait is for takes longer than anything else."""
    slow = [10**6 if one == wait.started else 1 for one in schedule.flat()]
    try:
        Clockwork(subject.program, schedule, slow).run()
    except AssertionError:
        return False
    return True


def awaits_of(schedule: Schedule, arriving: bool) -> list[Await]:
    """What waits for copies: where they arrive, or where their source is written next."""
    found = (one for one in schedule.flat() if isinstance(one, Await))
    return [one for one in found if isinstance(one.started, Copy) and (one.device == one.started.target) is arriving]


def dropped(subject: Subject, arriving: bool) -> list[tuple[Await, Schedule]]:
    schedule = subject.compiled.schedule
    waits = awaits_of(schedule, arriving)
    return [(wait, without(schedule, lambda one, wait=wait: one is wait)) for wait in waits]


@pytest.fixture
def separate_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each copy a stream of its own, so that waiting for another copy never stands in for waiting for it."""
    kind = type(accelerator_of(torch.device("sim", 0)))
    monkeypatch.setattr(kind, "side_stream", lambda self, purpose=None: sim.Stream(self.device))


@pytest.mark.usefixtures("spoiled_wholes")
def test_every_dropped_wait_is_caught(subject: Subject) -> None:
    """Without a wait a device's thread may read a whole before any part of it is sent, which is no race."""
    mutants = dropped(subject, arriving=True)
    count([subject.is_accepted(mutant) for _, mutant in mutants], "dropped waits", "verifier")
    count([subject.survives(mutant) for _, mutant in mutants], "dropped waits", "running")
    count([is_timely(subject, mutant, wait) for wait, mutant in mutants], "dropped waits", "slow copies")


@pytest.mark.usefixtures("separate_streams")
def test_every_wait_that_does_not_wait_is_a_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is taken as it is, without its stream having waited for the copy."""
    wait, verdicts = Arrival.wait, []
    for hurried in range(len(awaits_of(subject.compiled.schedule, arriving=True))):
        turn = iter(range(10**6))

        def hurry(self: Arrival, turn: Any = turn, hurried: int = hurried) -> torch.Tensor:
            return self._value if next(turn) == hurried else wait(self)

        monkeypatch.setattr(Arrival, "wait", hurry)
        verdicts.append(subject.survives(subject.compiled.schedule))
    count(verdicts, "waits that do not wait", "running")


@pytest.mark.usefixtures("separate_streams")
def test_every_dropped_wait_on_the_source_is_caught(subject: Subject) -> None:
    """Running catches it, unless the result of what was copied has come back before the memory is written."""
    mutants = dropped(subject, arriving=False)
    if not mutants:
        assert not any(contents(subject.program).values())
        return
    count([subject.is_accepted(mutant) for _, mutant in mutants], "dropped waits on the source", "verifier")
    raced = [not subject.survives(mutant) for _, mutant in mutants]
    assert raced == [not is_timely(subject, mutant, wait) for wait, mutant in mutants]
    print(f"running: {sum(raced)} of {len(raced)} dropped waits on the source are races, and caught")
    assert any(raced) or subject.program.name != "Overtaking"


def test_every_node_on_another_device_is_caught_by_both_verifiers(subject: Subject) -> None:
    verdicts, deep = [], []
    for node in list(subject.program.ops()):
        segment = subject.program.segments[node.meta["placement"].segment]
        other = next(one for one in subject.program.devices if one != segment.device)
        kept = placement_of(node).group
        place_node(node, group=(other,))
        verdicts.append(subject.is_accepted(subject.compiled.schedule))
        if len(verdicts) % 8 == 1:
            deep.append(_rehearses(subject.program))
        place_node(node, group=kept)
    count(verdicts, "misplaced nodes", "verifier")
    count(deep, "misplaced nodes", "deep verifier")


def _rehearses(program: Program) -> bool:
    try:
        verify_deep(program)
    except (VerificationError, KeyError):
        return False
    return True


def landed_elsewhere(schedule: Schedule) -> Iterator[Schedule]:
    """Each part that lands in a whole a column too early, or at its beginning."""
    for one in copies_of(schedule):
        ((axis, first, length),) = one.landings[0].into.ranges if one.landings else ((0, 0, 0),)
        for start in {first - 1, 0} - {first} if one.landings else ():
            moved = replace(one, landings=(Landing(Box(), Box(((axis, start, length),))),))

            def land(other: Any, one: Copy = one, moved: Copy = moved) -> list[Any]:
                if isinstance(other, Await) and other.started == one:
                    return [replace(other, started=moved)]
                return [moved if other == one else other]

            yield changed(schedule, land)


@pytest.mark.fifth
@pytest.mark.usefixtures("spoiled_wholes")
def test_every_part_that_lands_in_another_place_is_caught() -> None:
    torch.manual_seed(0)
    subject = split_by_rows()
    assert subject.survives(subject.compiled.schedule)
    mutants = list(landed_elsewhere(subject.compiled.schedule))
    assert len(mutants) == 2 * (3 + 1) * (1 + 2 + 2), "two blocks, a whole on three devices and one, parts from three"
    count([subject.is_accepted(mutant) for mutant in mutants], "parts that land elsewhere", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "parts that land elsewhere", "running")


def test_every_operation_that_is_split_otherwise_is_caught_by_the_verifier() -> None:
    torch.manual_seed(0)
    subject, verdicts = split_by_rows(), []
    for node in filter(split_of, subject.program.ops()):
        kept, states = split_of(node), placement_of(node).states
        assert kept is not None
        ((start, stop), (_, end), *rest) = kept.segments[0]
        later, none = ((start, stop - 1), (stop - 1, end), *rest), ((start, end), (end, end), *rest)
        others = (Split(kept.axis, (later,)), Split(kept.axis, (none,)), Split(0, kept.segments), Partial(), WHOLE)
        for other in others:
            place_node(node, states=((other,),))
            verdicts.append(subject.is_accepted(subject.compiled.schedule))
        place_node(node, states=states)
    count(verdicts, "operations split otherwise", "verifier")


def test_every_whole_that_is_not_allocated_or_allocated_late_is_caught() -> None:
    torch.manual_seed(0)
    subject = split_by_rows()
    schedule = subject.compiled.schedule
    mutants = []
    for index, one in enumerate(schedule):
        if isinstance(one, Allocate):
            run = next(at for at in range(index, len(schedule)) if isinstance(schedule.instructions[at], Run))
            mutants += [without(schedule, lambda other, one=one: other is one), moved_before(schedule, index, run)]
    assert len(mutants) == 2 * (3 + 1) * 2, "two blocks, a whole on three devices and one on one"
    count([subject.is_accepted(mutant) for mutant in mutants], "wholes without memory", "verifier")
    count([subject.survives(mutant) for mutant in mutants], "wholes without memory", "running")


def test_every_part_that_is_copied_twice_is_caught_by_the_verifier() -> None:
    torch.manual_seed(0)
    subject = split_by_rows()
    schedule = subject.compiled.schedule
    parts = [one for one in copies_of(schedule) if one.landings]
    mutants = [changed(schedule, lambda one, part=part: [one, one] if one is part else [one]) for part in parts]
    count([subject.is_accepted(mutant) for mutant in mutants], "parts that are copied twice", "verifier")


def gathers(schedule: Schedule) -> Iterator[tuple[Allocate, list[Copy]]]:
    """Each allocation with the copies of parts that land in it."""
    for one in schedule:
        if isinstance(one, Allocate):
            yield one, [copy for copy in copies_of(schedule) if copy.landings and copy.value == one.value]


def test_every_whole_that_is_made_anew_or_where_nothing_lands_is_caught_by_the_verifier() -> None:
    torch.manual_seed(0)
    subject, mutants = split_by_rows(), []
    schedule = subject.compiled.schedule
    for whole, parts in gathers(schedule):
        last = max(index for index, one in enumerate(schedule) if isinstance(one, Await) and one.started in parts)
        anew = (Free(whole.value, whole.device), whole)
        mutants.append(Schedule((*schedule.instructions[: last + 1], *anew, *schedule.instructions[last + 1 :])))
        for copy in copies_of(schedule):
            if copy.sent == whole.value:  # sent on to another device
                mutants.append(changed(schedule, lambda one, copy=copy: allocated(one, copy)))
    assert len(mutants) > 4
    count([subject.is_accepted(mutant) for mutant in mutants], "wholes that nothing fills", "verifier")


def allocated(one: Any, copy: Copy) -> list[Any]:
    """What stands in the place of an instruction where memory stands in the place of a copy."""
    if one == copy:
        return [Allocate(copy.value, copy.target)]
    return [] if isinstance(one, Await) and one.started == copy else [one]


def test_every_part_that_lands_on_another_device_is_caught_by_the_verifier() -> None:
    torch.manual_seed(0)
    subject, mutants = split_by_rows(), []
    schedule = subject.compiled.schedule
    for whole, parts in gathers(schedule):
        for part in (one for one in parts if one.source != one.target):
            elsewhere = next(one for one in subject.program.devices if one not in (part.source, part.target))
            moved = replace(part, target=elsewhere)
            there = (whole, replace(whole, device=elsewhere))

            def move(one: Any, part: Copy = part, moved: Copy = moved, there: Any = there) -> list[Any]:
                if isinstance(one, Await) and one.started == part:
                    return [Await(moved, moved.target)]
                return list(there) if one == there[0] else [moved if one == part else one]

            mutants.append(changed(schedule, move))
    count([subject.is_accepted(mutant) for mutant in mutants], "parts on another device", "verifier")


def freed_later(schedule: Schedule) -> Iterator[Schedule]:
    """Each free of a step at the first node of the next run on its device, which need not read the value."""
    kept = schedule.instructions
    for index, run in enumerate(kept):
        if not isinstance(run, Run):
            continue
        later = next((at for at in range(index + 1, len(kept)) if _is_run_on(kept[at], run.device)), None)
        for free in [free for step in run.steps for free in step.frees] if later is not None else ():
            fewer = tuple(replace(step, frees=tuple(one for one in step.frees if one != free)) for step in run.steps)
            target = kept[later]
            assert isinstance(target, Run)
            first = replace(target.steps[0], frees=(*target.steps[0].frees, free))
            instructions = list(kept)
            instructions[index] = replace(run, steps=fewer)
            instructions[later] = replace(target, steps=(first, *target.steps[1:]))
            yield Schedule(tuple(instructions))


def _is_run_on(one: Any, device: Device) -> bool:
    return isinstance(one, Run) and one.device == device


@pytest.mark.fifth
def test_a_value_may_be_freed_in_a_later_run_that_does_not_read_it(subject: Subject) -> None:
    mutants = list(freed_later(subject.compiled.schedule))
    assert mutants
    assert all(map(subject.is_accepted, mutants))
    assert all(map(subject.survives, mutants))

"""Micro-batches: each part is what the module computes of it alone, bit by bit, and no part knows of another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx import Node

import dovetail
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.errors import VerificationError
from dovetail.compiler.ir.program import Program, part_of, place_node
from dovetail.compiler.ir.schedule import Await, Copy, Run, Schedule
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.batches.divide import micro_batches_asked, micro_batches_of
from dovetail.passes.simulate.timeline import timeline
from dovetail.passes.verify.verifier import verify
from dovetail.runtime.store.program_weights import ProgramWeights
from tests.cases import examples
from tests.measured import budget, least, measured, predicted
from tests.runtime.test_threads import executor_of, with_step, with_step_of

from .schedules import without
from .subjects import Subject, count
from .wide_modules import PIECES, WIDTH, Attention, Gated, Stack

few = examples(3, 8)
Cut = list[tuple[int, int]]


def parts_of(size: int, number: int) -> Cut:
    """Where the parts begin and end of so many pictures, each rounded to a whole picture."""
    ends = [int(size * at / min(size, number) + 0.5) for at in range(min(size, number) + 1)]
    return list(pairwise(ends))


def one_by_one(module: nn.Module, x: torch.Tensor, number: int) -> torch.Tensor:
    """What the module itself computes of one part after the other."""
    with torch.no_grad():
        return torch.cat([module(x[start:stop]) for start, stop in parts_of(len(x), number)])


@pytest.mark.fifth
@few
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=2),
    st.integers(2, 5),
    st.integers(2, 4),
    st.sampled_from(["sim0&sim1", "sim0&sim1&sim2"]),
)
def test_each_part_is_what_the_module_computes_of_it_and_peaks_are_as_predicted(
    kinds: list[Any], pictures: int, number: int, devices: str
) -> None:
    gc.collect()
    torch.manual_seed(0)
    module, x = Stack(tuple(kinds), 3).eval(), torch.randn(pictures, 3, WIDTH)
    compiled = dovetail.compile(module, (x,), backend=devices, micro_batches=number)
    assert micro_batches_of(compiled.program) == min(number, pictures)
    assert torch.equal(compiled(x), one_by_one(module, x, number))
    compiled.unload()
    expected = predicted(compiled.program)
    assert measured(compiled, (x,), {}) == expected
    again = parse_program(print_program(compiled.program))
    assert print_program(again) == print_program(compiled.program)


@pytest.mark.fifth
@few
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=2), st.integers(2, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_no_budget_is_exceeded(kinds: list[Any], pictures: int, part: float) -> None:
    gc.collect()
    torch.manual_seed(0)
    module, x, needs = Stack(tuple(kinds), 3).eval(), torch.randn(pictures, 30, WIDTH), dict[str, int]()
    asked = {"backend": "sim0&sim1", "micro_batches": 2, "tensor_split": "1,1"}  # as budgets alone would say otherwise
    roomy = dovetail.compile(module, (x,), callbacks=[least(needs)], **asked)  # type: ignore[arg-type]
    granted = budget(needs, predicted(roomy.program), part)
    if not granted:
        return
    compiled = dovetail.compile(module, (x,), max_vram=granted, **asked)  # type: ignore[arg-type]
    peaks = measured(compiled, (x,), {})
    assert peaks == predicted(compiled.program)
    assert all(peaks[one.split("=")[0]] <= int(one.split("=")[1].removesuffix("B")) for one in granted.split(","))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Stack((Attention, Gated), 2).eval()


X = torch.randn(2, 8, WIDTH)


@pytest.fixture(scope="module")
def subject(module: nn.Module) -> Subject:
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", micro_batches=2)
    weights = ProgramWeights.of_module(module, compiled.program)
    return Subject(compiled, weights, (X,), [one_by_one(module, X, 2)])


def test_devices_work_at_the_same_time(subject: Subject) -> None:
    """While the second device computes the first part, the first one computes the second: neither waits for that."""
    executor = executor_of(subject.compiled)
    subject.compiled(X)
    runs = {number: one for number, one in enumerate(subject.compiled.schedule) if isinstance(one, Run)}
    pair = [run for run in runs.values() if (run.segment.part, run.device.index) in ((1, 0), (0, 1))][:2]
    assert {run.device.index for run in pair} == {0, 1}
    meeting = threading.Barrier(2, timeout=60)
    undo = [with_step_of(executor, number, meeting.wait) for number, run in runs.items() if run in pair]
    try:
        assert torch.equal(subject.compiled(X), subject.expected[0])
    finally:
        for one in undo:
            one()


def test_the_clocks_of_the_devices_overlap(subject: Subject) -> None:
    """By the predicted clocks two devices are busy together for at least a third of what they are busy."""
    line = timeline(subject.program, speeds_of(subject.program.rig))
    spans = {device: [one for one in line.spans if one.lane == device] for device in ("sim0", "sim1")}
    both = sum(
        max(0.0, min(one.end, other.end) - max(one.start, other.start))
        for one in spans["sim0"]
        for other in spans["sim1"]
    )
    assert both > (line.busy("sim0") + line.busy("sim1")) / 6


def test_one_thread_computes_the_same(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_of(subject.compiled), "_turns", None)
    assert torch.equal(subject.compiled(X), subject.expected[0])


@pytest.mark.parametrize("device", [0, 1])
def test_an_error_in_one_part_ends_the_call_and_nothing_else(subject: Subject, device: int) -> None:
    def fail() -> None:
        raise ValueError("of one part")

    subject.compiled(X)  # which brings weights, and makes its steps
    executor = executor_of(subject.compiled)
    undo = with_step(executor, device, fail)
    try:
        with pytest.raises(dovetail.compiler.errors.ExecutionError):
            subject.compiled(X)
    finally:
        undo()
    assert torch.equal(subject.compiled(X), subject.expected[0])


def test_every_dropped_await_and_copy_is_caught(subject: Subject) -> None:
    schedule = subject.compiled.schedule
    dropped = [one for one in schedule.flat() if isinstance(one, (Await, Copy))]
    mutants = [without(schedule, lambda one, gone=gone: one == gone) for gone in dropped]
    count([subject.is_accepted(mutant) for mutant in mutants], "dropped awaits and copies", "verifier")


def test_every_run_that_is_left_out_or_comes_before_another_is_caught(subject: Subject) -> None:
    kept = subject.compiled.schedule.instructions
    runs = [at for at, one in enumerate(kept) if isinstance(one, Run)]
    left_out = [Schedule((*kept[:at], *kept[at + 1 :])) for at in runs]
    swapped = []
    for one, other in pairwise(runs):
        found = list(kept)
        found[one], found[other] = found[other], found[one]
        swapped.append(Schedule(tuple(found)))
    count([subject.is_accepted(mutant) for mutant in (*left_out, *swapped)], "runs at another place", "verifier")


def test_every_value_of_another_part_is_caught(subject: Subject) -> None:
    """What one part reads of another has the same type, so that nothing else would tell."""
    verdicts = []
    program = subject.program
    twins = {node.name: node for node in program.graph.nodes}
    for node in list(program.ops()):
        for operand in list(node.all_input_nodes):
            twin = twins.get(operand.name.replace("_part0", "_part1"))
            if part_of(operand) == 0 and twin is not None and twin is not operand:
                with another_operand(node, operand, twin):
                    verdicts.append(is_accepted(program))
    assert verdicts
    count(verdicts, "values of another part", "verifier")


def test_every_part_with_another_number_is_caught(subject: Subject) -> None:
    verdicts = []
    for node in (one for one in subject.program.ops() if part_of(one) is not None):
        own = part_of(node)
        place_node(node, part=1 - own)  # type: ignore[operator]
        verdicts.append(is_accepted(subject.program))
        place_node(node, part=own)
    count(verdicts, "parts with another number", "verifier")


def test_parts_that_are_joined_or_taken_in_another_order_are_caught(subject: Subject) -> None:
    verdicts = []
    program = subject.program
    (joined,) = [one for one in program.ops() if one.name.endswith("_joined")]
    parts, *others = joined.args
    for order in (parts[::-1], parts[:1] * 2):  # type: ignore[index]
        joined.args = (order, *others)
        verdicts.append(is_accepted(program))
    joined.args = (parts, *others)
    taken = [one for one in program.ops() if part_of(one) is not None and one.all_input_nodes[0].op == "placeholder"]
    slices = [one for one in taken if one.target is torch.ops.aten.slice.Tensor]
    kept = [one.args for one in slices]
    for node, args in zip(slices, reversed(kept), strict=True):
        node.args = args
    verdicts.append(is_accepted(program))
    for node, args in zip(slices, kept, strict=True):
        node.args = args
    assert is_accepted(program)
    count(verdicts, "parts in another order", "verifier")


@contextmanager
def another_operand(node: Node, operand: Node, twin: Node) -> Iterator[None]:
    kept = node.args, node.kwargs
    node.replace_input_with(operand, twin)
    yield
    node.args, node.kwargs = kept


def is_accepted(program: Program) -> bool:
    try:
        verify(program)
    except VerificationError:
        return False
    return True


class Mixing(Stack):
    """Takes the mean of all pictures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


REFUSED: dict[str, tuple[type[Stack], int, dict[str, Any], str]] = {
    "pictures that are mixed": (Mixing, 2, {}, "mean"),
    "one picture": (Stack, 1, {}, "one picture"),
    "weights that come in a call": (Stack, 2, {"params_backend": "cpu"}, "come in a call"),
    "a size that changes": (
        Stack,
        2,
        {"dynamic_shapes": {"x": {1: torch.export.Dim("n")}}},
        "differ from call to call",
    ),
    "a split by rows": (Stack, 2, {"split_mode": "row"}, "layer split"),
    "all devices together": (Stack, 2, {"split_mode": "sequence"}, "layer split"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_in_parts_runs_whole_and_says_why(case: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, pictures, options, reason = REFUSED[case]
    torch.manual_seed(0)
    module, x = kind((Gated,), 2).eval(), torch.randn(pictures, 8, WIDTH)
    whole, compiled = (compile_anew(module, x, parts, options) for parts in ("off", 2))
    assert [one.getMessage() for one in caplog.records if reason in one.getMessage() and "micro" in one.getMessage()]
    assert print_program(compiled.program).count(" part ") == 0
    assert torch.equal(compiled(x), whole(x))


def compile_anew(module: nn.Module, x: torch.Tensor, parts: object, options: dict[str, Any]) -> CompiledModule:
    from dovetail.conventions import request
    from dovetail.passes.batches import divide

    for told in (divide._tell, request._tell_mode):
        told.cache_clear()
    return dovetail.compile(module, (x,), backend="sim0&sim1", micro_batches=parts, **options)  # type: ignore[arg-type]


def test_fewer_pictures_than_parts_are_as_many_parts(module: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", micro_batches=3)
    assert torch.equal(compiled(X), one_by_one(module, X, 2))
    assert "2 pictures" in caplog.text


def test_one_part_changes_no_schedule(module: nn.Module) -> None:
    one, none = (dovetail.compile(module, (X,), backend="sim0&sim1", micro_batches=parts) for parts in (1, None))
    assert str(one) == str(none)
    assert str(one.schedule) == str(none.schedule)


class Stepping(nn.Module):
    """Writes to what all pictures read, after they have read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = torch.zeros(16)
        y = self.first(x) + step
        step.add_(1)
        return self.second(y + step)


class Passing(nn.Module):
    """Gives back what it was given, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.second(self.first(x))
        return x


@pytest.mark.parametrize("kind", [Stepping, Passing])
def test_what_is_not_to_be_taken_apart_runs_whole(kind: type[nn.Module]) -> None:
    module, x = kind().eval(), torch.randn(4, 16)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", micro_batches=2)
    assert micro_batches_of(compiled.program) == 1
    with torch.no_grad():
        assert torch.equal(compiled(x).cpu(), module(x))


def test_fewer_pictures_than_parts_are_told_as_they_are() -> None:
    module, x = Stack((Gated,), 2).eval(), torch.randn(2, 8, WIDTH)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", micro_batches=4)
    assert micro_batches_of(compiled.program) == 2
    assert micro_batches_asked(compiled.program) == 4

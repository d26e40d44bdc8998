"""What is issued, and in which order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.errors import ProgramTextError
from dovetail.compiler.ir.aliasing import writes
from dovetail.compiler.ir.program import device_of, tensors_of
from dovetail.compiler.ir.schedule import Copy, Free, Input, Output, Run, Step, ValueRef
from dovetail.compiler.text.schedule_text import parse_schedule
from tests.laws.oracles import contents

from .sample import Sample, program_of, sample, sample_call


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, unread: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


def test_a_schedule_loads_runs_copies_waits_frees_and_returns() -> None:
    program = program_of(Two(), (torch.randn(2, 8), torch.ones(1)), devices=2)
    frees = "free %linear_on_sim1 on sim1; free %linear_1 on sim1"
    assert lines(str(program.schedule).replace(frees, "FREES")) == lines(
        """
        input %x, %unread on sim0
        load 0 to sim0 for the program: "blocks.0.weight", "blocks.0.bias"
        load 1 to sim1 for the program: "blocks.1.weight", "blocks.1.bias"
        free %unread on sim0
        run segment 0 on sim0: %linear to %linear
        %linear: copy %linear_on_sim1 from sim0 to sim1; free %x on sim0; free %linear on sim0
        run segment 1 on sim1: %linear_1 to %linear_1
        %linear_1: await %linear_on_sim1 from sim0 to sim1 on sim1; copy %linear_1_on_sim0 from sim1 to sim0; FREES
        await %linear_1_on_sim0 from sim1 to sim0 on sim0
        output %linear_1_on_sim0 from sim0
        """
    )


def test_an_input_that_nobody_reads_is_freed_at_once() -> None:
    program = program_of(Two(), (torch.randn(2, 8), torch.ones(1)), devices=1)
    unread = list(program.inputs())[1]
    schedule = list(program.schedule or ())
    assert isinstance(schedule[0], Input)
    assert (
        Free(ValueRef(unread), program.main)
        in schedule[: next(i for i, one in enumerate(schedule) if isinstance(one, Run))]
    )


def test_a_copy_starts_directly_after_the_node_that_makes_its_value_what_it_is() -> None:
    program = sample()
    written: Counter[int] = Counter()
    known = contents(program)
    for one in program.schedule.flat() if program.schedule else ():
        if isinstance(one, Step):
            written.update(writes(one.node))
            last = one.node
        if isinstance(one, Copy) and one.sent.node.op != "placeholder":
            mine = {tensor.storage for tensor in tensors_of(one.sent.node)}
            assert one.sent.node is last or mine & writes(last)
            assert known[one.value.node] == max(written[storage] for storage in mine)


def test_the_device_that_writes_again_waits_for_the_copy_directly_before_it_writes() -> None:
    schedule = sample().schedule
    steps = [step for run in schedule or () if isinstance(run, Run) for step in run.steps]
    fenced = [
        (step, one) for step in steps for one in step.awaits if one.device == getattr(one.started, "source", None)
    ]
    assert fenced
    for step, one in fenced:
        assert isinstance(one.started, Copy)
        assert writes(step.node) & {tensor.storage for tensor in tensors_of(one.started.sent.node)}


def test_every_value_is_freed_or_returned_and_nothing_else_is_held() -> None:
    program = sample()
    held: set[Any] = set()
    for one in program.schedule.flat() if program.schedule else ():
        match one:
            case Input(values, device):
                held |= {(state, device) for state in values}
            case Copy(value, _, target):
                held.add((value, target))
            case Step(node):
                held.add((ValueRef(node), device_of(node)))
            case Free(value, device):
                held.remove((value, device))
            case Output(values, device):
                held -= {(state, device) for state in values}
    assert not held


def test_a_value_is_freed_by_the_node_that_touches_it_last() -> None:
    for run in sample().schedule or ():
        for step in run.steps if isinstance(run, Run) else ():
            touched = {step.node, *step.node.all_input_nodes, *(copy.sent.node for copy in step.sends)}
            assert {free.value.node for free in step.frees} <= touched


@pytest.mark.parametrize("rests", ["", "cpu"])
def test_a_schedule_is_read_back_as_it_was_printed(rests: str) -> None:
    program = sample(rests=rests)
    assert program.schedule is not None
    assert parse_schedule(str(program.schedule), program) == program.schedule


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("free %nothing on sim0", "there is no %nothing"),
        ("free %x on sim9", "the program has no device sim9"),
        ("await load 7 on sim0", "load 7 stands on no line above"),
        ('load 0 to sim0 for the program: "no.such.weight"', "names a weight that is not there"),
        ("release load 0 at once", "load 0 stands on no line above"),
        ("run segment 99 on sim0: %x to %x", "there is no segment 99"),
        ("%x: free %x on sim0", "%x is not in the run above"),
        ("run segment 0 on sim0: %linear_3 to %linear_3", "%linear_3 and %linear_3 are not both in segment 0"),
        ("output nothing from sim0 now", "expected the end of the line, found now"),
    ],
)
def test_a_line_that_is_none_of_a_schedule_is_named(line: str, why: str) -> None:
    with pytest.raises(ProgramTextError, match=f"^line 2 of the schedule of Sample cannot be read: .*{why}"):
        parse_schedule(f"input %x on sim0\n{line}", sample())


def test_a_node_is_read_into_one_run() -> None:
    """So a text is read in time and memory in proportion to its length, however often it says so."""
    run = "run segment 0 on sim0: %zeros to %zeros"
    assert len(parse_schedule(run, sample())) == 1
    with pytest.raises(ProgramTextError, match=r"^line 2 .*: %zeros is in a run above$"):
        parse_schedule(f"{run}\n{run}", sample())


class Odd(nn.Module):
    """Hands out all there is: inputs, weights, constants, the same value twice, views, numbers and None."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("step", torch.tensor(3.0))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        middle = self.blocks[0](x)
        end = self.blocks[1](middle)
        rest = (None, 7, self.step, y.t())
        return {"x": x, "w": self.blocks[1].weight, "twice": [end, end], "view": middle[0], "rest": rest}


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return {"same": x, "none": None}


class Unweighted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(3) + x.sum()


@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1", "sim1&sim0&sim2"])
@pytest.mark.parametrize(
    ("module", "args"),
    [
        (Odd(), (torch.randn(2, 8), torch.randn(2, 3))),
        (Nothing(), (torch.randn(2),)),
        (Unweighted(), (torch.randn(2),)),
        (Sample(), sample_call()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_module_hands_out_comes_back_as_it_is(module: nn.Module, args: Any, backend: str) -> None:
    with torch.no_grad():
        expected = module(*args)
    compiled = dovetail.compile(module, args, backend=backend)
    for _ in range(2):
        found = compiled(*args)
        assert pytree.tree_structure(found) == pytree.tree_structure(expected)
        for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other


def test_sizes_of_another_call_go_through_a_split_as_numbers() -> None:
    class Sized(Two):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            first = self.blocks[0](x)
            return self.blocks[1](first).view(x.shape[0] * 8) * x.shape[0], first.shape[0] + 1

    module = Sized()
    shape = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    compiled = dovetail.compile(module, (torch.randn(3, 8),), backend="sim0&sim1", dynamic_shapes=shape)
    for batch in (2, 5, 64):
        x = torch.randn(batch, 8)
        with torch.no_grad():
            expected = module(x)
        found = compiled(x)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1] == batch + 1

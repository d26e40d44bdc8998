"""What is issued, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.ir.schedule import Copy, Free, Load, Return, Run, State, Wait

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
    assert lines(str(program.schedule)) == lines(
        """
        free %unread on sim0
        load 2 weights, 288 bytes → sim0
        load 2 weights, 288 bytes → sim1
        run segment 0 on sim0
        free %x on sim0
        copy %linear sim0 → sim1
        free %linear on sim0
        wait %linear sim0 → sim1 on sim1
        run segment 1 on sim1
        free %linear on sim1
        copy %linear_1 sim1 → sim0
        free %linear_1 on sim1
        wait %linear_1 sim1 → sim0 on sim0
        return %linear_1 from sim0
        """
    )


def test_an_input_that_nobody_reads_is_freed_at_once() -> None:
    program = program_of(Two(), (torch.randn(2, 8), torch.ones(1)), devices=1)
    unread = list(program.inputs())[1]
    assert next(iter(program.schedule or ())) == Free(State(unread), program.main)


def test_a_copy_starts_directly_after_the_run_that_makes_its_value() -> None:
    schedule = list(sample().schedule or ())
    for index, one in enumerate(schedule):
        if isinstance(one, Copy) and index:
            before = next(other for other in reversed(schedule[:index]) if not isinstance(other, (Copy, Free)))
            assert isinstance(before, (Run, Load))


def test_the_device_that_writes_again_waits_for_the_copy_before_the_target_does() -> None:
    schedule = list(sample().schedule or ())
    fences = [index for index, one in enumerate(schedule) if isinstance(one, Wait) and one.device == one.source]
    assert fences
    for index in fences:
        wait, after = schedule[index], schedule[index + 1]
        assert isinstance(wait, Wait) and isinstance(after, Wait)  # noqa: PT018
        assert (after.value, after.device) == (wait.value, wait.target)


def test_every_value_is_freed_or_returned_and_nothing_else_is_held() -> None:
    program = sample()
    held = {(State(node), program.main) for node in program.inputs()}
    for one in program.schedule or ():
        match one:
            case Copy(value, _, target):
                held.add((value, target))
            case Run(segment, _, yields):
                held |= {(state, segment.device) for state in yields}
            case Free(value, device):
                held.remove((value, device))
            case Return(values, device):
                held -= {(state, device) for state in values}
    assert not held


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

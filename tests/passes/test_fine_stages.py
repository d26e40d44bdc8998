"""Stages finer than a block: where the budget asks for them, and nowhere else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.schedule import Lifetime, Load, Run
from dovetail.compiler.ir.staging import aligned
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.components.compiled import CompiledModule
from dovetail.passes.analysis import stages
from dovetail.passes.analysis.stages import most_together
from dovetail.passes.lowering import lower
from dovetail.runtime import sim
from tests.measured import measured, predicted

WIDTH = 64
MATRIX = 4 * WIDTH * WIDTH
BLOCK = 3 * MATRIX
VALUES = 3 * 4 * 2 * WIDTH  # a row of values, its operand and the one that is added


class Block(nn.Module):
    """Three matrices of a size, of which one is read through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.viewed = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(torch.relu(self.one(x))) @ self.viewed.t()


class Late(nn.Module):
    """Takes a view of a weight long before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.viewed = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.others = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        view = self.viewed.t()
        for one in self.others:
            x = one(x)
        return x @ view


@pytest.fixture(autouse=True)
def _sims() -> Iterator[None]:
    gc.collect()
    sim.enable()
    yield
    gc.collect()


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4))).eval()


def within(module: nn.Module, budget: int, **options: Any) -> CompiledModule:
    given = {"backend": "sim0", "params_backend": "cpu", "rig": "sim0=1GiB", **options}
    return dovetail.compile(module, (torch.ones(2, WIDTH),), max_vram=f"sim0={budget}B", **given)


def runs(module: CompiledModule) -> list[Run]:
    return [one for one in module.schedule if isinstance(one, Run)]


def staged(module: CompiledModule) -> list[set[str]]:
    loads = [one for one in module.schedule if isinstance(one, Load)]
    assert {load.lifetime for load in loads} == {Lifetime.STAGE}
    return [set(load.weights) for load in loads]


@pytest.mark.parametrize("budget", [BLOCK + VALUES, 2 * BLOCK + VALUES, 3 * BLOCK + VALUES, 2**24])
def test_where_a_block_fits_the_schedule_is_what_it_was(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = within(blocks(), budget).schedule
    monkeypatch.setattr(lower._Lowering, "refined", lambda self, values: self)
    assert str(found) == str(within(blocks(), budget).schedule)


@pytest.mark.parametrize(("room", "together"), [(MATRIX, 1), (2 * MATRIX, 1), (BLOCK - 1, 1)])
def test_where_a_block_does_not_fit_its_operations_bring_their_weights(room: int, together: int) -> None:
    module = blocks()
    compiled = within(module, room + VALUES)
    assert len(runs(compiled)) == 12
    assert {len(names) for names in staged(compiled)} == {together}
    expected = predicted(compiled.program)
    assert measured(compiled, (torch.ones(2, WIDTH),), {}) == expected
    assert expected["sim0"] <= room + VALUES
    assert torch.equal(compiled(torch.ones(2, WIDTH)), module(torch.ones(2, WIDTH)))
    compiled.unload()


def test_half_the_room_is_for_what_comes_next_where_that_is_enough() -> None:
    assert most_together(10, 5) == 5
    assert most_together(10, 6) == 10
    assert most_together(-1, 0) == 0


def test_a_weight_comes_with_its_readers_through_a_view_that_was_taken_early() -> None:
    torch.manual_seed(0)
    module = Late().eval()
    compiled = within(module, 4 * MATRIX + VALUES)
    assert "viewed" not in {name for load in compiled.schedule if isinstance(load, Load) for name in load.weights
                            if load.lifetime is Lifetime.PROGRAM}  # fmt: skip
    assert torch.equal(compiled(torch.ones(2, WIDTH)), module(torch.ones(2, WIDTH)))
    compiled.unload()


@pytest.mark.fifth
def test_a_byte_less_than_an_operation_needs_is_refused_with_the_bytes_and_the_operation() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        within(blocks(), MATRIX)
    least = next(iter(refused.value.over.values())) + MATRIX
    assert within(blocks(), least).schedule
    with pytest.raises(DoesNotFitError, match=r"needs at least [0-9.]+ KiB on sim0.*\(%matmul\).*\(%\w+\)"):
        within(blocks(), least - 1)


def test_how_full_a_stage_is_takes_one_look_at_each_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def looked(weight: Weight) -> int:
        looks.append(weight.name)
        return aligned(weight)

    monkeypatch.setattr(stages, "aligned", looked)
    for count in (8, 16):
        program = trace(nn.Sequential(*(nn.Linear(4, 4) for _ in range(count))).eval(), (torch.ones(2, 4),))
        program.rig = Rig.of(sim0=2**20)
        program.keep(Residency.DISK)
        looks.clear()
        assert len(stages.Stages(program, {program.main: 2**20}).of(list(program.ops()), program.main)) == 1
        assert len(looks) == 2 * count

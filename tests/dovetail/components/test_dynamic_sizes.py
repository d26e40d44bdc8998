"""A program of dynamic sizes is checked for the sizes of each call, before anything of it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.passes.simulate.memory import simulate, simulate_at
from dovetail.runtime import sim

pytestmark = pytest.mark.usefixtures("clean_sims")


class Wide(nn.Module):
    """Widens rows, attends, and narrows them again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.gelu(self.up(x))
        return x + self.down(torch.cat([wide, wide.flip(0)])[: x.shape[0]])


def compiled(backend: str, rig: str, rows: int = 8) -> dovetail.CompiledModule:
    dynamic = {"x": {0: torch.export.Dim("rows", min=2, max=100_000)}}
    return dovetail.compile(Wide().eval(), (torch.ones(rows, 16),), backend=backend, rig=rig, dynamic_shapes=dynamic)


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_a_call_of_more_rows_than_fit_is_refused_before_it_runs_with_both_numbers(backend: str) -> None:
    module = compiled(backend, "sim0=1MiB,sim1=1MiB")
    with torch.no_grad():
        for rows in (8, 2, 500):
            x = torch.randn(rows, 16)
            assert torch.equal(module(x), Wide()(x))
        sim.reset_stats(0)
        before = sim.stats(0).ops
        with pytest.raises(DoesNotFitError, match=r"Wide with .*x.*shape\[0\] = 50000 needs .* MiB on sim0.* 1\.0 MiB"):
            module(torch.randn(50_000, 16))
        assert sim.stats(0).ops == before
        x = torch.randn(500, 16)
        assert torch.equal(module(x), Wide()(x)), "what was refused leaves all as it was"


@pytest.mark.parametrize("rows", [2, 3, 64, 300])
def test_the_peak_that_is_predicted_for_the_sizes_of_a_call_is_the_measured_one(rows: int) -> None:
    module = compiled("sim0", "sim0=1GiB")
    symbols = module.program.signature.symbols_of([torch.empty(rows, 16)])
    (foreseen,) = simulate_at(module.program, symbols).values()
    sim.reset_stats(0)
    with torch.no_grad():
        module(torch.randn(rows, 16))
    assert sim.stats(0).peak == foreseen.total
    (example,) = simulate(module.program).values()
    assert (foreseen.total > example.total) == (rows > 8)


class Scaled(nn.Module):
    """Widens rows and scales them, which is done in place, also where strides depend on how many rows there are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) * x.sum(-1, keepdim=True)


@pytest.mark.parametrize("rows", [2, 8, 64])
def test_what_strides_of_dynamic_sizes_settle_is_predicted_in_place(rows: int) -> None:
    dynamic = {"x": {1: torch.export.Dim("rows", min=2, max=1000)}}
    module = dovetail.compile(Scaled().eval(), (torch.ones(3, 8, 16),), backend="sim0", dynamic_shapes=dynamic)
    symbols = module.program.signature.symbols_of([torch.empty(3, rows, 16)])
    (foreseen,) = simulate_at(module.program, symbols).values()
    sim.reset_stats(0)
    with torch.no_grad():
        module(torch.randn(3, rows, 16))
    assert sim.stats(0).peak == foreseen.total
    assert foreseen.values < 2 * 3 * rows * 64 * 4
    (example,) = simulate(module.program).values()
    assert (example.total == foreseen.total) == (rows == 8)


def test_a_size_that_just_fits_is_accepted_and_one_row_more_is_not() -> None:
    module = compiled("sim0", "sim0=200KiB")

    def needs(rows: int) -> int:
        (usage,) = simulate_at(module.program, module.program.signature.symbols_of([torch.empty(rows, 16)])).values()
        return usage.total

    rows = max(n for n in range(8, 1000) if needs(n) <= 200 * 2**10)
    with torch.no_grad():
        module(torch.randn(rows, 16))
        with pytest.raises(DoesNotFitError, match="compile it with an example of this size"):
            module(torch.randn(rows + 1, 16))

"""Views of a whole of which parts are read are views of parts: the whole is cut once, and no number changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import dovetail
from dovetail.compiler.ir.aliasing import Alias, alias_class
from dovetail.compiler.ir.ops import RESHARD
from dovetail.compiler.ir.program import Program, state_of, tensors_of
from dovetail.compiler.ir.split import original, source_of
from dovetail.compiler.ir.state import WHOLE, Split
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.states import fitting
from dovetail.runtime import sim
from testbed.zoo.everything import TINY
from tests.cases import drawn

TWO = "sim0&sim1"


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


def compiled(module: nn.Module, call: dict[str, Any], backend: str = TWO) -> dovetail.CompiledModule:
    return dovetail.compile(module, (), call, backend=backend, split_mode="sequence")


def without_it(patch: pytest.MonkeyPatch, module: nn.Module, call: dict[str, Any]) -> dovetail.CompiledModule:
    """The same as states were solved for, with views of the whole."""
    with patch.context() as patched:
        patched.setattr(fitting, "split_before_views", lambda _, decision: decision.strategies)
        return compiled(module, call)


def cut(program: Program) -> list[Any]:
    """What is brought from a whole to parts, by what it is."""
    found = program.graph.find_nodes(op="call_function", target=RESHARD)
    return [source_of(one) for one in found if isinstance(state_of(one), Split) and state_of(source_of(one)) == WHOLE]


class Rotated(nn.Module):
    """Attention of rows whose queries and keys are turned by a table that each layer views for itself."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.packed, self.out, self.view = nn.Linear(64, 192), nn.Linear(64, 64), view

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (4, 16)) for one in self.packed(x).chunk(3, -1))
        q, k = q * self.view(table), k * self.view(table)
        found = nn.functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)))
        return x + self.out(found.transpose(1, 2).flatten(2))


class Layers(nn.Module):
    """Layers that read one table, which is computed from positions."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor] = lambda table: table[None, :, None]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Rotated(view) for _ in range(3))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        table = torch.cos(positions[:, None] * torch.arange(16.0))
        for layer in self.layers:
            x = layer(x, table)
        return x


def inputs(rows: int = 256) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(1, rows, 64), "positions": torch.arange(float(rows))}


@pytest.mark.parametrize("backend", [TWO, "sim0&sim1&sim2"])
def test_a_table_that_layers_view_is_cut_once_for_all_of_them(backend: str) -> None:
    torch.manual_seed(0)
    module, call = Layers().eval(), inputs()
    found = compiled(module, call, backend)
    tables = [node for node in cut(found.program) if tensors_of(node)[0].shape == (256, 16)]
    assert len(tables) == 1
    assert alias_class(original(tables[0]).target) is not Alias.VIEW
    assert torch.allclose(found(**call).cpu(), module(**call), atol=1e-5)


def test_fewer_values_are_cut_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, call = Layers().eval(), inputs()
    before, after = without_it(monkeypatch, module, call), compiled(module, call)
    assert len(cut(after.program)) < len(cut(before.program))
    assert torch.equal(before(**call), after(**call))
    most = simulate(before.program)
    assert all(need.total <= most[device].total for device, need in simulate(after.program).items())


@pytest.mark.parametrize(
    "view",
    [
        lambda table: table[None, :, None].expand(1, -1, 4, -1),
        lambda table: table.view(1, -1, 1, 16),
        lambda table: table.t().t()[None].unsqueeze(2),
    ],
)
def test_views_of_all_elements_are_seen_through(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    module, call = Layers(view).eval(), inputs()
    found = compiled(module, call)
    assert len([node for node in cut(found.program) if 16 in tensors_of(node)[0].shape[1:]]) == 1
    assert torch.allclose(found(**call).cpu(), module(**call), atol=1e-5)


def test_a_view_of_some_elements_stays_one_of_the_whole() -> None:
    torch.manual_seed(0)
    module, call = Layers(lambda table: torch.cat([table, table], 1)[None, :, None, :16]).eval(), inputs()
    found = compiled(module, call)
    assert not any(tensors_of(node)[0].shape[-1] == 32 for node in cut(found.program))
    assert torch.allclose(found(**call).cpu(), module(**call), atol=1e-5)


class Late(nn.Module):
    """Layers, and tables that are read behind them: in parts, and, if so asked for, whole."""

    def __init__(self, are_read_whole: bool, are_inputs: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.are_read_whole, self.are_inputs = are_read_whole, are_inputs

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        tables = list(given) if self.are_inputs else [torch.cos(one) for one in given]
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        for table in tables:
            x = x * table[None]
        return x * torch.stack([table.mean() for table in tables]).sum() if self.are_read_whole else x


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
@pytest.mark.parametrize(("are_read_whole", "are_inputs"), [(True, False), (False, True), (True, True)])
def test_what_is_read_whole_too_or_is_the_callers_is_cut_where_it_is_read(
    are_read_whole: bool, are_inputs: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, args = Late(are_read_whole, are_inputs).eval(), tuple(torch.randn(512, 64) for _ in range(6))
    args = (torch.randn(1, 512, 64), *args)
    after = dovetail.compile(module, args, backend=TWO, split_mode=mode)
    monkeypatch.setattr(fitting, "split_before_views", lambda _, decision: decision.strategies)
    before = dovetail.compile(module, args, backend=TWO, split_mode=mode)
    assert str(after.schedule) == str(before.schedule)
    assert torch.allclose(after(*args), module(*args), atol=1e-5)


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(TINY, 4))
def test_no_number_changes_nor_more_is_cut_or_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = TINY[name].make(torch.float32)
    before, after = without_it(monkeypatch, module, call), compiled(module, call)
    assert len(cut(after.program)) <= len(cut(before.program))
    assert crossing_bytes(after.program) <= crossing_bytes(before.program)
    most = simulate(before.program)
    assert all(need.total <= most[device].total for device, need in simulate(after.program).items())
    pairs = zip(*map(tree_leaves, (after(**call), before(**call))), strict=True)
    for found, expected in pairs:
        assert not isinstance(found, torch.Tensor) or torch.equal(found.nan_to_num(), expected.nan_to_num())

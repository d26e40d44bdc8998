"""The search knows stages finer than a block: it denies nothing that the same line typed accepts, nor its least."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.spec.residency import Residency
from dovetail.fitting.chains import chain_of_trace
from dovetail.passes.fit.lacking import lacking
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import fits
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.runtime import sim

WIDTH = 64
SIM, CPU = Device("sim"), Device("cpu")
GIB = 2**30


class Block(nn.Module):
    """Matrices of several sizes, one of which is read through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.viewed = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x))) @ self.viewed.t()
        return x + y


class Model(nn.Module):
    """Blocks between matrices outside of blocks, the first of which may be larger than all blocks; and a table."""

    def __init__(self, blocks: int, outside: int, table: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, outside), nn.Linear(outside, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.table: Tensor
        self.register_buffer("table", torch.randn(table, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return x + self.table.sum(0)


class Bare(nn.Module):
    """Has no weights."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + 1


MODULES: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: Model(4, 8),
    "one block": lambda: Model(1, 8),
    "large outside of blocks": lambda: Model(3, 9 * WIDTH),
    "no blocks": lambda: Model(0, WIDTH),
    "a table that stays": lambda: Model(2, 8, 5 * WIDTH),
    "no weights": Bare,
}


@pytest.fixture(autouse=True)
def _sims() -> Iterator[None]:
    gc.collect()
    sim.enable()
    yield
    gc.collect()


def load_of(module: nn.Module, asked: Asked) -> Load:
    chain = chain_of_trace(trace(module, (torch.ones(2, WIDTH),)))
    nbytes = sum(one.nbytes for one in (*module.parameters(), *module.buffers()))
    return Load("module", "diffusion", "sampling", chain, 10.0, nbytes=nbytes, asked=asked)


def machine(*devices: Device) -> Machine:
    speeds = {one: Speed({"float32": 1e10 if one is CPU else 1e12}, 1e12, 1e9, 0.0) for one in devices}
    return Machine(devices, Speeds(speeds, 1e8), CPU)


def accepts(module: nn.Module, budget: int) -> bool:
    """Whether a line is accepted that says where all is."""
    said: dict[str, Any] = {"backend": "sim0", "params_backend": "cpu", "rig": "sim0=1GiB,cpu=1GiB"}
    try:
        dovetail.compile(module, (torch.ones(2, WIDTH),), max_vram=f"sim0={budget}B", **said)
    except DoesNotFitError:
        return False
    return True


def finds(load: Load, budget: int) -> bool:
    given = Budgets({SIM: budget, CPU: GIB}, CPU)
    found = search([load], machine(SIM, CPU), given)
    if found is None:
        return False
    assert fits(found, given)
    way = found.ways["module"]
    assert sum(way.weights.values()) + sum(way.streamed.values()) == load.nbytes
    return True


@pytest.mark.fifth
@pytest.mark.few(quick=3)
@pytest.mark.parametrize("kind", MODULES)
def test_the_search_denies_nothing_that_the_same_line_typed_accepts(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]().eval()
    load = load_of(module, Asked((SIM,), Residency.HOST))
    whole = load.nbytes + load.chain.live
    ladder = [*(int(part * whole) for part in (0.05, 0.1, 0.2, 0.4, 0.7)), whole]
    denied = [budget for budget in ladder if accepts(module, budget) and not finds(load, budget)]
    assert not denied
    assert finds(load, whole)


@pytest.mark.fifth
@pytest.mark.parametrize("kind", MODULES)
def test_the_least_of_a_refusal_is_accepted_and_little_less_is_not(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]().eval()
    load = load_of(module, Asked((SIM,), Residency.HOST))
    lack = lacking([load], machine(SIM, CPU), Budgets({SIM: 0, CPU: GIB}, CPU))
    assert (lack.component, lack.device) == ("module", SIM)
    assert finds(load, lack.least)
    assert not finds(load, lack.least - 1)
    assert accepts(module, int(1.15 * lack.least))
    assert not accepts(module, int(0.85 * lack.least))

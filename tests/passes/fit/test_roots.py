"""Weights that come to several devices over one root: what a search counts, against schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.chain import chain_of
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.options import option
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.timeline import timeline

WIDTH, ROWS, SLOTS = 64, 8, 3
NBYTES = WIDTH * WIDTH * 4
ROOM = 6 * NBYTES


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return x


@pytest.mark.parametrize("rate", [1e8, 1e9, 1e10, 1e12])
@pytest.mark.parametrize("count", [8, 32])
def test_a_search_counts_what_devices_load_as_if_they_shared_a_root(count: int, rate: float) -> None:
    """They work one after another, so that a root delays what was started ahead, which a search does not count."""
    traced = trace(Blocks(count), (torch.ones(ROWS, WIDTH),))
    chain = chain_of(traced)
    mib = ROOM / 2**20
    traced.rig = Rig.parse(f"cuda0={mib}MiB,cuda1={mib}MiB")
    traced.keep(Residency.HOST)
    program = PassManager(default_passes((1.0, 1.0))).run(traced)
    cards, host = program.devices, program.rig.host
    apart = Speeds(dict.fromkeys((*cards, host), Speed({"float32": rate}, 1e18, 1e9, 0.0)), 1e8, latency=0.0)
    shared = replace(apart, roots=dict.fromkeys(cards, "root0"))
    seconds = {known: timeline(program, known).seconds for known in (apart, shared)}

    load = Load(
        "dit", "diffusion", "sampling", chain, 1.0, None, chain.nbytes, Asked(cards, Residency.HOST, shares=(1.0, 1.0))
    )
    budgets = Budgets({**dict.fromkeys(cards, ROOM), host: 2**30}, host)
    found = option(load, Machine((*cards, host), apart, host), budgets, cards, Residency.HOST, False)

    assert found is not None
    assert seconds[apart] <= seconds[shared]
    assert seconds[shared] - seconds[apart] <= SLOTS * NBYTES / 1e9 * (1 + 1e-6)
    assert seconds[shared] <= 1.05 * found.seconds

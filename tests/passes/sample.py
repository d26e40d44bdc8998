"""A small module in which everything happens: views, memory written over devices, skips, numbers among the results."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import MIB
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import parse_passes
from dovetail.runtime import sim

RIG = Rig.of(sim0=32 * MIB, sim1=24 * MIB, sim2=16 * MIB)
DEVICES = RIG.devices
ALL = "simplify,blocks,place{shares=1:1:1},pin,hoist,cut,schedule"


class Sample(nn.Module):
    """Four linear blocks that leave notes in a buffer on the first device and read what was noted before."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, scale: Tensor) -> Any:
        notes = torch.zeros(5, *x.shape)
        first = x
        for index, block in enumerate(self.blocks):
            notes[index] = x
            x = block(x) * scale + notes[0]
            notes[0].add_(1.0)
        one, other = x.chunk(2, dim=-1)
        return {"sum": one + other, "notes": notes, "first": first, "skip": x + first}


def sample_call(width: int = 8) -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 2 * width).reshape(2, width), torch.full((width,), 0.5)


def program_of(
    module: nn.Module, args: tuple[Any, ...], passes: str = ALL, devices: int = 3, rests: str = ""
) -> Program:
    """A traced module after some passes, over up to three simulated devices."""
    return _after(passes, trace(module, args), devices, rests)


def _after(passes: str, program: Program, devices: int = 3, rests: str = "") -> Program:
    sim.enable({device.index: RIG[device].total for device in RIG})
    program.rig = RIG.only(DEVICES[:devices])
    program.keep(Residency(rests or "device"))
    return PassManager(parse_passes(passes)).run(program)


def sample(passes: str = ALL, rests: str = "") -> Program:
    """The small module after some passes; wide enough to be split by rows if they are to do that."""
    return _after(passes, _traced(256 if "rows" in passes else 8).copy(), rests=rests)


@functools.cache
def _traced(width: int) -> Program:
    torch.manual_seed(0)
    return trace(Sample(width), sample_call(width))

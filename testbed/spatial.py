"""Autoencoders whose pictures are split over simulated devices in space, with what each device needs and sends."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.lowering.verification import Verify
from dovetail.passes.placement.assignment import Assign, Assigned
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.placement.cut import Cut
from dovetail.passes.placement.pin import Pin
from dovetail.passes.rewrites.reuse import Reuse
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.states.group_statistics import take_group_norms_apart
from dovetail.passes.states.share import Choose
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights
from testbed.sharing import Share, slow_group
from testbed.zoo.everything import TINY

DECODERS = (
    "AutoencoderKL-decode",
    "AutoencoderKLWan-decode",
    "AutoencoderKLQwenImage-decode",
    "AutoencoderKLHunyuanVideo-decode",
    "AutoencoderDC-decode",
    "AutoencoderKLCogVideoX-decode",
)
ROOM = 2**33


@dataclass(frozen=True)
class Outcome:
    """What a call yields, the bytes of values on each device at most, as predicted and as measured, and those sent."""

    yielded: Sequence[torch.Tensor]
    predicted: Sequence[int]
    measured: Sequence[int]
    planned: int
    sent: int


def enlarged(name: str, dtype: torch.dtype, sides: tuple[int, int], seed: int = 1) -> tuple[nn.Module, dict[str, Any]]:
    """An autoencoder, with a picture or latents of other sides, whose numbers are drawn by a seed."""
    module, call = TINY[name].make(dtype)
    key = next(iter(call))
    shape = (*call[key].shape[:-2], *sides)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return module.eval(), {**call, key: drawn.to(dtype)}


def split(module: nn.Module, call: Mapping[str, Any], shares: tuple[int, ...]) -> Program:
    """The program of an autoencoder over so many simulated devices as there are shares; of one it is the module's."""
    program = trace(module, (), dict(call))
    program.rig = Rig.parse(",".join(f"sim{index}=8GiB" for index in range(len(shares))))
    Simplify().run(program)
    if len(shares) > 1:
        take_group_norms_apart(program, len(shares))
    everything = {weight: Assigned(program.main) for weight in program.weights}
    sharing = [Share(lambda pinned: _solved(pinned, shares))] if len(shares) > 1 else []
    return PassManager([FindBlocks(), Assign(everything), Pin(), *sharing, Cut(), Reuse(), Lower(), Verify()]).run(
        program
    )


def _solved(program: Program, shares: tuple[int, ...]) -> Choose:
    """The states that are solved for under ``spatial``."""
    found = solve(program, slow_group(shares, program.devices), "spatial")
    if not isinstance(found, Solution):
        raise ValueError(str(found))
    return found.strategies.get


def run(module: nn.Module, call: Mapping[str, Any], program: Program) -> Outcome:
    """Runs a program on simulated devices."""
    count, devices = len(program.devices), program.devices
    sim.enable(dict.fromkeys(range(count), ROOM))
    gc.collect()
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    executor.bind(ProgramWeights.of_module(module, program))
    before = [sim.stats(index).in_use for index in range(count)]
    given = program.signature.flatten((), dict(call))
    values = [one.to("sim:0") if isinstance(one, torch.Tensor) else one for one in given]
    for index in range(count):
        sim.reset_peak(index)
    came = [sim.stats(index).bytes_in for index in range(count)]
    with torch.no_grad():
        yielded = [one.cpu() for one in pytree.tree_leaves(executor(values)) if isinstance(one, torch.Tensor)]
    usage = simulate(program)
    return Outcome(
        yielded,
        [usage[device].total - usage[device].weights for device in devices],
        [sim.stats(index).peak - before[index] for index in range(count)],
        crossing_bytes(program),
        sum(sim.stats(index).bytes_in - came[index] for index in range(count)),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Kernels run on one thread: only then do their bits not depend on how many rows they are given."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

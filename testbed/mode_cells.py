"""One cell of the grid of modes: a tiny entry at a larger size, solved under a mode, run on simulated devices, judged.

A cell says which linear layers, convolutions and attentions of blocks are not split that could be, how far results are
from float64 beside those of eager, whether they are equal to the bit, and whether bytes and peaks are as planned.
"""

from __future__ import annotations

import copy
import gc
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, origin_of
from dovetail.compiler.ir.state import WHOLE
from dovetail.compiler.spec.modes import inner_mode
from dovetail.compiler.states.convolutions import NAMES as CONVOLUTIONS
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.states.strategy import Strategy, name_of, shape_of
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
from dovetail.passes.states.candidates import QUERIES
from dovetail.passes.states.exactness import KEEPING, keeps_bits
from dovetail.passes.states.forms import put_in_form
from dovetail.passes.states.kept_forms import forms_with_solvers
from dovetail.passes.states.modes import MODES, posed
from dovetail.passes.states.problem import HEAVY
from dovetail.passes.states.shares import cut_in_units
from dovetail.passes.states.solution import Decision, NotPossible, Solution
from dovetail.passes.states.solve import solve
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights

from .exact import InFloat64
from .sharing import Share, slow_group
from .zoo.everything import TINY
from .zoo.larger import larger, sides_taken
from .zoo.tiny import Call

SHARES = ((1, 1), (1, 1, 1), (1, 1, 1, 1), (5, 3), (5, 3, 2), (1, 0), (3, 0, 1), (2, 1, 1, 1))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MESHES = ("batch+sequence", "batch+tensor")
SEEDS = range(1, 6)
WORSE = 1.5
"""So many times as far from float64 as eager may results be."""

_MEMORY = 2**33


@dataclass(frozen=True)
class Cell:
    """An entry under a mode, on as many devices as there are shares."""

    name: str
    mode: str
    shares: tuple[int, ...]
    dtype: str
    sides: tuple[int, int] | None

    def __str__(self) -> str:
        sides = "×".join(map(str, self.sides)) if self.sides else "as it is"
        return f"{self.name} {self.mode} {':'.join(map(str, self.shares))} {self.dtype} {sides}"


@dataclass
class Verdict:
    """What was found of a cell; ``wrong`` are the reasons for which it is not as it should be."""

    how: str
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    ratio: float = 0.0
    is_equal: bool = False
    sent: int = 0

    def as_dict(self) -> dict[str, Any]:
        """It as JSON has it."""
        return asdict(self)


def cells(names: list[str], seed: int) -> Iterator[Cell]:
    """A cell for each mode of each entry; devices, shares, sizes and dtypes are drawn by a seed."""
    for name in names:
        sides, choice = sides_taken(name, seed), random.Random(f"{seed} {name}")
        dtype = choice.choice(list(DTYPES))
        for mode in (one for one in MODES if one != "spatial"):  # which `benchmarks.spatial` is for
            yield Cell(name, mode, choice.choice(SHARES), dtype, sides)
        for mode in MESHES:
            yield Cell(name, mode, choice.choice([one for one in SHARES if len(one) == 4]), dtype, sides)


@dataclass(frozen=True)
class Subject:
    """A module with calls of it, its trace, and what it yields in float64 and by itself."""

    module: nn.Module
    calls: list[Call]
    exact: list[torch.Tensor]
    eager: list[list[torch.Tensor]]
    program: Program

    @property
    def error(self) -> float:
        """How far eager is from float64."""
        return error_of(self.eager, self.exact)

    def error_nearby(self) -> float:
        """How far eager is from float64 where its inputs are off by an ulp: how well it can be computed at all."""
        found = [[_run(self.module, _off_by_an_ulp(call, seed)) for call in self.calls] for seed in SEEDS]
        return math.sqrt(sum(error_of(one, self.exact) ** 2 for one in found) / len(found))


@lru_cache(maxsize=1)
def subject_of(name: str, dtype: str, sides: tuple[int, int] | None) -> Subject:
    """The subject of a cell; the last one is kept, for there are several modes."""
    with torch.no_grad():  # what weight norm makes of weights is copied as they are
        module, _ = TINY[name].make(DTYPES[dtype])
    calls = [larger(name, sides, DTYPES[dtype], seed) for seed in SEEDS]
    double = copy.deepcopy(module).double()
    with InFloat64():
        exact = [_joined(_run(double, pytree.tree_map(_doubled, call))) for call in calls]
    eager = [_run(module, call) for call in calls]
    return Subject(module, calls, exact, eager, trace(module, (), calls[0]))


def _run(module: nn.Module, call: Call) -> list[torch.Tensor]:
    with torch.no_grad():
        result = copy.deepcopy(module)(**copy.deepcopy(call))
    leaves = list(result.values()) if isinstance(result, dict) else result
    return [one for one in pytree.tree_leaves(leaves) if isinstance(one, torch.Tensor)]


def _off_by_an_ulp(call: Call, seed: int) -> Call:
    """A call whose numbers are each the next one up or down, by a seed."""
    chance = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        ways = 2 * torch.randint(0, 2, value.shape, generator=chance) - 1
        return value * (1 + ways * torch.finfo(value.dtype).eps).to(value.dtype)

    return dict(pytree.tree_map(moved, call))


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _joined(leaves: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([leaf.double().nan_to_num(0, 0, 0).flatten() for leaf in leaves])


def error_of(found: list[list[torch.Tensor]], exact: list[torch.Tensor]) -> float:
    """The root of the mean square of what differs over all calls, as a part of that of what is exact."""
    off = sum(float((_joined(one) - other).square().sum()) for one, other in zip(found, exact, strict=True))
    size = sum(float(other.square().sum()) for other in exact)
    return math.sqrt(off / max(size, 1e-300))


def judge(cell: Cell) -> Verdict:
    """Solves a cell, runs it, and says what was found."""
    subject = subject_of(cell.name, cell.dtype, cell.sides)
    program, found, seconds = shared(subject.program, cell)
    if isinstance(found, NotPossible):
        return Verdict(str(found), seconds)
    verdict = Verdict(found.how, seconds, sent=max(found.account.sent))
    verdict.whole = [] if inner_mode(cell.mode) else list(_left_whole(subject.program, cell))
    _judge_run(verdict, cell, subject, program)
    return verdict


def shared(traced: Program, cell: Cell) -> tuple[Program, Solution | NotPossible, float]:
    """A program that devices compute together, what was solved for it, and the processor's seconds of solving."""
    program, start = traced.copy(), time.process_time()
    program.rig = Rig.parse(",".join(f"sim{index}=8GiB" for index in range(len(cell.shares))))
    program = PassManager([Simplify(), FindBlocks()]).run(program)
    group, found = slow_group(cell.shares, tuple(program.devices)), None
    if inner_mode(cell.mode):
        forms = forms_with_solvers(program, cell.mode, group)
        found = forms if isinstance(forms, NotPossible) else forms[0].solution(())
        program = program if isinstance(forms, NotPossible) else forms[0].program
    else:
        put_in_form(program)
        Simplify().run(program)
        found = solve(program, group, cell.mode)
    seconds = time.process_time() - start
    decision = found.decision if isinstance(found, Solution) else Decision({})
    everything = {weight: Assigned(program.main) for weight in program.weights}
    steps = [
        Assign(everything),
        Pin(),
        Share(lambda _: decision.strategies.get, lambda: decision.groups),
        Cut(),
        Reuse(),
        Lower(),
        Verify(),
    ]
    return PassManager(steps).run(program), found, seconds


def _left_whole(traced: Program, cell: Cell) -> Iterator[str]:
    """The heavy operations of blocks that devices compute whole, though an axis has two units, and why."""
    program = traced.copy()
    Simplify().run(program)
    put_in_form(program)
    FindBlocks().run(program)
    devices = tuple(Device.named(f"sim{index}") for index in range(len(cell.shares)))
    group = slow_group(cell.shares, devices)
    found, question = solve(program, group, cell.mode), posed(program, group, cell.mode)
    free = posed(program, group, "free").problem
    if isinstance(found, NotPossible) or sum(share > 0 for share in cell.shares) < 2:
        return
    names = {block.name for block in program.blocks}
    for node, ways in question.problem.ways.items():
        path = origin_of(node).module
        is_inside = any(path == name or path.startswith(f"{name}.") for name in names)
        chosen = found.strategies[node]
        if name_of(node) not in HEAVY or not is_inside or _is_split(chosen) or not _has_units(node, cell):
            continue
        rounds = any(_is_split(way) and not keeps_bits(node, way) for way in free.ways[node])
        none = "parts round otherwise" if rounds and cell.mode in KEEPING else "no way"
        reason = "whole is quicker" if any(map(_is_split, ways)) else none
        yield f"{name_of(node)} {'×'.join(map(str, shape_of(node)))}: {reason}"


def _is_split(way: Strategy) -> bool:
    return any(state != WHOLE for state in (*way.results, *way.operands.values()))


def _has_units(node: Node, cell: Cell) -> bool:
    """Whether an axis of a result that a mode splits has a unit for each of two devices."""
    shape = shape_of(node)
    if cell.mode == "batch":
        return len(shape) > 2 and _parts(shape[0], cell.shares) > 1
    if cell.mode == "sequence":
        is_conv = name_of(node) in CONVOLUTIONS
        return not is_conv and len(shape) > 2 and _parts(shape[-2], cell.shares, QUERIES) > 1
    return _parts(max(shape), cell.shares) > 1


def _parts(size: int, shares: tuple[int, ...], unit: int = 1) -> int:
    return sum(start < stop for start, stop in cut_in_units(size, shares, unit))


def _judge_run(verdict: Verdict, cell: Cell, subject: Subject, program: Program) -> None:
    """Runs a program over all calls, and notes what differs from what was planned and from eager."""
    count = len(program.devices)
    sim.enable(dict.fromkeys(range(count), _MEMORY))
    gc.collect()
    before = [sim.stats(index).in_use for index in range(count)]
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    executor.bind(ProgramWeights.of_module(subject.module, program))
    results, planned = list[list[torch.Tensor]](), [one.total for one in simulate(program).values()]
    for call in subject.calls:
        flat = program.signature.flatten((), call)
        values = [one.to("sim:0") if isinstance(one, torch.Tensor) else one for one in flat]
        for index in range(count):
            sim.reset_peak(index)
        came = sum(sim.stats(index).bytes_in for index in range(count))
        results.append([one.cpu() for one in executor(values) if isinstance(one, torch.Tensor)])
        moved = sum(sim.stats(index).bytes_in for index in range(count)) - came
        peaks = [sim.stats(index).peak - before[index] for index in range(count)]
        del values, flat
        if len(results) == 1 and moved != crossing_bytes(program):
            verdict.wrong.append(f"{moved} B crossed, {crossing_bytes(program)} planned")
        if len(results) == 1 and peaks != planned:
            verdict.wrong.append(f"peaks {peaks}, {planned} planned")
    executor.unbind()
    pairs = [pair for one, other in zip(results, subject.eager, strict=True) for pair in zip(one, other, strict=True)]
    verdict.is_equal = all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)
    error, eager = error_of(results, subject.exact), subject.error
    verdict.ratio = error / eager if eager else float(error > 0)
    if error > max(WORSE * eager, torch.finfo(DTYPES[cell.dtype]).eps) and not _is_by_luck(results, subject):
        verdict.wrong.append(f"error {error:.1e}, eager's {eager:.1e}")


def _is_by_luck(results: list[list[torch.Tensor]], subject: Subject) -> bool:
    """Whether results are further from float64 than eager in a few calls alone, in which an ulp of inputs does it too.

    Of such inputs eager is near float64 by luck, where another order of its sums is ten times as far.
    """
    calls = zip(results, subject.eager, subject.exact, strict=True)
    ratios = [error_of([one], [exact]) / max(error_of([eager], [exact]), 1e-300) for one, eager, exact in calls]
    return statistics.median(ratios) <= WORSE and error_of(results, subject.exact) <= WORSE * subject.error_nearby()

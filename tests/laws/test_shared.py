"""Programs that a group of devices computes together, each operation in states drawn at random, against the module.

What they yield is the whole's but for rounding; they need what was predicted, and send it, to the byte; their text says
the same program; and without data every node yields what its annotation says.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, state_of, states_of, weight_name
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split, State
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.states.strategy import Strategy
from dovetail.compiler.states.table import strategies, tells_all
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.base import Change, Pass
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
from dovetail.passes.states.share import Choose
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from dovetail.passes.states.statistics import take_norms_apart
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights
from testbed.sharing import Share, slow_group
from testbed.zoo.everything import TINY
from tests.cases import drawn, slow_but

from .parts import offered

SHARES = [(1, 1), (3, 1), (5, 3, 2), (1, 0), (0, 1, 1), (1, 1, 1, 1)]
OWN_PYTHON = {"CosmosTransformer3DModel"}
"""What no trace takes in float64."""
LONG = {"UNetMotionModel"}
"""What takes half a minute: a slow case."""
SUBJECTS = [*drawn([one for one in TINY if one not in OWN_PYTHON | LONG], 2), *slow_but((), LONG)]


@dataclass(frozen=True)
class NormsApart(Pass):
    """Takes norms over all heads apart."""

    name: ClassVar[str] = "norms-apart"
    shares: tuple[int, ...] = ()

    def run(self, program: Program) -> Change:
        return Change(take_norms_apart(program, self.shares), "norms")


class Chooser:
    """Draws a way to compute each operation, most often one that takes its operands as they are."""

    def __init__(self, shares: Sequence[int], seed: str) -> None:
        self.random = random.Random(seed)
        self.offered = offered(shares, self.random)

    def offers(self, node: Node, one: Node) -> Iterator[State]:
        has = WHOLE if one is node or weight_name(one) else state_of(one)
        yield from [has] if has != WHOLE else []
        yield from (state for state in self.offered(one) if state != PARTIAL)

    def __call__(self, node: Node) -> Strategy | None:
        ways = [way for way in strategies(node, lambda one: self.offers(node, one)) if self.is_possible(node, way)]
        if len(ways) < 2 or self.random.random() < 0.1:
            return None
        alike = [way for way in ways[1:] if all(way.takes(one) == state_of(one) for one in values_of(node))]
        return self.random.choice(alike if alike and self.random.random() < 0.6 else ways[1:])

    def is_possible(self, node: Node, way: Strategy) -> bool:
        sums = (one for one in values_of(node) if way.takes(one) == PARTIAL)
        return all(state_of(one) == PARTIAL for one in sums) and tells_all(node, way)


def values_of(node: Node) -> list[Node]:
    return [one for one in node.all_input_nodes if not weight_name(one)]


def shared(
    name: str,
    shares: Sequence[int],
    chooser: Callable[[Program], Choose],
    mode: str = "free",
    behind_cut: Sequence[Pass] = (),
) -> tuple[torch.nn.Module, dict[str, Any], Program]:
    """A module with its arguments, and its program over as many simulated devices as there are shares."""
    module, call = TINY[name].make(torch.float64)
    program = trace(module.eval(), (), call)
    program.rig = Rig.parse(",".join(f"sim{index}=8GiB" for index in range(len(shares))))
    everything = {weight: Assigned(program.main) for weight in program.weights}
    steps = [
        Simplify(),
        FindBlocks(),
        *((NormsApart(tuple(shares)),) if mode == "tensor" else ()),
        Assign(everything),
        Pin(),
        Share(chooser),
        Cut(),
        Reuse(),
        *behind_cut,
        Lower(),
        Verify(),
    ]
    return module, call, PassManager(steps).run(program)


def outcome(module: torch.nn.Module, call: dict[str, Any], program: Program) -> tuple[list[Any], list[int], int]:
    """What a program yields, and on each device the bytes at the fullest moment; the bytes that came to devices."""
    count = len(program.devices)
    sim.enable(dict.fromkeys(range(count), 2**33))
    gc.collect()
    before = [sim.stats(index).in_use for index in range(count)]
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    executor.bind(ProgramWeights.of_module(module, program))
    values = [one.to("sim:0") if isinstance(one, torch.Tensor) else one for one in program.signature.flatten((), call)]
    for index in range(count):
        sim.reset_peak(index)
    came = sum(sim.stats(index).bytes_in for index in range(count))
    found = [one.cpu() for one in executor(values) if isinstance(one, torch.Tensor)]
    peaks = [sim.stats(index).peak - before[index] for index in range(count)]
    return found, peaks, sum(sim.stats(index).bytes_in for index in range(count)) - came


@pytest.mark.fifth
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("seed", [int(os.environ["DOVETAIL_TEST_SEED"]) % 1000])
def test_devices_that_compute_together_yield_what_the_module_does(name: str, seed: int) -> None:
    shares = random.Random(f"{name} {seed}").choice(SHARES)
    module, call, program = shared(name, shares, lambda _: Chooser(shares, f"{name} {seed}"))
    nodes = list(program.ops())
    assert sum(any(isinstance(one, Split) for one in states_of(node)) for node in nodes) > len(nodes) / 4
    expect_sound(module, call, program)


def expect_sound(module: torch.nn.Module, call: dict[str, Any], program: Program) -> None:
    """A program yields what its module does, in the bytes that were predicted; its text and its types are right."""
    with torch.no_grad():
        expected = module(**call)
    found, peaks, came = outcome(module, call, program)
    leaves = list(expected.values()) if isinstance(expected, dict) else expected
    whole = [one for one in pytree.tree_leaves(leaves) if isinstance(one, torch.Tensor)]
    assert len(found) == len(whole)
    for mine, theirs in zip(found, whole, strict=True):
        largest = max(1.0, theirs.abs().max().item())
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-5 * largest)  # some compute in float32
    assert peaks == [simulate(program)[device].total for device in program.devices]
    assert came == crossing_bytes(program)
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    assert verify_deep(program) > 0


@pytest.mark.fifth
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("seed", [int(os.environ["DOVETAIL_TEST_SEED"]) % 1000])
def test_states_that_were_solved_run_as_programs(name: str, seed: int) -> None:
    """Those of a mode that is drawn, of those that are possible."""
    choice = random.Random(f"{name} {seed}")
    shares = choice.choice(SHARES)
    mode = choice.choice(["free", "tensor", "sequence"])

    def solved(program: Program) -> Choose:
        found = solve(program, slow_group(shares), mode, node_limit=50)
        states = found.strategies if isinstance(found, Solution) else {}
        return states.get

    module, call, program = shared(name, shares, solved, mode)
    expect_sound(module, call, program)


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["WanTransformer3DModel", "LTXVideoTransformer3DModel"])
def test_programs_with_norms_over_all_heads_run_without_gathering_these(name: str) -> None:
    def solved(program: Program) -> Choose:
        found = solve(program, slow_group((1, 1)), "tensor")
        assert isinstance(found, Solution)
        return found.strategies.get

    came = []
    for mode in ("free", "tensor"):
        module, call, program = shared(name, (1, 1), solved, mode)
        expect_sound(module, call, program)
        came.append(crossing_bytes(program))
    assert came[1] < came[0]

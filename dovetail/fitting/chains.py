"""The chains of traced programs: as they are, with their wide parts in chunks, and of a component by its parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..compiler.devices.device import Device
from ..compiler.ir.program import Block, Program
from ..compiler.ir.weight import Weight
from ..passes.fit.chain import CARD, REST, Chain, Part, chain_of
from ..passes.fit.workload import joined
from ..passes.infra.manager import PassManager
from ..passes.placement.blocks import FindBlocks
from ..passes.placement.by_name import units_of
from ..passes.rewrites.chunk import Chunk
from ..passes.rewrites.lower_packed import Quantize
from ..passes.rewrites.simplify import Simplify
from ..passes.simulate.cost import OpCost

COUNTS = (2, 4, 8)
"""In so many chunks wide parts are tried where nothing fits."""


def chain_of_trace(traced: Program, chunks: int = 1, device: Device = CARD) -> Chain:
    """The chain of a program as it was traced, which stays as it is, with its wide parts in so many chunks."""
    return chain_of(prepared(traced, chunks), device)


def prepared(traced: Program, chunks: int = 1) -> Program:
    """A copy of a program as it was traced that is ready to be placed, with its wide parts in so many chunks."""
    steps = (Simplify(), Quantize(), FindBlocks(), *((Chunk(chunks),) if chunks > 1 else ()))
    return PassManager(steps).run(traced.copy())


def joined_chain(calls: Sequence[tuple[Program, float]], chunks: int = 1, device: Device = CARD) -> tuple[Chain, float]:
    """The chain of a component and how often it is called, as `joined` has them.

    Args:
        calls: its programs as they were traced, each with how often it is called.
        chunks: in so many of them wide parts are computed.
        device: whose kernels compute.
    """
    return joined([(chain_of_trace(program, chunks, device), times) for program, times in calls])


@dataclass(frozen=True)
class CallOfPart:
    """A program of a part of a component, the path of the part, and how often a picture calls it."""

    path: str
    traced: Program
    times: float


def chain_by_parts(
    name: str,
    weights: Mapping[str, Weight],
    calls: Sequence[CallOfPart],
    own: Mapping[OpCost, float],
    device: Device = CARD,
) -> tuple[Chain, float]:
    """The chain of a component that runs by its parts, and how often it is called: one block for each unit of weights.

    All weights of a unit count, with those of parts that no call was met of, for numbers decide which are called. What
    its ``own`` Python computes in a picture counts with what lies outside of blocks.
    """
    units = units_of(weights)
    times = max(call.times for call in calls)
    found: dict[str, list[tuple[Part, float]]] = defaultdict(list)
    for call in calls:
        chain = _chain_in(units, call, device)
        for part in (chain.rest, *chain.parts):
            found[part.name].append((part, call.times / times))
    nbytes = {unit.name: sum(weights[one].nbytes for one in unit.weights) for unit in units}
    rest = sum(weight.nbytes for weight in weights.values()) - sum(nbytes.values())
    found[_REST].append((Part(_REST, 0, 0, 0, 0, tuple(own.items())), 1 / times))
    parts = tuple(_together(unit.name, nbytes[unit.name], found[unit.name]) for unit in units)
    return Chain(name, _together(_REST, rest, found[_REST]), parts), times


_REST = str(REST)


def _chain_in(units: Sequence[Block], call: CallOfPart, device: Device) -> Chain:
    """The chain of the program of a part, in which a block is what lies within a unit of the component."""
    program = PassManager((Simplify(), Quantize())).run(call.traced.copy())
    prefix = f"{call.path}." if call.path else ""
    own = {f"{prefix}{one}": one for one in program.weights}
    inside = ((unit, tuple(own[one] for one in unit.weights if one in own)) for unit in units)
    program.blocks = tuple(Block(unit.name, names) for unit, names in inside if names)
    chain = chain_of(program, device)
    return replace(chain, rest=replace(chain.rest, name=_REST))


def _together(name: str, nbytes: int, parts: Sequence[tuple[Part, float]]) -> Part:
    work: dict[OpCost, float] = defaultdict(float)
    for part, times in parts:
        for cost, count in part.work:
            work[cost] += times * count
    live = max((part.live for part, _ in parts), default=0)
    boundary = max((part.boundary for part, _ in parts), default=0)
    return Part(name, nbytes, nbytes, live, boundary, tuple(work.items()))

"""Whether text encoders may run for the next call of a pipeline while this one is sampled, and which of their calls.

An encoder may where all its devices, the host included, are devices of nothing that is called from sampling on; where
all its weights stay where they are; where it is compiled whole; and where a plan has room for what its results and the
pipeline's own tensors take besides, at the fullest moment of each device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.program import Program, tensors_of
from ..compiler.ir.schedule import Lifetime, Load
from ..compiler.units import format_bytes
from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.encoded import Encoded, Encoding
from ..components.running_ahead import draws_numbers
from ..lora.adapters import NO_BRANCHES
from ..runtime.devices.recording import is_watched
from .generation import Generation, PlannedCall
from .plannable import Plannable
from .planner import may_run_dry
from .walk import Visit

SAMPLING = ("diffusion", "controlnet")
"""The roles of components that sample."""

ENCODER = "te"
"""The role of components that may run ahead."""


class NotAheadError(Exception):
    """Why nothing is encoded ahead; it is logged, and seen by nobody."""


@dataclass(frozen=True)
class Front:
    """The calls of encoders with which a call of a pipeline begins, and which may run ahead, in their order."""

    calls: Sequence[PlannedCall]
    visits: Sequence[Visit]


def encoding_ahead(handle: Plannable, generation: Generation, kept: Encoded) -> Encoding:
    """How the front of the next call runs while one is sampled that is planned so; its results go to ``kept``.

    To be called by who has the turn, within the call. Raises NotAheadError where nothing may run ahead.
    """
    if not may_run_dry(handle) or is_watched():
        raise NotAheadError("somebody looks at calls: hooks, modes or a profiler")
    front = front_of(generation, handle.components)
    _check_room(generation, front)
    programs = {id(one.program) for one in front.calls}
    names = {one.component for one in front.calls}
    states = dict(_states([handle.components[name] for name in names], programs))
    return Encoding(states, programs, len(front.calls), kept)


def front_of(generation: Generation, components: Mapping[str, Component]) -> Front:
    """The calls that may run ahead; raises NotAheadError where there is none."""
    visits = [one for one in generation.visits if one.call is not None]
    first = next((number for number, one in enumerate(visits) if _call_of(one).role in SAMPLING), None)
    if first is None:
        raise NotAheadError("it is not planned when sampling begins")
    later = [_call_of(one) for one in visits[first:]]
    busy = {one.component for one in later}
    taken = {device for one in later for device in _devices_of(components.get(one.component), one)}
    found: list[Visit] = []
    for visit in visits[:first]:
        call = _call_of(visit)
        why = _why_not(call, components.get(call.component), busy, taken)
        if why and not found:
            raise NotAheadError(f"{call.title} {why}")
        if why:
            break
        found.append(visit)
    if not found:
        raise NotAheadError("nothing is called before sampling")
    return Front([_call_of(one) for one in found], found)


def _why_not(call: PlannedCall, component: Component | None, busy: set[str], taken: set[Device]) -> str:
    """Why a call before sampling may not run ahead; empty where it may."""
    if component is None or call.role != ENCODER:
        return "is no call of a text encoder"
    if call.component in busy:
        return "is called while sampling too"
    if call.part_of or component.parts.reasons or component.sites.are_by_parts or component.sites.left:
        return "is not compiled whole"
    if shared := taken & set(_devices_of(component, call)):
        return f"shares {', '.join(sorted(map(str, shared)))} with what samples or decodes"
    if component.streams or not _stay(call):
        return "has weights that come and go"
    if any(draws_numbers(one.target, one.args, one.kwargs) for one in call.program.ops()):
        return "draws random numbers"
    return ""


def _stay(call: PlannedCall) -> bool:
    """Whether all weights of a program stay where it reads them."""
    loads = (one for one in call.program.schedule or () if isinstance(one, Load))
    return not call.program.residency and all(one.lifetime is Lifetime.PROGRAM for one in loads)


def _call_of(visit: Visit) -> PlannedCall:
    assert visit.call is not None
    return visit.call


def _devices_of(component: Component | None, call: PlannedCall) -> tuple[Device, ...]:
    """All devices on which something of a component is computed."""
    if component is None:
        return tuple(call.program.devices)
    return (*call.program.devices, *component.devices, component.whole_on)


def _check_room(generation: Generation, front: Front) -> None:
    """Raises NotAheadError where a device lacks room for what running ahead takes beside the fullest moment."""
    more, peaks = bytes_ahead(generation, front), generation.peaks()
    needed = {device: more[device] + (peaks[device].total if device in peaks else 0) for device in {*more, *peaks}}
    for device, nbytes in needed.items():
        free = generation.rig[device].free if device in generation.rig.memory else math.inf
        if more[device] and nbytes > free:
            raise NotAheadError(
                f"{device} has {format_bytes(int(free))} free, and would need {format_bytes(nbytes)} with it"
            )
    shared = [device for device in generation.rig if generation.rig[device].integrated]
    host = generation.rig.host
    together = sum(needed.get(device, 0) for device in (*shared, host))
    if shared and together > generation.rig[host].free:
        raise NotAheadError(f"devices that share memory would need {format_bytes(together)} together")


def bytes_ahead(generation: Generation, front: Front) -> Counter[Device]:
    """The bytes on each device that running ahead takes at most, beside what encoders take on devices of their own.

    These are the tensors that the pipeline's own code holds meanwhile, and results: on the devices of both who computes
    and who reads them, and in host memory, where they are kept.
    """
    found: Counter[Device] = Counter()
    for visit in front.visits:
        found |= Counter(visit.held) | Counter(visit.since)
    samples = next(one for one in generation.calls if one.role in SAMPLING)
    for call in front.calls:
        nbytes = _bytes_of_results(call.program)
        for device in {generation.rig.host, generation.main_of(samples.component), call.program.main}:
            found[device] += nbytes
    return found


def _bytes_of_results(program: Program) -> int:
    leaves = program.output.args[0]
    assert isinstance(leaves, (tuple, list))
    nodes = dict.fromkeys(one for one in leaves if isinstance(one, Node))
    return sum(kind.nbytes for node in nodes for kind in tensors_of(node))


def _states(components: Sequence[Component], programs: set[int]) -> Iterator[tuple[Call, tuple[int, object]]]:
    """The calls that have one of some programs, with the state that their modules are in; others have adapters."""
    for component in components:
        for call in list(component.calls):
            held = [one for one in call.programs.values() if isinstance(one, CompiledModule)]
            if not any(id(one.program) in programs for one in held):
                continue
            state, branches = component.watch.look(call), component.adapters.read(call.module)
            if not state.replaced and branches.key == NO_BRANCHES.key:
                yield call, (state.number, branches.key)

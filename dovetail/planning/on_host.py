"""Says of a plan that it computes blocks of a denoiser on the host beside accelerators, and what would be quicker.

A block takes tens of times as long there, in each step. The search has such blocks only where nothing else fits; a
person may have typed them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.durations import seconds_text
from ..compiler.ir.program import Program
from ..compiler.spec.residency import ALIKE
from ..compiler.units import format_bytes
from ..fitting.decide import Decision
from ..passes.fit.plan import settings_of
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.ways_out import TYPES, in_packed_type, line_of
from ..passes.fit.workload import Asked, Load
from ..passes.simulate.timeline import timeline
from .parts import Part

MORE = 2 * 2**30
"""The bytes of memory that are tried more of a device."""

_MUCH = 0.8
"""The part of a picture's seconds that is left at most where all is placed otherwise, and not the denoiser alone."""

_WORTH = 0.5
"""The part of a picture's seconds that is left at most where a cure is named."""


def told_of_host(
    parts: Sequence[Part], speeds: Speeds, host: Device, picture: str, decision: Decision | None
) -> Iterator[str]:
    """A line for each program of a denoiser of which the host computes blocks, where it has an accelerator too.

    For a denoiser that runs by its parts it is one line. ``picture`` are the seconds of a picture in words.
    """
    if all(device.is_host for device in speeds.devices):
        return
    by_parts: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        if part.call.role == "diffusion" and part.call.part_of:
            by_parts[part.call.component].append(part)
        elif part.call.role == "diffusion" and (blocks := _on_host(part.call.program, host)):
            cure = _cure(part.call.component, decision)
            yield _told(f"{blocks} of {part.title}", [part], host, speeds, picture, cure)
    for name, some in by_parts.items():
        slow = [part for part in some if _on_host(part.call.program, host)]
        if slow:
            what = f"{len(slow)} of {len(some)} parts of {name}"
            yield _told(what, slow, host, speeds, picture, _cure(name, decision))


def _told(what: str, parts: Sequence[Part], host: Device, speeds: Speeds, picture: str, cure: str) -> str:
    there = sum(part.call.times * timeline(part.call.program, speeds).busy(str(host)) for part in parts)
    takes = f"which takes {seconds_text(there, speeds.spread([host]))} of the {picture} s of a picture"
    return f"{what} are computed on {host}, {takes}: {cure}"


def _on_host(program: Program, host: Device) -> str:
    """What of a program's blocks the host computes, in words; nothing where it computes none, or rows of all."""
    if program.is_grouped:
        return ""
    homes = [{program.home.get(name) for name in block.weights} for block in program.blocks]
    count = sum(host in devices for devices in homes)
    if not count and program.main == host and len(program.devices) == 1:
        return "all operations"
    return f"{count} of {len(homes)} blocks" if count else ""


def _cure(name: str, decision: Decision | None) -> str:
    """What is quicker, by a search; where devices were given and nothing was searched, what to type to have one."""
    if decision is None:
        return f"leave {name} out of --backend to have a placement searched, or name no cpu for it"
    most = _WORTH * decision.solution.seconds
    for seconds, changed in _cures(name, decision):
        if seconds <= most:
            spread = decision.machine.speeds.spread(decision.machine.devices)
            return f"with {changed} it takes {seconds_text(seconds, spread)} s"
    return "nothing that was tried takes half of that"


def _cures(name: str, decision: Decision) -> Iterator[tuple[float, str]]:
    """The seconds of a picture with something changed, and what that is, what costs least first."""
    loads, budgets = decision.loads, decision.granted
    load = next(one for one in loads if one.name == name)
    anywhere = replace(load.asked, devices=(), shares=(), mode="layer", residency=None, amounts=ALIKE)
    if anywhere != load.asked:
        changed = _changed(loads, load, anywhere)
        opened = [replace(one, asked=one.asked.opened) for one in loads]
        alone, every = _with(decision, changed), _with(decision, opened)
        if every and not (alone and alone.seconds <= every.seconds / _MUCH):
            yield every.seconds, line_of(settings_of(every, opened))
        elif alone:
            yield alone.seconds, line_of(settings_of(alone, changed))
    for quant in TYPES:
        found = _with(decision, in_packed_type(loads, {name}, quant))
        if found:
            yield found.seconds, f"its weights in {quant} (--quant {name}={quant.lower()})"
    for device in decision.machine.devices:
        more = {**budgets.devices, device: budgets.devices[device] + MORE}
        found = search(loads, decision.machine, replace(budgets, devices=more))
        if found:
            yield found.seconds, f"{format_bytes(MORE)} more of {device}"


def _with(decision: Decision, loads: Sequence[Load]) -> Solution | None:
    return search(loads, decision.machine, decision.granted)


def _changed(loads: Sequence[Load], load: Load, asked: Asked) -> list[Load]:
    return [replace(one, asked=asked) if one is load else one for one in loads]

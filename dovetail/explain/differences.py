"""What differs between two placements of the same components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..compiler.devices.device import Device
from ..compiler.durations import duration
from ..compiler.ir.program import Program
from ..compiler.spec.residency import Residency
from ..compiler.units import counted, format_bytes
from ..fitting.decide import speeds_here
from ..passes.simulate.memory import simulate
from ..passes.simulate.timeline import timeline
from ..passes.states.states import split_mode_of
from .facts import cuts_of, weights_by_place

_NOWHERE = "nothing"
_SAME = 0.005


def differences(before: Mapping[str, Program], after: Mapping[str, Program]) -> Iterator[str]:
    """A line for each thing that differs; nothing for placements that are alike.

    Args:
        before, after: programs by the names of their components.
    """
    for name in dict.fromkeys([*before, *after]):
        if name not in after or name not in before:
            yield f"{name} is only in the {'first' if name in before else 'second'}"
    for name in (name for name in before if name in after):
        yield from (f"{name}: {what}" for what in _of_one(before[name], after[name]))


def _of_one(before: Program, after: Program) -> Iterator[str]:
    if before.name != after.name:
        yield f"it is a {before.name} in the first, and a {after.name} in the second"
    moved = [name for name, home in before.home.items() if name in after.home and after.home[name] != home]
    if moved:
        nbytes = sum(before.weights[name].nbytes for name in moved)
        lie = "lies on another device" if len(moved) == 1 else "lie on other devices"
        yield f"{counted(len(moved), 'weight')} ({format_bytes(nbytes)}) {lie}"
    if before.is_sliced != after.is_sliced:
        yield f"matrices are split by rows in the {'first' if before.is_sliced else 'second'} only"
    modes = split_mode_of(before), split_mode_of(after)
    if modes[0] != modes[1] and not set(modes) <= {"layer", "row"}:
        yield f"it is split by {modes[0]} in the first, and by {modes[1]} in the second"
    yield from _changes("weights", _weights(before), _weights(after))
    yield from _changes("peak", _peaks(before), _peaks(after))
    yield from _changes("sent in a call", _sent(before), _sent(after))
    then, now = (timeline(one, speeds_here(one.rig)).seconds for one in (before, after))
    if abs(now - then) > _SAME * then:
        spreads = (speeds_here(one.rig).spread(one.devices) for one in (before, after))
        yield f"a call takes {duration(then, next(spreads))} → {duration(now, next(spreads))}"


def _changes(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    for key in dict.fromkeys([*before, *after]):
        then, now = before.get(key, 0), after.get(key, 0)
        if then != now:
            yield f"{what} {key}: {_size(then)} → {_size(now)}"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes else _NOWHERE


def _weights(program: Program) -> dict[str, int]:
    return {_place(*key): nbytes for key, nbytes in weights_by_place(program).items()}


def _place(device: Device, rests: Residency) -> str:
    if rests is Residency.DISK:
        return f"for {device} on disk"
    return f"for {device} in host memory" if rests is Residency.HOST else f"on {device}"


def _peaks(program: Program) -> dict[str, int]:
    return {f"on {device}": usage.total for device, usage in simulate(program).items()}


def _sent(program: Program) -> dict[str, int]:
    return {f"from {cut.source} to {cut.target}": cut.nbytes for cut in cuts_of(program, speeds_here(program.rig))}

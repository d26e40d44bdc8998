"""What makes a plan slow that one option would mend, said with the seconds as they are and as they would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.durations import duration
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Copy
from ..compiler.states.parts import pieces
from ..passes.simulate.timeline import ClockWalk
from .parts import Part
from .usage import timeline_of

_WORTH = 1.1
"""So many times as long as without it something takes at least where it is warned of."""


def warnings_of(parts: Sequence[Part], speeds: Speeds) -> Iterator[str]:
    """A sentence for bfloat16 on cards that have no units for it, and one for each row split over a slow host."""
    yield from _of_bfloat16(parts, speeds)
    for part in parts:
        yield from _of_rows(part, speeds)


def _of_bfloat16(parts: Sequence[Part], speeds: Speeds) -> Iterator[str]:
    used = {device for part in parts for device in part.call.program.devices}
    lacking = {device: one for device, one in speeds.devices.items() if device in used and one.lacks_bfloat16}
    if not lacking:
        return
    other = in_float16(speeds)
    now, then = (sum(_seconds(part, some) for part in parts) for some in (speeds, other))
    if now <= _WORTH * then:
        return
    names = ", ".join(f"{device} ({one.label})" for device, one in lacking.items())
    spread = speeds.spread(used)
    yield (
        f"{names}: no units for bfloat16, which is computed as float32 there: "
        f"{duration(now, spread)}; in float16 (--dtype float16) {duration(then, spread)}"
    )


def in_float16(speeds: Speeds) -> Speeds:
    """The speeds of what is computed in bfloat16 if it were float16, on the devices where that is much quicker."""
    cards = {
        device: replace(
            one,
            flops=_as_float16(one.flops),
            attention=_as_float16(one.attention),
            convolution=_as_float16(one.convolution),
        )
        for device, one in speeds.devices.items()
        if one.lacks_bfloat16
    }
    return replace(speeds, devices={**speeds.devices, **cards})


def _as_float16(rates: Mapping[str, float]) -> dict[str, float]:
    return {**rates, "bfloat16": rates["float16"]} if "float16" in rates else dict(rates)


def _seconds(part: Part, speeds: Speeds) -> float:
    return part.call.times * timeline_of(part.call.program, speeds).seconds + part.bringing


def _of_rows(part: Part, speeds: Speeds) -> Iterator[str]:
    """A row split in which the host computes rows more slowly than they would be brought to the main device."""
    program, times = part.call.program, max(1, part.call.times)
    host = next((device for device in program.devices if device.is_host), None)
    if not program.is_sliced or host is None or len(program.devices) < 2 or program.main == host:
        return
    now, then = timeline_of(program, speeds).seconds, _without(program, speeds, host)
    if now <= _WORTH * then:
        return
    spread = speeds.spread(program.devices)
    yield (
        f"the rows of {part.title} on {host} are computed there, which the other devices wait for: "
        f"{duration(times * now, spread)}; with those rows computed on {program.main}, and kept in host memory "
        f"(leave {host} out of --backend, --params-backend cpu), {duration(times * then, spread)}"
    )


def _without(program: Program, speeds: Speeds, host: Device) -> float:
    """The seconds of a call in which the main device computes the host's rows, for which their weights are brought."""
    walk = _WithoutHost(program, speeds, host=host)
    walk.walk()
    nbytes = sum(weight.nbytes for weight, home in pieces(program).values() if home == host)
    return max(walk.ended().seconds, nbytes / speeds.loading(program.main, False))


class _WithoutHost(ClockWalk):
    """The clocks of a row split in which the host's rows are the main device's."""

    def __init__(self, program: Program, speeds: Speeds, host: Device) -> None:
        super().__init__(program, speeds)
        self._host = host

    def share(self, node: Node, device: Device) -> float:
        """The part of a split value's columns that a device has, that of the host with the main device's."""
        if device == self._host:
            return 0.0
        own = super().share(node, device)
        return own + super().share(node, self._host) if device == self.program.main else own

    def issue(self, device: Device) -> None:
        """The host computes nothing, and issues on."""
        if device != self._host:
            super().issue(device)

    def copy(self, copy: Copy) -> None:
        """A value that the host has no part in; what went there or came from there takes no time."""
        if self._host not in (copy.source, copy.target):
            super().copy(copy)

"""What is said of a program that is placed: what it has on each device, what crosses, and who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.durations import duration
from ..compiler.ir.program import Program
from ..compiler.spec.residency import Residency
from ..compiler.states.parts import held_on, sent
from ..compiler.units import counted, format_bytes
from ..passes.simulate.critical_path import critical_path
from ..passes.simulate.timeline import Timeline, timeline
from ..passes.states.states import split_mode_of
from ..planning.shared_work import is_shared_out
from ..planning.table import what_of, working_devices
from .states import states_in_words

_WAITS = 0.02
"""The part of a call that a device waits at least where that is said."""


@dataclass(frozen=True)
class Cut:
    """What a program sends from one device to another in a call: how many values, their bytes and seconds."""

    source: Device
    target: Device
    values: int
    nbytes: int
    seconds: float
    spread: float = 0.0

    def sentence(self, times: int) -> str:
        """What the cut costs, in a call and in so many of them."""
        once = f"{format_bytes(self.nbytes)} in {counted(self.values, 'value')}"
        whole = f", {duration(times * self.seconds, self.spread)} in {times} calls" if times > 1 else ""
        takes = duration(self.seconds, self.spread)
        return f"Each call sends {once} from {self.source} to {self.target}, which takes {takes}{whole}."


def cuts_of(program: Program, speeds: Speeds) -> list[Cut]:
    """What crosses between each two devices, in the order in which it first does."""
    values: Counter[tuple[Device, Device]] = Counter()
    nbytes: Counter[tuple[Device, Device]] = Counter()
    for transfer in program.transfers():
        for source, target, size in sent(program, transfer):
            values[source, target] += 1
            nbytes[source, target] += size
    return [
        Cut(*way, count, nbytes[way], nbytes[way] / speeds.crossing(*way), speeds.spread(way))
        for way, count in values.items()
    ]


def weights_by_place(program: Program) -> dict[tuple[Device, Residency], int]:
    """The bytes of weights by the device that computes with them and by where they rest."""
    found: Counter[tuple[Device, Residency]] = Counter()
    for weight, devices in held_on(program):
        for device in devices:
            found[device, program.residency.get(weight.whole, Residency.DEVICE)] += weight.nbytes
    return dict(found)


def sentences_of(title: str, program: Program, times: int, speeds: Speeds) -> Iterator[str]:
    """Where a program runs, what its cuts cost, and who waits for what.

    Args:
        title: what it is called.
        program: placed and lowered.
        times: how often a picture calls it, 0 where that is not known.
        speeds: of its devices.
    """
    where = "; ".join(f"{device} has {what_of(program, device)}" for device in working_devices(program))
    mode = split_mode_of(program)
    split = {"layer": "", "row": "; its matrices are split by rows"}.get(mode, f"; it is split by {mode}")
    often = f", and a picture makes {times}" if times > 1 else ""
    line, spread = timeline(program, speeds), speeds.spread(program.devices)
    yield f"{title}: {where}{split}. A call takes {duration(line.seconds, spread)}{often}."
    yield from _chain(program, speeds, spread)
    if is_shared_out(program):
        yield from states_in_words(program)
    for cut in cuts_of(program, speeds):
        yield cut.sentence(times)
    for device, seconds in line.waited.items():
        if seconds > _WAITS * line.seconds:
            yield f"{device} waits {duration(seconds, spread)} of each call for {_awaited(line, device, seconds)}."


def _chain(program: Program, speeds: Speeds, spread: float) -> Iterator[str]:
    """What the longest chain of work of a call is made of, where that is work of several lanes."""
    lanes: Counter[str] = Counter()
    for stretch in critical_path(program, speeds):
        lanes[stretch.lane] += stretch.seconds  # type: ignore[assignment]
    parts = [f"{duration(seconds, spread)} {lane}" for lane, seconds in lanes.most_common() if seconds > 0]
    if len(parts) > 1:
        yield f"Its longest chain of work, which alone decides that, is {', '.join(parts)}."


def _awaited(line: Timeline, device: Device, seconds: float) -> str:
    """What a device waits for, by what the lane that brings its weights does meanwhile."""
    if line.busy(f"loads to {device}") >= seconds:
        return "weights that are brought to it, which a faster link or more memory would shorten"
    return "what other devices compute and send"

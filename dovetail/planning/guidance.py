"""What is told of calls that take turns on devices: the seconds of a step together, and one after another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.durations import duration
from ..compiler.ir.program import tensors_of
from .generation import PlannedCall


@dataclass(frozen=True)
class Together:
    """Calls of a component that go on at the same time, and how often they do in a picture.

    ``seconds`` are those until all are done, inputs and results on their way included, and ``apart`` those one after
    another on the first device.
    """

    component: str
    places: tuple[str, ...]
    calls: int
    times: int
    seconds: float
    apart: float

    @property
    def saved(self) -> float:
        """The seconds of a picture that go by for several calls at once."""
        return self.times * (self.apart - self.seconds)

    def told(self, spread: float) -> str:
        """It as a line."""
        who = "each of which holds it" if all("&" not in one for one in self.places) else "each group of which holds it"
        return (
            f"calls of {self.component} take turns on {' and '.join(self.places)}, {who} "
            f"whole: {self.calls} guidance parts take {duration(self.seconds, spread)}, and one after another "
            f"{duration(self.apart, spread)}"
        )


def together_in(
    turns: Sequence[Sequence[PlannedCall]], seconds: Mapping[PlannedCall, float], speeds: Speeds
) -> Iterator[Together]:
    """What goes on at the same time, by the seconds of each call; turns of the same calls are one."""
    for calls, times in Counter(map(tuple, turns)).items():
        if len(calls) < 2:
            continue
        home, each = calls[0].program.main, defaultdict[str, float](float)
        for call in calls:
            each[" & ".join(map(str, call.program.devices))] += seconds[call] + _crossing(call, home, speeds)
        apart = sum(seconds[call] for call in calls)
        yield Together(calls[0].component, tuple(each), len(calls), times, max(each.values()), apart)


def _crossing(call: PlannedCall, home: Device, speeds: Speeds) -> float:
    """The seconds in which the inputs of a call come to its device and its results go home."""
    there = call.program.main
    if there == home:
        return 0.0
    results = sum(one.nbytes for node in call.program.output.all_input_nodes for one in tensors_of(node))
    inputs = sum(call.copied.values())
    return inputs / speeds.crossing(home, there) + results / speeds.crossing(there, home)

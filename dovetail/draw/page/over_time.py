"""Memory and lanes over time as columns for the page: of one call, and of a whole picture.

Memory is drawn in so many moments; each has what is there at its fullest, so that no peak is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Lifetime, Load
from ...compiler.states.parts import pieces
from ...passes.simulate.memory import Usage
from ...passes.simulate.profile import Moments, Profile
from ...passes.simulate.timeline import Span, Timeline
from ...planning.generation import Generation, PlannedCall
from ...planning.walk import Moment

LAYERS = ("resident", "phase", "staged", "values", "scratch")
"""Weights that stay, weights for the phase, slots for weights that come and go, values, and what kernels take."""
_OF_CALL, _OF_PICTURE = 240, 720
_NARROWEST = 1 / 1500
"""Spans are drawn as one with their neighbours where they are narrower than this part of the call."""

Columns = dict[str, list[float]]


def of_call(program: Program, profile: Profile) -> dict[str, Columns]:
    """The memory of each device through the first call of its phase, which brings what is kept for the phase."""
    found = {}
    staying = _staying(program)
    for device, moments in profile.moments.items():
        shown = _thinned(moments, profile.timeline.seconds, _OF_CALL)
        points = [(time, _sizes(usage, staying[device])) for time, usage in shown]
        found[device.name] = _columns([*points, *((profile.timeline.seconds, sizes) for _, sizes in points[-1:])])
    return found


def _staying(program: Program) -> Counter[Device]:
    """The bytes of weights that stay on each device; they are there before what is brought for a phase."""
    known, found = pieces(program), Counter[Device]()
    for load in program.schedule or ():
        if isinstance(load, Load) and load.lifetime is Lifetime.PROGRAM:
            found[load.device] += sum(known[name][0].device_bytes for name in {*load.weights})
    return found


def _sizes(usage: Usage, staying: int) -> tuple[int, ...]:
    """The bytes of each layer."""
    stays = min(usage.weights, staying)
    return stays, usage.weights - stays, usage.staged, usage.values, usage.scratch


def lanes_of(timeline: Timeline) -> dict[str, Any]:
    """What each lane does in one call: [lane, start, end, what], very short ones drawn together."""
    lanes: defaultdict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        lanes[span.lane].append(span)
    names = sorted(lanes, key=lambda lane: (" to " in lane, lane))
    spans = [
        [number, _rounded(start), _rounded(end), what]
        for number, name in enumerate(names)
        for start, end, what in _joined(lanes[name], timeline.seconds * _NARROWEST)
    ]
    busy = [_rounded(timeline.busy(name)) for name in names]
    return {"lanes": names, "busy": busy, "spans": spans, "seconds": timeline.seconds}


def _joined(spans: Sequence[Span], narrow: float) -> Iterator[tuple[float, float, str]]:
    start, end, names = 0.0, -1.0, list[str]()
    for span in sorted(spans, key=lambda one: one.start):
        if names and (span.end - start < narrow or (span.end - span.start < narrow and span.start - end < narrow)):
            names.append(span.what)
            end = max(end, span.end)
            continue
        if names:
            yield start, end, _all(names)
        start, end, names = span.start, span.end, [span.what]
    if names:
        yield start, end, _all(names)


def _all(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def of_picture(
    generation: Generation, profiles: Mapping[int, Profile], bringing: Mapping[int, float]
) -> dict[str, Any]:
    """The memory of each device through a whole call of a pipeline, and which component is called when.

    Args:
        generation: the plan of the call.
        profiles: of each program of the plan, by the id of its planned call.
        bringing: the seconds of bringing weights for the phase, which come before the first call, in the same way.
    """
    visits: defaultdict[int, list[Moment]] = defaultdict(list)
    for one in generation.moments:
        visits[one.visit].append(one)
    count = max(4, min(60, _OF_PICTURE // max(1, len(visits))))
    resident = {device: sum(held.values()) for device, held in generation.resident.items()}
    points: defaultdict[Device, list[Any]] = defaultdict(list)
    marks: list[list[Any]] = []
    now, met = 0.0, set[int]()
    for moments in visits.values():
        call = moments[0].call
        began = now
        before, during = [m for m in moments if m.is_before], [m for m in moments if not m.is_before]
        for one in before:
            points[one.device].append((now, (resident.get(one.device, 0), one.staged, 0, one.values, 0)))
        if during:
            now += bringing[id(call)] if id(call) not in met else 0.0
            met.add(id(call))
            for one in during:
                points[one.device] += _during(one, profiles[id(call)], now, count, resident.get(one.device, 0))
            now += profiles[id(call)].timeline.seconds
            _mark(marks, call, began, now)
    devices = {device.name: _columns([*some, (now, some[-1][1])]) for device, some in points.items() if some}
    return {"devices": devices, "marks": marks, "seconds": now}


def _mark(marks: list[list[Any]], call: PlannedCall, began: float, end: float) -> None:
    """Notes a call; another one of the same component after it makes the same mark longer."""
    if marks and marks[-1][0] == call.component:
        marks[-1][3], marks[-1][4] = _rounded(end), marks[-1][4] + 1
    else:
        marks.append([call.component, call.phase, _rounded(began), _rounded(end), 1])


def _during(moment: Moment, profile: Profile, start: float, count: int, resident: int) -> Iterator[Any]:
    """A device through a call: what is at its fullest as the plan has it, and less where the call takes less."""
    own = _thinned(profile.moments.get(moment.device, []), profile.timeline.seconds, count)
    fullest = max((one.total - one.weights for _, one in own), default=0)
    beside = max(0, moment.values - fullest)
    if not own:
        yield start, (resident, moment.staged, 0, moment.values, 0)
    for time, one in own:
        yield start + time, (resident, moment.staged, one.staged, one.values + beside, one.scratch)


def _thinned(moments: Moments, end: float, count: int) -> Moments:
    """At most so many moments: of each stretch of time the fullest one, what was there at its beginning among them."""
    width = end / count or 1.0
    found: dict[int, Usage] = {}
    last: Usage | None = None
    for time, usage in moments:
        place = min(count - 1, int(time / width))
        held = found.get(place, last)
        if held is None or usage.total >= held.total:
            found[place] = usage
        else:
            found[place] = held
        last = usage
    return [(place * width, usage) for place, usage in sorted(found.items())]


def _columns(points: Any) -> Columns:
    columns: Columns = {"x": [], **{layer: [] for layer in LAYERS}}
    for time, sizes in points:
        columns["x"].append(_rounded(time))
        for layer, size in zip(LAYERS, sizes, strict=True):
            columns[layer].append(size)
    return columns


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.6g}")

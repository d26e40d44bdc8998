"""The best contiguous partition of a chain over devices in a given order, with what each part's weights do.

Variables
    for each device in order a range of consecutive parts, maybe none; for each part its residency: on its device
    throughout, or brought there in every step from the host's memory or from disk.

Objective, least
    the sum over the devices of the longer one of the seconds of computing its parts and of bringing what is streamed to
    them, and ``exposed`` times the shorter one, for loads overlap computing, but not wholly (`Problem.seconds_of`), and
    of the crossings: between a device and the next one that has parts, and from the last one back to the main device
    (`Problem.crossing`). The devices work one after another, because one picture is made at a time. The main device is
    the first one, and also has the rest.

Constraints
    on each device its resident weights, ``slots`` times the largest block that is streamed to it, and the most values
    alive while any of its parts runs are at most its budget (`Problem.fits`); what is streamed from the host's memory
    is at most ``host`` bytes in all.

The solution is exact: `partition` goes over devices and ends of ranges, and keeps for each pair all solutions of which
none is worse than another in both seconds and host memory. Within a range, what is resident is a subset of the largest
sum that leaves room for the slots, for every size that a slot may have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ...compiler.spec.residency import Residency
from .subsets import Item, Subsets

_UNITS = 1 << 14
"""Into how many units bytes are counted, at most: what is resident is rounded up by less than this part of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the chain in bytes: weights, the largest block in it, values alive, what crosses behind it.

    ``stays`` are those that are on its device throughout whatever is streamed; the others do not count them.
    """

    nbytes: int
    largest: int
    live: int
    boundary: int = 0
    stays: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """A device: the bytes that may be used, its seconds for each piece and for the rest, and for a loaded byte.

    ``loads`` has seconds a byte from each place from which weights may be streamed to it; empty if from none.
    """

    budget: int
    seconds: Sequence[float]
    rest: float = 0.0
    loads: Mapping[Residency, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A chain, the rest of it on the first room, the rooms in order, and how long a byte takes between two of them.

    ``latency`` is how long any crossing takes besides.
    """

    pieces: Sequence[Piece]
    rooms: Sequence[Room]
    rest: Piece
    crossings: Mapping[tuple[int, int], float]
    host: int = 0
    slots: int = 2
    latency: float = 0.0
    exposed: float = 0.0

    @cached_property
    def unit(self) -> int:
        """The bytes of a unit."""
        return max(1, -(-sum(piece.nbytes for piece in self.pieces) // _UNITS))

    def held(self, room: int) -> int:
        """The weights of the rest on a room."""
        return 0 if room else self.rest.nbytes + self.rest.stays

    def seconds_of(self, room: int, computing: float, streamed: Mapping[Residency, int]) -> float:
        """The time of a room with pieces: of computing or loading, whichever is longer, and a part of the other."""
        loads = self.rooms[room].loads
        loading = sum(nbytes * loads[place] for place, nbytes in streamed.items() if nbytes)
        return max(computing, loading) + self.exposed * min(computing, loading)

    def fits(self, room: int, resident: int, slot: int, live: int) -> bool:
        """Whether a room has memory for resident pieces, slots for the largest streamed block, and live values."""
        return self.held(room) + resident + self.slots * slot + live <= self.rooms[room].budget

    def crossing(self, source: int, target: int, nbytes: int) -> float:
        """The seconds that some bytes take from one room to another."""
        return self.latency + nbytes * self.crossings[source, target] if source != target else 0.0

    def seconds_in(self, ranges: Sequence[tuple[int, int]], residency: Sequence[Residency]) -> float:
        """The seconds with some range of pieces on each room, where each piece rests as is said."""
        seconds, at = self.rooms[0].rest, 0
        for index, (start, end) in enumerate(ranges):
            if end > start:
                nbytes = self.pieces[start - 1].boundary if start else self.rest.boundary
                streamed: Counter[Residency] = Counter()
                for piece, rests in zip(self.pieces[start:end], residency[start:end], strict=True):
                    streamed[rests] += piece.nbytes if rests is not Residency.DEVICE else 0
                computing = sum(self.rooms[index].seconds[start:end])
                seconds += self.crossing(at, index, nbytes) + self.seconds_of(index, computing, streamed)
                at = index
        return seconds + self.crossing(at, 0, self.pieces[-1].boundary if self.pieces else 0)


@dataclass(frozen=True, slots=True)
class Split:
    """A solution: its seconds, for each room the range of its pieces, and for each piece where it rests."""

    seconds: float
    ranges: tuple[tuple[int, int], ...]
    residency: tuple[Residency, ...]
    host: int = 0


class _Label(NamedTuple):
    """A way to place the pieces up to some end, the last of them on some room."""

    seconds: float
    host: int
    room: int
    start: int
    end: int
    choice: tuple[Residency, ...]
    before: _Label | None


def partition(problem: Problem) -> Split | None:
    """The split of least seconds, and of these one of least host memory; None where nothing fits."""
    count, main = len(problem.pieces), problem.rooms[0]
    if not problem.fits(0, 0, 0, problem.rest.live):
        return None
    last_room = len(problem.rooms) - 1  # behind which nothing follows
    nothing = _Label(main.rest, 0, 0, 0, 0, (), None)
    labels: dict[tuple[int, int], list[_Label]] = {(0, 0): [nothing]}
    ways = _ways_of(problem)
    entered: list[list[list[_Label]]] = [[] for _ in problem.rooms]
    for end in range(1, count + 1):
        for room in range(last_room + 1 if end == count else last_room):
            entered[room] += [_entering(problem, labels, room, at) for at in range(len(entered[room]), end)]
            found = _extended(problem, entered[room], room, end, ways[room])
            if found:
                labels[room, end] = _undominated(found)
    last = [_closed(problem, label) for room in range(len(problem.rooms)) for label in labels.get((room, count), ())]
    best = min(last, key=lambda split: (split.seconds, split.host), default=None)
    return best if count else _closed(problem, nothing)


def in_ranges(problem: Problem, ranges: tuple[tuple[int, int], ...]) -> Split | None:
    """The split with some range of pieces on each room, each as quick as it can be; None where one does not fit.

    What rests in the host's memory has room there for the first ones first.
    """
    if not problem.fits(0, 0, 0, problem.rest.live):
        return None
    host, residency = 0, tuple[Residency, ...]()
    for room, (start, end) in enumerate(ranges):
        if start == end:
            continue
        found = (way for way in _Ways(problem, room).of(start, end) if host + way[1] <= problem.host)
        way = min(found, key=lambda one: one[0], default=None)
        if way is None:
            return None
        host, residency = host + way[1], (*residency, *way[2])
    return Split(problem.seconds_in(ranges, residency), ranges, residency, host)


def _ways_of(problem: Problem) -> list[_Ways]:
    """The ways of each room to hold ranges; those of rooms that are alike, behind the first, are found once."""
    found: list[_Ways] = []
    for index, room in enumerate(problem.rooms):
        alike = next((one for one in found if one.room and one.device == room), None)
        found.append(alike or _Ways(problem, index))
    return found


def _entering(problem: Problem, labels: Mapping[tuple[int, int], list[_Label]], room: int, start: int) -> list[_Label]:
    """The labels that a range on a room may follow, with the crossing there; the main device may begin the chain."""
    nbytes = problem.pieces[start - 1].boundary if start else problem.rest.boundary
    befores = [before for earlier in range(room) for before in labels.get((earlier, start), ())]
    befores += labels[0, 0] if room == 0 and start == 0 else []
    return _undominated(
        [one._replace(seconds=one.seconds + problem.crossing(one.room, room, nbytes)) for one in befores]
    )


def _extended(problem: Problem, entered: list[list[_Label]], room: int, end: int, ways: _Ways) -> list[_Label]:
    """The labels of ranges on a room up to some end; of starts from where none is held, the labels are dropped."""
    found: list[_Label] = []
    for start, befores in enumerate(entered):
        own = ways.of(start, end) if befores else []
        if not own:
            entered[start] = []  # nor is there a way to hold more
        found += [
            _Label(before.seconds + seconds, before.host + host, room, start, end, choice, before)
            for before in befores
            for seconds, host, choice in own
            if before.host + host <= problem.host
        ]
    return found


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Those that no other one beats in seconds without more host memory."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.seconds, one.host)):
        if not kept or label.host < kept[-1].host:
            kept.append(label)
    return kept


def _closed(problem: Problem, label: _Label) -> Split:
    """A label of all pieces, with what comes back to the main device."""
    back = problem.pieces[-1].boundary if problem.pieces else 0
    seconds = label.seconds + problem.crossing(label.room, 0, back)
    ranges = [(0, 0)] * len(problem.rooms)
    residency: tuple[Residency, ...] = ()
    step: _Label | None = label
    while step is not None:
        if step.end > step.start:
            ranges[step.room] = (step.start, step.end)
        residency = (*step.choice, *residency)
        step = step.before
    return Split(seconds, tuple(ranges), residency, label.host)


class _Ways:
    """The ways to hold a range of pieces on one room: seconds, host memory, and the residency of each piece."""

    def __init__(self, problem: Problem, room: int) -> None:
        self.problem, self.room, self.device = problem, room, problem.rooms[room]
        self.places = tuple(self.device.loads)
        self.known: dict[tuple[int, int], list[tuple[float, int, tuple[Residency, ...]]]] = {}
        self.sums: dict[int, tuple[int, int, int, int, float]] = {}

    def of(self, start: int, end: int) -> list[tuple[float, int, tuple[Residency, ...]]]:
        """Those of a range of which none is worse than another in both seconds and host memory."""
        if (start, end) not in self.known:
            self.known[start, end] = list(self._find(start, end))
        return self.known[start, end]

    def _find(self, start: int, end: int) -> Iterator[tuple[float, int, tuple[Residency, ...]]]:
        problem, pieces = self.problem, self.problem.pieces[start:end]
        total, stays, live, computing = self._sums(start, end)
        if problem.fits(self.room, total + stays, 0, live):
            yield computing, 0, (Residency.DEVICE,) * len(pieces)
            return
        room = self.device.budget - problem.held(self.room) - stays - live
        if not self.places or room < 0:
            return
        items = [Item(piece.nbytes, piece.largest) for piece in pieces]
        found = []
        for resident, on_host, choice in Subsets(items, problem.unit, problem.slots).choices(room, self.places):
            streamed = {Residency.HOST: on_host, Residency.DISK: total - resident - on_host}
            found.append((problem.seconds_of(self.room, computing, streamed), on_host, choice))
        least: int | None = None
        for one in sorted(found, key=lambda one: (one[0], one[1])):
            if least is None or one[1] < least:
                least = one[1]
                yield one

    def _sums(self, start: int, end: int) -> tuple[int, int, int, float]:
        """Of a range: bytes, those that stay whatever is streamed, the most alive, seconds; added up as it grows."""
        alive = 0 if self.room else self.problem.rest.live
        at, total, stays, live, computing = self.sums.get(start, (start, 0, 0, alive, 0.0))
        for piece, seconds in zip(self.problem.pieces[at:end], self.device.seconds[at:end], strict=True):
            total, stays, live = total + piece.nbytes, stays + piece.stays, max(live, piece.live)
            computing += seconds
        self.sums[start] = end, total, stays, live, computing
        return total, stays, live, computing

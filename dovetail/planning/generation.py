"""The account of a whole call of a pipeline: what each of its programs needs, added up by phase and by device.

A program that runs finds on a device: the weights of all programs that stay there, each once; what is brought for the
phase, by all programs of that phase; what its own values take at its fullest moment; and what the pipeline's own Python
holds of earlier results. The host counts as a device, and has besides the weights that rest in its memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..compiler.devices.device import Device
from ..compiler.devices.memory import Memory
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Lifetime
from ..compiler.units import counted, format_bytes
from ..components.dry import Skips
from ..conventions.picture import Picture
from ..passes.simulate.cost import OpCost
from .tiling import Tile
from .usage import usage_of
from .walk import Moment, Visit, Walk, visits_of

PHASES = ("conditioning", "sampling", "decoding")


@dataclass(frozen=True)
class Piece:
    """A weight, or rows of one, on a device: ``key`` is equal for what two programs share there.

    ``lasts`` says whether it stays there, is there for a phase, or for a stage of a program. ``rests`` are its bytes in
    host memory while it is not there; pieces of one weight, which ``of`` says, rest there as the ``whole`` of so many
    bytes at most, on however many devices they are read. ``name`` is what a program calls it.
    """

    key: Hashable
    component: str
    device: Device
    nbytes: int
    lasts: Lifetime
    rests: int = 0
    name: str = ""
    of: Hashable = None
    whole: int = 0


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """A program of the plan: where it belongs, how often it is called, and what it takes beside weights.

    ``values`` are the bytes on each device at the fullest moment that are no weights that stay or are kept for the
    phase; ``held`` the bytes of earlier results that the pipeline holds meanwhile. ``part_of`` is the class of the
    component where that runs by its parts, of which this is one. ``copied`` are the bytes of copies of its inputs,
    which it has while it goes on beside others.
    """

    title: str
    component: str
    role: str
    phase: str
    program: Program
    pieces: Sequence[Piece]
    times: int = 1
    held: Mapping[Device, int] = field(default_factory=dict)
    part_of: str = ""
    copied: Mapping[Device, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<PlannedCall of {self.title} while {self.phase}, {counted(self.times, 'time')}>"

    @cached_property
    def values(self) -> Mapping[Device, int]:
        """Bytes by device at the fullest moment, apart from pieces that are not of a stage."""
        return values_of(self.program)


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a device, at a call: weights that stay, those brought for the phase, and values."""

    call: PlannedCall
    resident: int
    staged: int
    values: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.resident + self.staged + self.values

    def __repr__(self) -> str:
        stays, comes, values = map(format_bytes, (self.resident, self.staged, self.values))
        return f"<Peak at {self.call.title}: {stays} of weights that stay, {comes} that come, {values} of values>"


def values_of(program: Program) -> dict[Device, int]:
    """What a lowered program has on each device at its fullest moment beside weights that outlive the call."""
    return {device: usage.total - usage.weights for device, usage in usage_of(program).items()}


def numbered(titles: Iterable[str]) -> list[str]:
    """Titles of which the second of a name and later ones have a number.

    >>> numbered(["vae.decode", "unet", "unet"])
    ['vae.decode', 'unet', 'unet.2']
    """
    count: Counter[str] = Counter()
    found = []
    for title in titles:
        count[title] += 1
        found.append(f"{title}.{count[title]}" if count[title] > 1 else title)
    return found


def told_apart(titles: Iterable[str]) -> list[str]:
    """Numbered titles for people: those of several programs of one component say that they are.

    >>> told_apart(["vae.decode", "unet", "unet.2"])
    ['vae.decode', 'unet (program 1 of 2)', 'unet (program 2 of 2)']
    """
    known = list(titles)
    split = [title.rpartition(".") for title in known]
    bases = [
        base if base in known and end.isdigit() else whole for whole, (base, _, end) in zip(known, split, strict=True)
    ]
    count, seen = Counter(bases), Counter[str]()
    found = []
    for base in bases:
        seen[base] += 1
        found.append(f"{base} (program {seen[base]} of {count[base]})" if count[base] > 1 else base)
    return found


class Generation:
    """The plan of one call of a pipeline: its programs in the order of their first calls, and what they need together.

    Args:
        calls: the programs.
        rigs: the devices of each component with what it may use of them.
        rig: all devices.
        others: pieces that stay on devices and belong to no program of the plan.
        visits: the calls of the programs as the pipeline makes them, where that is known.
    """

    def __init__(
        self,
        calls: Sequence[PlannedCall],
        rigs: Mapping[str, Rig],
        rig: Rig,
        others: Sequence[Piece] = (),
        visits: Sequence[Visit] = (),
    ) -> None:
        self.calls = tuple(calls)
        self.rig = rig
        self.tiles: Mapping[str, Tile] = {}
        """The tiles in which VAEs encode and decode, by component."""
        self.own: Mapping[str, Mapping[OpCost, float]] = {}
        """What the own Python of components that run by their parts computes, by component."""
        self.skips: Mapping[str, Skips] = {}
        """What caches of steps may leave out, by component."""
        self.turns: Sequence[Sequence[PlannedCall]] = ()
        """The calls that go on at the same time, each time that the pipeline waits for some together."""
        self.apart: dict[str, str] = {}
        """Why calls of components run one after another that could go on at the same time."""
        self.picture = Picture()
        """What the call makes, as far as it is known."""
        self.is_told = False
        """Whether it was said, before a call, which devices get nothing of it."""
        self._rigs = rigs
        self._others = tuple(others)
        self._visits = visits or visits_of(self.calls)

    def __repr__(self) -> str:
        calls = ", ".join(f"{one.title}{f' x {one.times}' if one.times > 1 else ''}" for one in self.calls)
        peaks = ", ".join(f"{format_bytes(peak.total)} on {device}" for device, peak in self.peaks().items())
        return f"<Generation of {calls or 'no calls'}; at most {peaks or 'nothing'}>"

    @property
    def visits(self) -> Sequence[Visit]:
        """The calls as the pipeline makes them, where that is known, and its end."""
        return self._visits

    def main_of(self, component: str) -> Device:
        """The main device of a component."""
        return self._rigs[component].devices[0]

    def on(self, rigs: Mapping[str, Rig], rig: Rig) -> Generation:
        """This plan on the same devices, of which something else is free."""
        other = Generation(self.calls, rigs, rig, self._others, self._visits)
        other.tiles, other.own, other.skips = self.tiles, self.own, self.skips
        other.turns, other.apart, other.picture, other.is_told = self.turns, self.apart, self.picture, self.is_told
        return other

    def beside(self, others: Sequence[Piece]) -> Generation:
        """This plan where other pieces stay on devices that belong to none of its programs."""
        other = self.on(self._rigs, self.rig)
        other._others = tuple(others)
        return other

    def after(self, beyond: Callable[[frozenset[Hashable]], Counter[Device]]) -> Generation:
        """This plan where a call of another kind has left more, less what is in attributes that are changed."""
        other = self.on(self._rigs, self.rig)
        before = beyond(frozenset())
        other._visits = []
        for one in self._visits:
            now = beyond(one.changed)
            other._visits.append(one.beside(now, before | now))
            before = now
        return other

    @cached_property
    def _pieces(self) -> tuple[Piece, ...]:
        """Every piece once; one that stays for one program stays for all."""
        found: dict[Hashable, Piece] = {}
        for piece in (*self._others, *(piece for call in self.calls for piece in call.pieces)):
            if piece.key not in found or piece.lasts is Lifetime.PROGRAM:
                found[piece.key] = piece
        return tuple(found.values())

    @cached_property
    def resident(self) -> Mapping[Device, Counter[str]]:
        """The bytes of weights that stay on each device, or rest in host memory, by component."""
        found: defaultdict[Device, Counter[str]] = defaultdict(Counter)
        for piece in self._pieces:
            if piece.lasts is Lifetime.PROGRAM:
                found[piece.device][piece.component] += piece.nbytes
        for component, nbytes in _resting(self._pieces):
            found[self.rig.host][component] += nbytes
        return found

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """What is on devices beside weights that stay, before and at each visit, in their order."""
        stays = frozenset(piece.key for piece in self._pieces if piece.lasts is Lifetime.PROGRAM)
        return tuple(Walk(stays).moments(self._visits, self.devices))

    @cached_property
    def _peaks(self) -> Mapping[tuple[PlannedCall, Device], Peak]:
        """The fullest moment of each device while each call is made, or comes next."""
        weights = {device: sum(held.values()) for device, held in self.resident.items()}
        found: dict[tuple[PlannedCall, Device], Peak] = {}
        for one in self.moments:
            peak = Peak(one.call, weights.get(one.device, 0), one.staged, one.values)
            known = found.get((one.call, one.device))
            if known is None or known.total < peak.total:
                found[one.call, one.device] = peak
        return found

    def peak_of(self, call: PlannedCall, device: Device) -> Peak:
        """What is on a device at the fullest moment of a call, or between it and its neighbours."""
        return self._peaks.get((call, device)) or Peak(call, sum(self.resident.get(device, Counter()).values()), 0, 0)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that something of the plan is on, in the order of the rig, the host last."""
        used = {*self.resident, *(piece.device for call in self.calls for piece in call.pieces)}
        used |= {device for call in self.calls for device in call.values}
        named = [device for device in self.rig if device in used and device != self.rig.host]
        return (*named, *([self.rig.host] if self.rig.host in used else []))

    def peaks(self) -> dict[Device, Peak]:
        """The fullest moment of each device over the whole call."""
        found = {}
        for device in self.devices:
            moments = [self.peak_of(call, device) for call in self.calls]
            if moments and any(peak.total for peak in moments):
                found[device] = max(moments, key=lambda peak: peak.total)
        return found

    def refusal(self) -> DoesNotFitError | None:
        """The refusal of the first call that finds less on a device than it needs; None where all fit."""
        for call in self.calls:
            rig = self._rigs[call.component]
            for device in dict.fromkeys((*call.program.devices, *self.devices)):
                memory = rig[device] if device in rig.memory else self.rig[device]
                peak = self.peak_of(call, device)
                is_asked = device != self.rig.host or device in call.program.devices or _rests(self, device)
                if peak.total > memory.free and is_asked:
                    over = {device: peak.total - memory.free}
                    problem, ways = self._refusal(call, device, peak, memory)
                    return DoesNotFitError(problem, over, ways, component=call.component)
        return self._refusal_of_shared()

    def _refusal_of_shared(self) -> DoesNotFitError | None:
        """The refusal where devices that share the host's memory hold more than that has together."""
        shared = [device for device in self.rig if self.rig[device].integrated]
        host = self.rig.host
        for call in self.calls if shared else ():
            peaks = {device: self.peak_of(call, device).total for device in (*shared, host)}
            free = self.rig[host].free
            if sum(peaks.values()) > free:
                each = ", ".join(f"{format_bytes(nbytes)} on {device}" for device, nbytes in peaks.items())
                return DoesNotFitError(
                    f"{call.title} needs {format_bytes(sum(peaks.values()))} while {call.phase} of the memory that "
                    f"{' and '.join(map(str, peaks))} share, of which {format_bytes(free)} are free: {each}",
                    {max(peaks, key=lambda one: peaks[one]): sum(peaks.values()) - free},
                )
        return None

    def _staged(self, call: PlannedCall, device: Device) -> Counter[str]:
        """The bytes of weights that the programs of a call's phase keep on a device, by component."""
        found: dict[Hashable, Piece] = {}
        for one in (one for one in self.calls if one.phase == call.phase):
            for piece in one.pieces:
                if piece.lasts is Lifetime.PHASE and piece.device == device:
                    found.setdefault(piece.key, piece)
        return sum((Counter({piece.component: piece.nbytes}) for piece in found.values()), Counter[str]())

    def _refusal(self, call: PlannedCall, device: Device, peak: Peak, memory: Memory) -> tuple[str, str]:
        here = self.resident.get(device, Counter()) + self._staged(call, device)
        holders = ", ".join(f"{format_bytes(nbytes)} of {name}" for name, nbytes in here.most_common())
        largest = next((name for name, _ in here.most_common(1)), call.component)
        ways = [f"keep the weights of {largest} elsewhere (--params-backend {largest}=cpu)"]
        ways += [f"give {largest} other devices (--backend)"]
        ways += ["ask for a smaller size or batch" if peak.values > peak.resident + peak.staged else "a smaller dtype"]
        return (
            f"{call.title} needs {format_bytes(peak.total)} on {device} while {call.phase}, which has "
            f"{format_bytes(memory.free)} free of {format_bytes(memory.total)}"
            f"{f' ({memory.why})' if memory.why else ''}: weights {holders or 'none'}, and "
            f"{format_bytes(peak.values)} of values{_fullest(call.program, device)}"
        ), f"{ways[0]}, {ways[1]}, or {ways[2]}"


def _fullest(program: Program, device: Device) -> str:
    """The operation at which a program whose weights rest elsewhere has most on a device."""
    fullest = usage_of(program).get(device) if program.residency else None
    return f" (%{fullest.node.name})" if fullest is not None and fullest.node is not None else ""


def _resting(pieces: Iterable[Piece]) -> Iterator[tuple[str, int]]:
    """The bytes of each weight in host memory, which holds it once for all devices, with its component."""
    found: Counter[Hashable] = Counter()
    last: dict[Hashable, Piece] = {}
    for piece in (one for one in pieces if one.rests):
        found[piece.of] += piece.rests
        last[piece.of] = piece
    for of, piece in last.items():
        yield piece.component, min(found[of], piece.whole)


def _rests(generation: Generation, host: Device) -> bool:
    """Whether weights rest in host memory because of the plan."""
    return any(piece.rests for piece in generation._pieces)

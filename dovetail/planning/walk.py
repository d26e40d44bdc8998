"""What each device holds through a call of a pipeline, moment by moment: weights that stay, come and leave, and values.

One walk over the calls of components in the order in which the pipeline makes them. What a program keeps for its phase
is there from its first call on, and leaves with the first call of another phase; so do the slots of a component. What
the pipeline itself holds is different at each moment, and more for a while between two calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..compiler.devices.device import Device
from ..compiler.ir.schedule import Lifetime
from ..compiler.states.parts import slot_bytes
from ..passes.simulate.memory import simulate
from .usage import usage_of

if TYPE_CHECKING:
    from .generation import PlannedCall

Bytes = Mapping[Device, int]
"""Bytes by device."""


@dataclass(frozen=True)
class Visit:
    """A call of a program within a call of a pipeline, or the end (None): what the pipeline holds at it, and before.

    ``since`` is the most that it held since the visit before. ``changed`` are the attributes of the pipeline and its
    schedulers that are not as before the call any more.
    """

    call: PlannedCall | None
    held: Bytes
    since: Bytes
    changed: frozenset[Hashable] = frozenset()

    def beside(self, now: Counter[Device], before: Counter[Device]) -> Visit:
        """The same where so much more is there now, and before."""
        return replace(self, held=now + Counter(self.held), since=before + Counter(self.since))


@dataclass(frozen=True)
class Moment:
    """What is on a device at a moment: weights kept for the phase, and all else but what stays.

    ``call`` is the one that is made, or that comes next; at the end the one before. ``visit`` is the number of
    the visit, and ``is_before`` says that it is the time before it.
    """

    call: PlannedCall
    device: Device
    staged: int
    values: int
    visit: int = 0
    is_before: bool = False


@dataclass
class _There:
    """What a component has on devices for a while: weights by piece, and the slots of the program that ran last."""

    kept: dict[Hashable, tuple[Device, int]] = field(default_factory=dict)
    last: PlannedCall | None = None
    slots: Bytes = field(default_factory=dict)

    def enter(self, call: PlannedCall) -> None:
        """Another program of the component lets the slots go, and of what it reads what it does not keep itself."""
        if self.last is call:
            return
        keeps = {piece.key for piece in call.pieces if piece.lasts is Lifetime.PHASE}
        reads = {_weight_of(piece.key) for piece in call.pieces}
        self.kept = {key: one for key, one in self.kept.items() if key in keeps or _weight_of(key) not in reads}
        self.last, self.slots = call, {device: sum(sizes) for device, sizes in slot_bytes(call.program).items()}

    def on(self, device: Device) -> int:
        """The bytes of weights that are kept on a device."""
        return sum(nbytes for there, nbytes in self.kept.values() if there == device)


class Walk:
    """Goes through the visits, and yields what is on devices.

    Args:
        stays: the pieces that stay on devices all the time.
    """

    def __init__(self, stays: frozenset[Hashable]) -> None:
        self._stays = stays
        self._there: defaultdict[tuple[str, str], _There] = defaultdict(_There)
        self._known: dict[tuple[int, frozenset[Hashable]], Mapping[Device, tuple[int, int]]] = {}

    def moments(self, visits: Sequence[Visit], devices: Sequence[Device]) -> Iterator[Moment]:
        """The fullest moment of each device at each visit, and before it."""
        before: PlannedCall | None = None
        for number, visit in enumerate(visits):
            near = visit.call or before
            if near is None:
                continue
            for device in devices:
                values = self._slots_on(device) + visit.since.get(device, 0)
                yield Moment(near, device, self._kept_on(device), values, number, is_before=True)
            if visit.call is not None:
                for one in self._call(visit.call, visit.held, devices):
                    yield replace(one, visit=number)
            before = visit.call

    def _call(self, call: PlannedCall, held: Bytes, devices: Sequence[Device]) -> Iterator[Moment]:
        for key in [one for one in self._there if one[0] != call.phase]:
            del self._there[key]
        own = self._there[call.phase, call.component]
        own.enter(call)
        fullest = self._fullest(call, own)
        own.kept |= {
            piece.key: (piece.device, piece.nbytes)
            for piece in call.pieces
            if piece.lasts is Lifetime.PHASE and piece.key not in self._stays
        }
        for device in devices:
            beside = self._slots_on(device) - own.slots.get(device, 0) + held.get(device, 0)
            staged, values = fullest.get(device, (own.on(device), 0))
            yield Moment(call, device, self._kept_on(device) - own.on(device) + staged, values + beside)

    def _fullest(self, call: PlannedCall, there: _There) -> Mapping[Device, tuple[int, int]]:
        """What a component has on each device at the fullest moment of a call: weights for the phase, and values.

        Found once for the same weights there.
        """
        key = id(call), frozenset(there.kept)
        if key not in self._known:
            self._known[key] = dict(self._simulated(call, there))
        return self._known[key]

    def _simulated(self, call: PlannedCall, there: _There) -> Iterator[tuple[Device, tuple[int, int]]]:
        own = {piece.key for piece in call.pieces}
        beside, stays = Counter[Device](), Counter[Device]()
        names: defaultdict[Device, list[str]] = defaultdict(list)
        for key, (device, nbytes) in there.kept.items():
            beside[device] += 0 if key in own else nbytes
        lasting = {(one.name, one.device): one for one in call.pieces if one.lasts is not Lifetime.STAGE}.values()
        for piece in lasting:
            if piece.key in self._stays or piece.key in there.kept:
                names[piece.device].append(piece.name)
            stays[piece.device] += piece.nbytes if piece.key in self._stays else 0
        is_first = all(one.lasts is Lifetime.PROGRAM and one.key in self._stays for one in lasting)  # loads them anyway
        usages = usage_of(call.program) if is_first else simulate(call.program, names)
        for device, usage in usages.items():
            yield device, (usage.weights - stays[device] + beside[device], usage.total - usage.weights)

    def _kept_on(self, device: Device) -> int:
        return sum(one.on(device) for one in self._there.values())

    def _slots_on(self, device: Device) -> int:
        return sum(one.slots.get(device, 0) for one in self._there.values())


def visits_of(calls: Sequence[PlannedCall]) -> list[Visit]:
    """Two visits of each call, in order, where nothing more is known."""
    return [Visit(call, call.held, call.held) for call in calls for _ in range(min(2, call.times))]


def _weight_of(key: Hashable) -> Hashable:
    """The weight, of a piece that is some rows of it."""
    return key[0] if isinstance(key, tuple) else key

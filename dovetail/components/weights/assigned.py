"""What the weights of a component are assigned, which all of its programs share, and what that takes of each device."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from ...compiler.devices.device import Device, canonical_name
from ...compiler.ir.part import Part
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Lifetime, Load
from ...compiler.ir.slices import Bounds
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from ...compiler.states.parts import held_on, pieces, slot_bytes
from ...lora.adapters import plain_name
from ...passes.placement.assignment import Assigned
from ...runtime.store.stored_weight import StoredWeight
from .module_view import ModuleView, locked

_Piece = tuple[StoredWeight, Part | None, str]
"""A weight, which part of it, and the name of a device."""


class Place(NamedTuple):
    """What is decided of a weight: its device, or the rows that each device gets, and where it rests."""

    home: Device | None
    bounds: Bounds
    residency: Residency


class AssignedWeights:
    """The assignment of a component, weight by weight: what one program decided, those made later keep.

    That of a draft changes no weight: what it decides is kept beside them until it is committed.
    """

    def __init__(self, view: ModuleView) -> None:
        self._view = view
        self.store = view.store
        self._drafted: dict[StoredWeight, Place] | None = None
        self._counts_parts = True
        self._planned: dict[_Piece, int] = {}
        self._supposed: dict[_Piece, int] = {}  # until a program says how its weights come
        self._slots: Counter[str] = Counter()
        self._slices: dict[_Piece, int] = {}
        self._read: set[_Piece] = set()  # of these, what modules read themselves
        self.is_planned = False
        """Whether what programs of a plan read is noted, so that nothing else of the component is reserved."""

    def draft(self) -> AssignedWeights:
        """A copy whose decisions change no weight."""
        copy = AssignedWeights(self._view)
        copy._drafted = dict(self._drafted or {})
        copy._counts_parts = self._counts_parts
        copy._take_counts(self)
        return copy

    def draft_anew(self) -> AssignedWeights:
        """One in which no weight has a device yet, nor anything on one; each rests where it does."""
        fresh = AssignedWeights(self._view)
        fresh._drafted = {one: Place(None, (), self.place(one).residency) for one in self._view.weights()}
        fresh._counts_parts = False
        return fresh

    def _take_counts(self, other: AssignedWeights) -> None:
        self._planned, self._supposed = dict(other._planned), dict(other._supposed)
        self._slices, self._slots = dict(other._slices), Counter(other._slots)
        self._read = set(other._read)
        self.is_planned = other.is_planned

    def place(self, one: StoredWeight) -> Place:
        """What is decided of a weight."""
        known = self._drafted.get(one) if self._drafted is not None else None
        return known or Place(one.home, one.bounds, one.residency)

    def _put(self, one: StoredWeight, place: Place) -> None:
        if self._drafted is not None:
            self._drafted[one] = place
        else:
            one.home, one.bounds, one.residency = place

    def rest(self, residency: Mapping[StoredWeight, Residency]) -> None:
        """Has weights rest elsewhere."""
        for one, rests in residency.items():
            self._put(one, self.place(one)._replace(residency=rests))

    @locked
    def commit(self) -> None:
        """Has the weights have what this draft of them decided; it is no draft any more."""
        drafted, self._drafted, self._counts_parts = self._drafted or {}, None, True
        for one, place in drafted.items():
            self._put(one, place)

    @locked
    def snapshot(self) -> AssignedWeights:
        """A draft of what is decided of all weights now, which makes it so again when it is committed."""
        copy = self.draft()
        copy._drafted = {one: self.place(one) for one in self._view.weights()}
        return copy

    @locked
    def bytes_on(self, apart_from: Iterable[StoredWeight] = ()) -> Counter[str]:
        """Bytes that were brought to each device, or are brought there for a reading, by the device's name.

        Weights ``apart_from`` which they are counted do not count.
        """
        left_out = set(apart_from)
        return self.resident_on(left_out) + self.staged_on(left_out) + self.slots_on

    @locked
    def resident_on(self, apart_from: Iterable[StoredWeight] = ()) -> Counter[str]:
        """Bytes that were brought to each device and stay there."""
        placed: Counter[str] = Counter()
        staged, left_out = self.planned, set(apart_from)
        for one in self._view.weights():
            if one in left_out:
                continue
            home = self.place(one).home
            if home and one not in staged:
                placed[home.name] += one.nbytes
            for (which, _, device), part in one.parts.items() if self._counts_parts else ():
                name = canonical_name(str(device))
                is_counted = (home and home.name == name) or (one, which, name) in self._slices
                placed[name] += 0 if is_counted else part.nbytes
        for (one, _, name), nbytes in self._slices.items():
            placed[name] += 0 if one in left_out else nbytes
        return placed

    @locked
    def staged_on(self, apart_from: Iterable[StoredWeight] = ()) -> Counter[str]:
        """Bytes that are brought to each device for a phase, without the slots for what comes and goes."""
        placed: Counter[str] = Counter()
        left_out = set(apart_from)
        for (one, _, name), nbytes in {**self._supposed, **self._planned}.items():
            placed[name] += 0 if one in left_out else nbytes
        return placed

    @property
    def planned(self) -> set[StoredWeight]:
        """The weights that some program has brought for its readings, or that are supposed to be."""
        return {one for one, _, _ in (*self._supposed, *self._planned)}

    @property
    def slots_on(self) -> Counter[str]:
        """Bytes of the slots on each device; the programs of a component take turns with them."""
        return Counter(self._slots)

    @locked
    def read_by(self, module: nn.Module, program: Program) -> list[StoredWeight]:
        """The weights of the component that a program reads."""
        read = program.weights_read()
        return [one for weight, one in self.held(module, program) if weight.name in read]

    @locked
    def constrain(self, module: nn.Module, program: Program) -> None:
        """Gives a fresh program of a part of the component what is decided of its weights; a policy decides the rest.

        A weight that has no data has the type in which its file has it. Where devices have parts of weights, those that
        all of them have whole beside are not bound to their home: the parts are not either, and go with them.
        """
        program.home, program.bounds, program.residency = {}, {}, {}
        is_parted = any(which for _, which, _ in self._slices)
        copied = {one for one, which, _ in self._slices if not which} if is_parted else set()
        for weight, one in self.held(module, program):
            home, bounds, residency = self.place(one)
            if home is not None and home in program.devices and one not in copied:
                program.home[weight.name] = home
            if bounds:
                program.bounds[weight.name] = bounds
            if residency is not Residency.DEVICE:
                program.residency[weight.name] = residency
            if one.origin and (quant := one.origin.quant_of(weight)):
                program.weights[weight.name] = replace(weight, quant=quant)

    @locked
    def note(self, module: nn.Module, program: Program, *, planning: bool = False) -> None:
        """Has the programs to come keep what was decided for one, and counts what is brought for its readings.

        A weight that stays on its device is noted when it is brought there, or now while ``planning``.
        """
        held = {weight.name: one for weight, one in self.held(module, program)}
        self.is_planned |= planning
        kept = _loaded(program, Lifetime.PHASE)
        copied, homes = _copied(program), pieces(program)
        for weight, devices in held_on(program):
            home = homes[weight.name][1]
            one = held.get(weight.whole)
            if one is None:
                continue
            staged = program.stages(weight, home)
            for device in kept.get(weight.name, ()) or [home] if staged else ():
                key = one, weight.which, device.name
                self._planned[key] = max(self._planned.get(key, 0), weight.nbytes if weight.name in kept else 0)
            place = self.place(one)
            is_new = (staged or planning) and not weight.which and place.home not in program.devices
            bounds = program.bounds.get(weight.whole, place.bounds)
            self._put(one, place._replace(home=home if is_new else place.home, bounds=bounds))
            for device in devices if planning and weight.which and not staged else ():
                self._slices[one, weight.which, device.name] = weight.nbytes
            for device in copied.get(weight.name, ()) if planning else ():
                self._slices[one, None, device.name] = weight.nbytes
        self._slots |= Counter({device.name: sum(sizes) for device, sizes in slot_bytes(program).items()})

    @locked
    def note_copies(self, module: nn.Module, program: Program) -> None:
        """Counts the weights of a program that other devices have beside those on their own."""
        held = {weight.name: one for weight, one in self.held(module, program)}
        for weight, devices in held_on(program):
            one = held.get(weight.whole)
            for device in devices:
                if one is not None and (weight.which or self.place(one).home != device):
                    self._slices[one, weight.which, device.name] = weight.nbytes

    @locked
    def assign(self, assignment: Mapping[StoredWeight, Assigned], *, staged: bool = True) -> None:
        """Settles what weights get, and brings none there; one that is sliced has no home of its own.

        One that comes for readings is supposed to stay for the phase until a program is made that reads it, unless
        others are to count what is ``staged``.
        """
        self._planned = {key: value for key, value in self._planned.items() if key[0] not in assignment}
        self._supposed = {key: value for key, value in self._supposed.items() if key[0] not in assignment}
        self._slices = {key: value for key, value in self._slices.items() if key[0] not in assignment}
        self._read = {key for key in self._read if key[0] not in assignment}
        for one, given in assignment.items():
            self._put(one, Place(None if given.bounds else given.device, given.bounds, given.residency))
            if given.residency.stages_on(given.device):
                self._supposed[one, None, given.device.name] = one.nbytes if staged else 0

    @locked
    def count_staged(self, weights: Iterable[StoredWeight]) -> None:
        """Counts weights that come and go where they are brought, for a module that runs as it is reads them there."""
        for one in weights:
            home, _, residency = self.place(one)
            if home is not None and residency.stages_on(home):
                self._planned[one, None, home.name] = one.nbytes

    @locked
    def count_copy(self, one: StoredWeight, device: Device) -> None:
        """Counts a whole weight that a module reads on a device beside what is there of it; it stays there."""
        self._slices[one, None, device.name] = one.nbytes
        self._read.add((one, None, device.name))

    @locked
    def copies(self) -> list[tuple[StoredWeight, str]]:
        """What `count_copy` counted, and the names of the devices."""
        return [(one, name) for one, _, name in self._read]

    def forget_slots(self) -> None:
        """Forgets the slots of programs that are to be made anew."""
        self._slots = Counter()

    def forget(self) -> None:
        """Forgets what is brought to devices for readings, and what is planned."""
        self._planned, self._supposed, self._slices, self._slots, self.is_planned = {}, {}, {}, Counter(), False
        self._read = set()

    def held(self, module: nn.Module, program: Program) -> Iterator[tuple[Weight, StoredWeight]]:
        """The weights of a program that the component holds."""
        known = self._view.by_name(module)
        for weight in list(program.weights.values()):
            name = next((name for name in map(plain_name, weight.names) if name in known), None)
            if name is not None:
                yield weight, known[name]


def _loaded(program: Program, lifetime: Lifetime) -> dict[str, list[Device]]:
    """The devices on which a program has a weight for a phase, or for good, by the weight's name."""
    found: dict[str, list[Device]] = defaultdict(list)
    for one in program.schedule or ():
        if isinstance(one, Load) and one.lifetime is lifetime:
            for name in one.weights:
                found[name] += [] if one.device in found[name] else [one.device]
    return found


def _copied(program: Program) -> dict[str, list[Device]]:
    """The devices on which whole weights stay beside their homes, of a program that devices compute together."""
    if program.is_sliced or not program.is_grouped:
        return {}
    stays = _loaded(program, Lifetime.PROGRAM)
    return {name: [one for one in stays[name] if one != home] for name, home in program.home.items() if name in stays}

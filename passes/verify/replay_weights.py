"""What the replay of a schedule knows of weights: which are on a device, which are on their way, and in which slots.

A weight of the program's lifetime is there from its load on. One that comes for a call may be read in the run that
awaits its load, and in no other. A slot holds the weights of one load, from its start to its release, or, of a phase's,
in every call from its first one on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...compiler.devices.device import Device
from ...compiler.ir.schedule import Lifetime, Load
from ...compiler.states.parts import pieces
from .snapshot import Snapshot

Broken = Iterator[tuple[str, str]]
"""The names of rules that an instruction breaks, each with what is wrong."""


class LoadedWeights:
    """The weights on all devices at one moment of a replay."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.resident: dict[tuple[str, int], bool] = {}  # whether it was read
        self.coming: dict[Load, bool] = {}  # whether it was awaited
        self.unread: dict[Load, set[str]] = {}
        self.slots: dict[tuple[int, int], Load] = {}
        self.refilled: set[tuple[int, int]] = set()  # slots for what comes and goes
        self.here: dict[tuple[str, int], Load] = {}  # what the run that is going on has awaited
        nodes = {weight.name: node for node, weight in snapshot.weights.items()}
        self.held = pieces(snapshot.program)
        self.memory = {name: snapshot.storages[nodes[weight.whole]] for name, (weight, _) in self.held.items()}
        self.seen: set[int] = set()  # storages that are seen outside the run that makes or reads them
        self.numbers: set[int] = set()

    def load(self, load: Load) -> Broken:
        """A load is started."""
        place = self.snapshot.place(load.device)
        if load.number in self.numbers:
            yield "load", f"another load has this number, or this one was started before: {load}"
        self.numbers.add(load.number)
        if len(set(load.weights)) != len(load.weights):
            yield "load", f"a weight comes twice: {load}"
        if load.lifetime is Lifetime.PROGRAM:
            for name in load.weights:
                if (name, place) in self.resident:
                    yield "load", f"weight {name} is on {load.device} already"
                self.resident[name, place] = False
        self.coming[load] = load.lifetime is Lifetime.PROGRAM
        self.unread[load] = set(load.weights)
        yield from self._take_slot(load, place)

    def _take_slot(self, load: Load, place: int) -> Broken:
        if (load.lifetime is Lifetime.PROGRAM) != (load.slot < 0):
            yield "slot", f"weights of a stage or a phase land in a slot, and no others: {load}"
        if load.lifetime is Lifetime.PHASE and not self.snapshot.program.keeps_staged:
            yield "rest", f"nothing ends the phase for which this load stays: {load}"
        slot = place, load.slot
        if load.slot >= 0 and (slot in self.slots or (load.lifetime is Lifetime.PHASE and slot in self.refilled)):
            yield "slot", f"slot {load.slot} of {load.device} is taken"
        if load.slot >= 0:
            self.slots[slot] = load
        if load.lifetime is Lifetime.STAGE:
            self.refilled.add(slot)

    def wait(self, load: Load, device: Device) -> Broken:
        """A run awaits a load."""
        if self.coming.get(load, True) or device != load.device:
            yield "wait", f"this load is not on its way: {load}"
        self.coming[load] = True
        place = self.snapshot.place(load.device)
        self.here.update(((name, place), load) for name in load.weights)

    def use(self, name: str, place: int) -> Broken:
        """A node reads a weight."""
        if (name, place) in self.here:
            self.unread[self.here[name, place]].discard(name)
        elif (name, place) in self.resident:
            self.resident[name, place] = True
        else:
            yield "load", f"weight {name} is needed on {self.snapshot.name(place)} and not there"

    def release(self, load: Load) -> Broken:
        """The weights of a load leave."""
        if not self.coming.pop(load, False) or load.lifetime is not Lifetime.STAGE:
            yield "load", f"this load is not there, or still on its way, or stays: {load}"
        for name in sorted(self.unread.pop(load, ())):
            yield "load", f"weight {name} was loaded to {load.device}, and nothing has read it there"
        self.slots.pop((self.snapshot.place(load.device), load.slot), None)
        self.here = {key: other for key, other in self.here.items() if other != load}

    def begin_run(self) -> None:
        """What another run has awaited is not to be read in the next one."""
        self.here = {}

    def end(self) -> Broken:
        """What is wrong when a call is over."""
        for load in self.slots.values():
            if load.lifetime is not Lifetime.PHASE:
                yield "slot", f"nobody releases this load: {load}"
        for place, slot in self.refilled:
            if slot and (place, slot - 1) not in self.refilled:
                yield "slot", f"slot {slot} of {self.snapshot.name(place)} is refilled, and the one before it is not"
        for load, awaited in self.coming.items():
            if not awaited:
                yield "wait", f"nobody awaits this load: {load}"
            for name in sorted(self.unread[load]) if load.lifetime is Lifetime.PHASE else ():
                yield "load", f"nobody reads weight {name} on {load.device}"
        for (name, place), read in self.resident.items():
            if not read:
                yield "load", f"nobody reads weight {name} on {self.snapshot.name(place)}"
        yield from self._at_rest()

    def _at_rest(self) -> Broken:
        """What is loaded for good and should not be."""
        program = self.snapshot.program
        for weight, _ in self.held.values() if program.residency else ():
            for place, device in enumerate(program.devices):
                stays = (weight.name, place) in self.resident
                if stays and program.stages(weight, device) and self.seen.isdisjoint(self.memory[weight.name]):
                    rests = program.residency[weight.whole].value
                    yield "rest", f"weight {weight.name} rests on the {rests} and is never released on {device}"

"""What a component takes where a group of devices computes it together: the states of its programs, solved for once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

from ...compiler.devices.device import Device
from ...compiler.devices.rig import Rig
from ...compiler.devices.speeds import speeds_of
from ...compiler.ir.program import Program
from ..batches.division import NotDivisible
from ..states.fitting import quickest, seconds_of
from ..states.forms import narrowed
from ..states.modes import picture_count
from ..states.solution import NotPossible
from .part_work import PartWork, part_work
from .row_work import row_work


@dataclass(frozen=True)
class Work:
    """What a group of devices takes: seconds of a picture, bytes of weights and of values of each device at most.

    ``whole`` are the bytes of all weights that are read.
    """

    seconds: float
    weights: tuple[int, ...]
    alive: tuple[int, ...]
    whole: int


_KNOWN: MutableMapping[Program, dict[Hashable, Work | NotPossible]] = WeakKeyDictionary()
"""What calls of a trace take, by the devices and all that the states depend on besides; numbers and no graphs."""


_PARTS: MutableMapping[Program, dict[Hashable, PartWork | NotDivisible]] = WeakKeyDictionary()
"""What the parts of calls of a trace take, by how many they are; numbers and no graphs."""


@dataclass(frozen=True)
class GroupWork:
    """The work of a component under a mode, on any group of the devices of a rig.

    Args:
        calls: its programs as they were traced, each with how often a picture calls it.
        prepared: makes of one, which stays as it is, what states are solved for.
        rig: has all devices.
        mode: one in which devices compute together, or ``row``.
        shares: weigh the devices of a group in place of their speed; as many as these are, or none.
        chunks: in so many ``prepared`` has wide parts computed.
        is_rough: whether the best recipe is enough, of which nothing better is solved for.
        has_short_terms: whether terms of float32 sums cross in bfloat16.
    """

    calls: Sequence[tuple[Program, float]]
    prepared: Callable[[Program], Program]
    rig: Rig
    mode: str
    shares: tuple[float, ...] = ()
    chunks: int = 1
    is_rough: bool = False
    has_short_terms: bool = False
    _prepared: dict[int, Program] = field(default_factory=dict, repr=False, compare=False)

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        """What the component takes on some devices, or why they cannot compute it together under the mode.

        Devices of the same speeds and links have equal states, so that these are solved for once. ``room`` are the
        bytes that each device has for weights and values, where the states are to keep to them.
        """
        if self.shares and len(self.shares) != len(devices):
            return NotPossible(self.mode, f"it is to have {len(self.shares)} devices, as many as shares were given")
        each = [(self._of(traced, devices, room), times) for traced, times in self.calls]
        refused = [work for work, _ in each if isinstance(work, NotPossible)]
        if refused or not each:
            return refused[0] if refused else NotPossible(self.mode, "no call of it was traced")
        works = [(work, times) for work, times in each if isinstance(work, Work)]
        return Work(
            sum(times * work.seconds for work, times in works),
            tuple(map(max, zip(*(work.weights for work, _ in works), strict=True))),
            tuple(map(max, zip(*(work.alive for work, _ in works), strict=True))),
            max(work.whole for work, _ in works),
        )

    def _of(self, traced: Program, devices: Sequence[Device], room: tuple[int, ...]) -> Work | NotPossible:
        """What one call of a program takes."""
        known = _KNOWN.setdefault(traced, {})
        packed = tuple((name, weight.quant) for name, weight in traced.weights.items() if weight.quant)
        free = tuple(map(self.rig.free.get, devices)) if self.mode == "row" else ()  # rows are given by memory
        how = self.mode, self.shares, self.chunks, self.is_rough, self.has_short_terms
        key = how, self._alike(devices), packed, traced.adapters, free, room
        if key not in known:
            known[key] = self._solved(traced, devices, room)
        return known[key]

    def _alike(self, devices: Sequence[Device]) -> Hashable:
        """What is equal for groups that have equal states: the speeds, and where links are told apart these.

        Of several processes also which they are, and the networks that join them.
        """
        speeds = speeds_of(self.rig)
        each = tuple((speeds[device], tuple(speeds[device].flops.items())) for device in devices)
        processes = tuple(device.process for device in devices) if len({one.process for one in devices}) > 1 else ()
        if not speeds.ways and not speeds.roots and not processes:
            return each
        ways = tuple(speeds.way(one, other) for one in devices for other in devices if one != other)
        roots = [speeds.roots.get(device) for device in devices]
        networks = frozenset(speeds.networks.items()) if processes else frozenset()
        return each, ways, tuple(root and roots.index(root) for root in roots), processes, networks

    @cached_property
    def pictures(self) -> int:
        """How many pictures each of its calls is of, at least."""
        return min((picture_count(traced) for traced, _ in self.calls), default=1)

    def in_parts(self, count: int) -> list[tuple[PartWork, float]]:
        """What its calls take in so many parts, each with how often a picture makes it; nothing where one has none."""
        each = [(self._parts_of(traced, count), times) for traced, times in self.calls]
        found = [(work, times) for work, times in each if isinstance(work, PartWork)]
        return found if len(found) == len(each) else []

    def _parts_of(self, traced: Program, count: int) -> PartWork | NotDivisible:
        known = _PARTS.setdefault(traced, {})
        packed = tuple((name, weight.quant) for name, weight in traced.weights.items() if weight.quant)
        if (count, packed) not in known:
            known[count, packed] = part_work(self.prepared(traced), count)
        return known[count, packed]

    def forget(self) -> None:
        """Drops the programs that were prepared, of which a search keeps one for all modes."""
        self._prepared.clear()

    def _solved(self, traced: Program, devices: Sequence[Device], room: tuple[int, ...]) -> Work | NotPossible:
        if id(traced) not in self._prepared:
            self._prepared[id(traced)] = narrowed(self.prepared(traced))
        program = replace(self._prepared[id(traced)], rig=self.rig.only(devices))
        whole = sum(weight.nbytes for weight in program.weights.values())
        if self.mode == "row":
            rows = row_work(program, self.shares)
            return rows if isinstance(rows, NotPossible) else Work(rows.seconds, rows.weights, rows.alive, whole)
        found = quickest(
            program, self.mode, self.shares, solves=not self.is_rough, room=room, has_short_terms=self.has_short_terms
        )
        if isinstance(found, NotPossible):
            return found
        account = found.solution.account
        return Work(seconds_of(program, found), account.weights, account.alive, whole)

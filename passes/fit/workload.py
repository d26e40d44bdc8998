"""What a picture takes, in numbers: the components of a pipeline, their calls, and what a person said of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speed
from ...compiler.errors import DoesNotFitError
from ...compiler.spec.modes import QUICKEST, TOGETHER, shares_out_pictures
from ...compiler.spec.residency import ALIKE, Amounts, Residency
from .chain import Chain, Part
from .group_work import GroupWork

T = TypeVar("T")

TRIES = 6
"""So often a plan is searched that turns out to exceed a device."""

_MARGIN = 1.02

Over = Mapping[tuple[str, Device], int]
"""By how many bytes devices are exceeded, at the fullest moment of a component by name; "" where that is not known."""


@dataclass(frozen=True)
class Asked:
    """What a person said of a component; what is empty or None is free.

    ``devices`` main first; ``residency`` where its weights rest; ``shares`` of the devices; ``mode`` how it is split
    over several, as ``--split-mode`` says it, which it ``says_mode`` or not; ``may_be_alone`` whether it may be on one
    device all the same, for the mode was said of all components; ``tiled`` whether it decodes in tiles; ``amounts`` the
    bytes of weights that rest on its devices or in the host's memory where most rest elsewhere; ``chunks`` in how many
    wide parts are computed; ``micro_batches`` in how many parts pictures go through a layer split, None where that is
    to be found.
    """

    devices: tuple[Device, ...] = ()
    residency: Residency | None = None
    shares: tuple[float, ...] = ()
    tiled: bool | None = None
    amounts: Amounts = ALIKE
    chunks: int = 1
    mode: str = "layer"
    may_be_alone: bool = False
    says_mode: bool = False
    micro_batches: int | None = None

    @property
    def is_split(self) -> bool:
        """Whether it is spread over several devices as was said."""
        return bool(self.shares) or len(self.devices) > 1

    @property
    def places_itself(self) -> bool:
        """Whether its mode decides what each of the devices has that were named."""
        return self.mode != "layer" and len(self.devices) > 1 and not self.chooses_mode

    @property
    def chooses_mode(self) -> bool:
        """Whether the mode is to be found that is quickest, over devices that may be named."""
        return self.mode == QUICKEST

    @property
    def seeks_group(self) -> bool:
        """Whether devices are to be found that compute it together, or the mode in which those do that were named."""
        return self.chooses_mode or (self.mode in TOGETHER and not self.devices)

    @property
    def by_layers(self) -> Asked:
        """The same without a mode in which devices compute together; shares go with it where devices are open."""
        return replace(self, mode="layer", shares=self.shares if self.devices else (), may_be_alone=False)

    @property
    def opened(self) -> Asked:
        """The same with its devices, their shares, and where its weights rest left free."""
        return Asked(chunks=self.chunks, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class Load:
    """A component: its chain, how often that is called for a picture, and the same when it works in tiles.

    ``nbytes`` are all its weights, with those that no call reads; ``in_files`` says whether they may rest on disk.
    ``phase`` is the part of the pipeline's call in which it works; what is brought for a phase leaves with it.
    ``more`` bytes than the chain knows of are alive on devices, as lowering has found. ``work`` says what it takes
    where a group of devices computes it together, if a mode was asked for in which they do. So many calls of it are
    independent of each other as it has guidance ``parts``. What is streamed takes ``longer`` than on its devices alone,
    so many times, where it comes to others at the same time.
    """

    name: str
    role: str
    phase: str
    chain: Chain
    times: float = 1.0
    tiles: tuple[Chain, float] | None = None
    nbytes: int = 0
    asked: Asked = field(default_factory=Asked)
    in_files: bool = True
    more: Mapping[Device, int] = field(default_factory=dict, hash=False)
    parts: int = 1
    work: GroupWork | None = field(default=None, hash=False, compare=False)
    longer: float = 1.0

    @property
    def takes_turns(self) -> bool:
        """Whether devices, or groups of them, hold it whole, and its calls take turns."""
        return (
            shares_out_pictures(self.asked.mode) and self.parts > 1 and not self.asked.shares and self.work is not None
        )

    @property
    def unread(self) -> int:
        """The bytes of weights that no call reads; they lie with the rest."""
        return max(0, self.nbytes - self.chain.nbytes)

    def way(self, tiled: bool) -> tuple[Chain, float]:
        """The chain and the number of its calls, in tiles or not; the rest has the weights that no call reads."""
        chain, times = self.called(tiled)
        missing = max(0, max(self.nbytes, self.chain.nbytes) - chain.nbytes)
        return replace(chain, rest=replace(chain.rest, nbytes=chain.rest.nbytes + missing)), times

    def called(self, tiled: bool) -> tuple[Chain, float]:
        """The same with the weights alone that its calls read, which are those that a split by shares divides."""
        return self.tiles if tiled and self.tiles else (self.chain, self.times)

    def coarse(self, tiled: bool, most: int) -> tuple[Chain, tuple[int, ...]]:
        """The chain in at most so many parts, and how many blocks each has; made once."""
        key = tiled, most
        if key not in self._coarse:
            chain, _ = self.way(tiled)
            self._coarse[key] = chain.coarsened(most), tuple(len(group) for group in chain.groups(most))
        return self._coarse[key]

    def seconds(self, chain: Chain, speed: Speed) -> tuple[float, list[float]]:
        """The seconds of the rest and of each part of one of its chains; added up once."""
        key = id(chain), id(speed)
        if key not in self._seconds:
            found = chain.rest.seconds(speed), [part.seconds(speed) for part in chain.parts]
            self._seconds[key] = chain, speed, found  # which keeps both, so that their numbers are theirs alone
        return self._seconds[key][2]

    @cached_property
    def _coarse(self) -> dict[tuple[bool, int], tuple[Chain, tuple[int, ...]]]:
        return {}

    @cached_property
    def _seconds(self) -> dict[tuple[int, int], tuple[Chain, Speed, tuple[float, list[float]]]]:
        return {}

    def once(self, machine: object, key: Hashable, find: Callable[[], T]) -> T:
        """What is found of the component on a machine, for a key that says all that it depends on besides."""
        at = id(machine), key
        if at not in self._found:
            self._found[at] = machine, find()  # which keeps the machine, so that its number is its alone
        found: T = self._found[at][1]
        return found

    @cached_property
    def _found(self) -> dict[tuple[int, Hashable], tuple[object, Any]]:
        return {}

    @cached_property
    def by_layers(self) -> Load:
        """The same component without a mode in which devices compute it together."""
        return replace(self, asked=self.asked.by_layers)

    def under(self, mode: str, shares: tuple[float, ...] = ()) -> Load:
        """The same component as if that mode had been asked for, with shares if there are any; made once."""
        key = mode, shares or self.asked.shares
        if key not in self._under:
            asked = replace(self.asked, mode=mode, shares=key[1])
            work = self.work and replace(self.work, mode=mode, shares=key[1])
            self._under[key] = replace(self, asked=asked, work=work)
        return self._under[key]

    @cached_property
    def _under(self) -> dict[tuple[str, tuple[float, ...]], Load]:
        return {}

    def ways(self) -> Sequence[bool]:
        """In tiles, or not: what is possible, and was asked for."""
        possible = (False, True) if self.tiles else (False,)
        return [tiled for tiled in possible if self.asked.tiled in (None, tiled) or not self.tiles]


@dataclass(frozen=True)
class Budgets:
    """The bytes that may be used of each device and of the host.

    ``why`` says in words what keeps the rest of a device, and ``typed`` is what a person wrote of all budgets.
    ``shared`` are devices whose memory is that of the host: they and the host may use the host's bytes together.
    """

    devices: Mapping[Device, int]
    host: Device
    why: Mapping[Device, str] = field(default_factory=dict)
    typed: str = ""
    shared: frozenset[Device] = frozenset()

    @property
    def together(self) -> frozenset[Device]:
        """The devices that use one memory: the host, and those that share its memory; none if there are no such."""
        return self.shared | {self.host} if self.shared else frozenset()

    def of(self, device: Device) -> int:
        """The bytes for weights and values on a device."""
        return self.devices.get(device, 0)

    def rooms(self, devices: Sequence[Device]) -> tuple[int, ...]:
        """The bytes of each of some devices."""
        return tuple(map(self.of, devices))

    def less(self, nbytes: Mapping[Device, int]) -> Budgets:
        """The budgets without some bytes of devices."""
        if not nbytes:
            return self
        return replace(self, devices={one: max(0, n - nbytes.get(one, 0)) for one, n in self.devices.items()})


def excess_of(error: DoesNotFitError) -> Over:
    """By how much what was refused exceeds devices."""
    return {(error.component, device): nbytes for device, nbytes in error.over.items()}


def taken_off(over: Over, tries: int, before: Collection[tuple[str, Device]] = ()) -> dict[tuple[str, Device], int]:
    """The bytes to take for more than was foreseen, where a plan was found to exceed devices, after so many tries.

    A little more than that at first; from the third on eight times as much each time, so that few tries find an end.
    Where more of a component was foreseen ``before`` and did not mend it, all have less of the device: its fullest
    moment may be that component's though nothing of it lies there.
    """
    times = _MARGIN * 8 ** max(0, tries - 2)
    return {("" if one in before else one[0], one[1]): int(times * nbytes) for one, nbytes in over.items()}


def foreseeing(loads: Sequence[Load], budgets: Budgets, over: Over) -> tuple[list[Load], Budgets]:
    """The components with so much more alive on devices; what is of no one of them is taken off the budgets."""
    of_each: dict[str, dict[Device, int]] = {load.name: dict(load.more) for load in loads}
    of_all: dict[Device, int] = {}
    for (name, device), nbytes in over.items():
        some = of_each.get(name, of_all)
        some[device] = some.get(device, 0) + nbytes
    return [replace(load, more=of_each[load.name]) for load in loads], budgets.less(of_all)


def joined(calls: Sequence[tuple[Chain, float]]) -> tuple[Chain, float]:
    """Several programs of a component as one: that of most work, called so often that all the work is counted.

    What is alive and what crosses is the most of any of them, where they have the same blocks; else of the whole.
    """
    main, times = max(calls, key=lambda call: call[1] * _flops(call[0]))
    work = _flops(main) or 1.0
    total = sum(count * _flops(chain) / work for chain, count in calls)
    largest = max(calls, key=lambda call: call[0].nbytes)[0]
    chains = [chain for chain, _ in calls]
    rest = _covering(main.rest, [chain.rest for chain in chains])
    rest = replace(rest, nbytes=rest.nbytes + max(0, largest.nbytes - main.nbytes))
    parts = tuple(_covering(part, _alike(chains, index, len(main.parts))) for index, part in enumerate(main.parts))
    return replace(main, rest=rest, parts=parts), max(total, times)


def _alike(chains: Sequence[Chain], index: int, count: int) -> list[Part]:
    """The parts of a number in all chains; of one of another form the most that is alive in any of its parts."""
    return [
        chain.parts[index]
        if len(chain.parts) == count
        else replace(chain.rest, live=chain.live, boundary=0, finest=chain.least)
        for chain in chains
    ]


def _covering(part: Part, others: Sequence[Part]) -> Part:
    return replace(
        part,
        live=max(one.live for one in others),
        boundary=max(part.boundary, *(one.boundary for one in others)),
        finest=max(one.least for one in others),
    )


def _flops(chain: Chain) -> float:
    """The arithmetic of a chain, in which a byte of traffic counts as much as 50 operations."""
    parts = (chain.rest, *chain.parts)
    return sum(n * max(cost.flops, 50.0 * (cost.read + cost.written)) for part in parts for cost, n in part.work)

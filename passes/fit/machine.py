"""The devices of a rig with their speeds, and the lists of them that are worth trying for a component."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speed, Speeds
from .workload import Budgets

T = TypeVar("T")

Kind: TypeAlias = tuple[Speed, int, tuple[object, ...]]

_LISTS = 32  # of several devices that are tried for one component
_COUNTS = 16  # of devices in a list
_ALIKE = 0.98
"""Devices of one speed are of a kind where the smallest may use at least this part of what the largest may."""


@dataclass(frozen=True)
class Machine:
    """The devices of the rig in order, their speeds, and the host."""

    devices: tuple[Device, ...]
    speeds: Speeds
    host: Device

    def kinds(self, budgets: Budgets) -> dict[Device, Kind]:
        """The kind of each card: its speed, how many kinds of that speed may use more memory, and its links."""
        found: dict[Device, Kind] = {}
        largest: dict[Speed, tuple[int, int]] = {}
        for card in sorted((one for one in self.devices if one != self.host), key=budgets.of, reverse=True):
            speed, nbytes = self.speeds[card], budgets.of(card)
            number, most = largest.get(speed, (-1, 0))
            if number < 0 or nbytes < _ALIKE * most:
                number, most = number + 1, nbytes
            found[card], largest[speed] = (speed, number, self.speeds.links_of(card)), (number, most)
        return found

    def lists(self, budgets: Budgets) -> list[tuple[Device, ...]]:
        """Lists of devices worth trying: each alone, and so many of several, the fastest and largest first.

        Those of each number of devices, with the host behind them or without it, take turns. Devices of a kind are
        exchanged for each other in one-device lists only.
        """
        kinds = self.kinds(budgets)
        cards = sorted(kinds, key=lambda one: (-kinds[one][0].rate("float16"), kinds[one][1], self.devices.index(one)))
        counts = sorted({-(-len(cards) * part // _COUNTS) for part in range(1, _COUNTS + 1) if cards})
        several = [self._by_main(cards, count, kinds) for count in counts if count > 1]
        with_host = [((*order, self.host) for order in self._by_main(cards, count, kinds)) for count in counts]
        return [*((one,) for one in self.devices), *islice(_in_turns([*several, *with_host]), _LISTS)]

    def _by_main(
        self, cards: Sequence[Device], count: int, alike: Mapping[Device, object]
    ) -> Iterator[tuple[Device, ...]]:
        """Orders of so many of the cards; those of each main device take turns."""
        mains = [one for (one,) in self._orders(cards, 1, alike)]
        return _in_turns([self._orders(cards, count - 1, alike, (main,)) for main in mains])

    def _orders(
        self, cards: Sequence[Device], count: int, alike: Mapping[Device, object], taken: tuple[Device, ...] = ()
    ) -> Iterator[tuple[Device, ...]]:
        """Orders of so many of the cards, of those that differ in cards that are alike only the first one.

        Where some cards have links of their own, the first is the one that the card before it reaches quickest.
        """
        if count == 0:
            yield taken
            return
        nearest: dict[object, Device] = {}
        for one in sorted((one for one in cards if one not in taken), key=lambda one: self._far(taken, one)):
            nearest.setdefault(alike[one], one)
        for one in nearest.values():
            yield from self._orders(cards, count - 1, alike, (*taken, one))

    def _far(self, taken: tuple[Device, ...], card: Device) -> float:
        """The seconds in which a byte comes from the card before; 0 where all ways between cards are alike."""
        return 1 / self.speeds.crossing(taken[-1], card) if taken and self.speeds.ways else 0.0


def _in_turns(some: Sequence[Iterable[T]]) -> Iterator[T]:
    """What several iterables have, one of each after another."""
    left = deque(map(iter, some))
    while left:
        for one in islice(left[0], 1):
            yield one
            left.append(left[0])
        left.popleft()

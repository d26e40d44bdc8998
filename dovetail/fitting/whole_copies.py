"""How many whole copies of a pipeline the cards of a machine hold, and how many pictures an hour these paint.

A copy is on cards of one kind, on as few of them as have room for all of its weights: none of them come and go in every
call. Each copy may use its part of the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..compiler.devices.device import Device
from ..passes.fit.machine import Machine
from ..passes.fit.options import Option
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.workload import Load
from .chosen import rough
from .decide import Decision


@dataclass(frozen=True)
class Copy:
    """A copy of a pipeline: its cards, and the seconds of a picture on them as a part of those of the whole plan."""

    devices: tuple[Device, ...]
    ratio: float


def whole_copies(decision: Decision) -> list[Copy]:
    """The copies that cards hold, each on cards of its own; none where devices were named, or there is one card."""
    host, kinds = decision.machine.host, decision.machine.kinds(decision.budgets)
    if len(kinds) < 2 or any(set(load.asked.devices) - {host} for load in decision.loads):
        return []
    alike: dict[object, list[Device]] = {}
    for card in (one for one in decision.machine.devices if one in kinds):
        alike.setdefault(kinds[card], []).append(card)
    return [copy for cards in alike.values() for copy in _on_alike(decision, cards)]


def _on_alike(decision: Decision, cards: Sequence[Device]) -> Iterator[Copy]:
    """The copies on cards that are alike: each on as few of them as hold one."""
    for size in dict.fromkeys((*range(1, len(cards) // 2 + 1), len(cards))):
        count = len(cards) // size
        found = _on(decision, cards, size, count)
        if found is None:
            continue
        ratio = found.seconds / decision.solution.seconds
        yield from (Copy(tuple(cards[index * size : (index + 1) * size]), ratio) for index in range(count))
        return


def _on(decision: Decision, alike: Sequence[Device], size: int, count: int) -> Solution | None:
    """The plan of a copy on so many cards that are alike, beside as many others as there are, if they hold it."""
    host, budgets, cards = decision.machine.host, decision.budgets, alike[:size]
    machine = Machine((*cards, host), decision.machine.speeds, host)
    own = dict.fromkeys(cards, min(map(budgets.of, alike)))
    less = replace(budgets, devices={**own, host: budgets.of(host) // count})
    found = search(_roughly(decision.loads), machine, less)
    if found is None or not all(_is_whole(found.ways[load.name], load, cards) for load in decision.loads):
        return None
    return found


def _roughly(loads: Sequence[Load]) -> list[Load]:
    return [rough(load) if load.asked.chooses_mode else load for load in loads]


def _is_whole(way: Option, load: Load, cards: Sequence[Device]) -> bool:
    """Whether all of a component is on some cards, or where it was asked for, while it works."""
    return set(way.devices) <= {*cards, *load.asked.devices} and not any(way.streamed.values())

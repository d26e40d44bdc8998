"""What is said of a plan's cards as replicas: how many pictures an hour they paint, each with a whole copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compiler.durations import bounds, duration, seconds_facts
from ..fitting.whole_copies import Copy

_HOUR = 3600


def told_of_replicas(copies: Sequence[Copy], seconds: float, spread: float, cards: int) -> list[str]:
    """A line that compares one picture over all cards with many over replicas; none where there is one copy at most.

    Args:
        copies: those that cards hold.
        seconds: those of a picture by the plan, which may be off by ``spread``.
        cards: how many cards the plan has.

    >>> from dovetail.compiler.devices.device import Device
    >>> told_of_replicas([Copy((Device("cuda", n),), 3.664) for n in range(4)], 15.0, 0.0, 4)[0].partition(":")[0]
    'one picture in 15 s over 4 cards, or 262 an hour as 4 replicas'
    """
    if len(copies) < 2:
        return []
    over = f"over {cards} cards" if cards > 1 else "on one card"
    rate = _rate_text(seconds, spread, copies)
    one = f"one picture in {duration(seconds, spread)} {over}, or {rate} an hour as {len(copies)} replicas"
    return [f"{one}: generate --prompts-file FILE --replicas auto"]


def facts_of_replicas(copies: Sequence[Copy], seconds: float, spread: float) -> dict[str, Any] | None:
    """The same as data; None where there is one copy at most."""
    if len(copies) < 2:
        return None
    low, high = bounds(seconds, spread)
    return {
        "count": len(copies),
        "pictures_an_hour": round(_rate(seconds, copies), 1),
        "pictures_an_hour_low": round(_rate(high, copies), 1),
        "pictures_an_hour_high": round(_rate(low, copies), 1),
        "each": [
            {"devices": [device.name for device in one.devices], **seconds_facts(seconds * one.ratio, spread)}
            for one in copies
        ],
    }


def _rate(seconds: float, copies: Sequence[Copy]) -> float:
    return sum(_HOUR / (seconds * one.ratio) for one in copies)


def _rate_text(seconds: float, spread: float, copies: Sequence[Copy]) -> str:
    low, high = bounds(seconds, spread)
    least, most = (f"{float(f'{_rate(one, copies):.3g}'):.0f}" for one in (high, low))  # three digits, as of seconds
    return least if least == most else f"{least}–{most}"

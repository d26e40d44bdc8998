"""What a cache of steps may leave out of a planned picture, and how long that takes at least.

A plan is of a picture in which a cache skips nothing. At least, what the cache may skip is computed as often as it has
to be whatever the numbers are: at the first step of each half of guidance, or as often as its interval says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compiler.durations import seconds_facts, seconds_text
from .together import own_seconds

if TYPE_CHECKING:
    from ..addons.step_cache import CachedModels
    from .generation import Generation
    from .table import Account


@dataclass(frozen=True)
class Skipped:
    """What may be left out of a component: so many decisions of its cache, of which those needed compute in any case.

    ``option`` is the cache as it is typed, ``parts`` are the paths of what it may leave out.
    """

    option: str
    component: str
    parts: tuple[str, ...]
    calls: int
    needed: int

    @property
    def share(self) -> float:
        """The largest part of it that may be left out."""
        return 1 - self.needed / self.calls

    def has(self, title: str) -> bool:
        """Whether a program belongs to what may be left out, by its title."""
        component, _, path = title.partition(".")
        return component == self.component and any(f"{path}.".startswith(f"{part}.") for part in self.parts)


def skipped_in(generation: Generation, cached: CachedModels | None) -> tuple[Skipped, ...]:
    """What the cache of a pipeline may leave out of a planned call, by component."""
    if cached is None:
        return ()
    return tuple(
        Skipped(str(cached.cache), name, cached.skippable[name], one.calls, one.needed)
        for name, one in generation.skips.items()
        if name in cached.skippable
    )


def saved_at_most(account: Account) -> float:
    """The seconds by which a picture may be shorter than planned; each weight is brought all the same."""
    saved = 0.0
    for one in account.skipped:
        programs = (part.seconds - part.bringing for part in account.parts if one.has(part.call.title))
        own = own_seconds(one.component, account.generation, account.speeds)
        saved += one.share * (sum(programs) + own)
    return min(saved, account.seconds)


def told_of_skipped(account: Account) -> list[str]:
    """A line that says between which seconds a picture takes, if a cache may leave something out."""
    if not account.skipped:
        return []
    least = seconds_text(account.seconds - saved_at_most(account), account.spread)
    each = ", ".join(f"{one.needed} of {one.calls} calls of the blocks of {one.component}" for one in account.skipped)
    return [
        f"that is with all steps computed; the cache {account.skipped[0].option} may leave some out, down to {least} "
        f"s: at least {each} are computed"
    ]


def facts_of_skipped(account: Account) -> dict[str, object] | None:
    """The same as data; None without a cache."""
    if not account.skipped:
        return None
    least = seconds_facts(account.seconds - saved_at_most(account), account.spread)
    return {
        "cache": account.skipped[0].option,
        **{f"least_{name}": one for name, one in least.items()},
        "decisions": {one.component: {"all": one.calls, "at_least": one.needed} for one in account.skipped},
    }

"""Orders the steps of a small problem so that devices wait less for one another; it knows nothing of programs.

A step takes some seconds. What is sent of its result is on its way for some seconds more, behind what was sent before,
and steps that read it wait for that. Some steps must come before others.

The order tried takes, of the steps that need not wait, one behind which something is sent, that with the most seconds
behind it; else the next one in the order given. So what is exchanged is computed first, and hides behind all others.
Takes time in proportion to steps × steps that are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """Steps by number, in the order given.

    Args:
        before: for each step the earlier ones that must come before it.
        seconds: what each step takes.
        sent: the seconds for which what is sent of its result is on its way; 0 where nothing is.
        awaits: for each step the earlier ones that make what it reads of what was sent.
        arriving: for each step the seconds after which what it reads arrives that was sent before all steps.
        busy: the seconds until the way is free.
    """

    before: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    sent: tuple[float, ...]
    awaits: tuple[tuple[int, ...], ...]
    arriving: tuple[float, ...]
    busy: float = 0.0

    @property
    def sends(self) -> bool:
        """Whether anything is sent, or comes."""
        return any(self.sent) or any(self.arriving)

    def behind(self) -> list[float]:
        """For each step the seconds from its start to the end of all behind it; 0 where nothing is sent from it on."""
        most, leads = list(self.seconds), [bool(one) for one in self.sent]
        following: list[list[int]] = [[] for _ in self.before]
        for step, earlier in enumerate(self.before):
            for one in earlier:
                following[one].append(step)
        for step in reversed(range(len(most))):
            after = [most[one] + (self.sent[step] if step in self.awaits[one] else 0) for one in following[step]]
            most[step] += max([self.sent[step], *after])
            leads[step] |= any(leads[one] for one in following[step])
        return [seconds if one else 0.0 for seconds, one in zip(most, leads, strict=True)]


@dataclass
class Clock:
    """The seconds that have gone by, when the way is free, and when what was sent arrives, while steps are taken."""

    problem: Problem
    now: float = 0.0
    free: float = 0.0
    arrived: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.problem.busy

    def ready(self, step: int) -> float:
        """When all is there that a step reads."""
        return max([self.problem.arriving[step], *(self.arrived[one] for one in self.problem.awaits[step])])

    def take(self, step: int) -> None:
        """Takes a step as soon as it can be, and sends what is sent of it."""
        self.now = max(self.now, self.ready(step)) + self.problem.seconds[step]
        sent = self.problem.sent[step]
        if sent:
            self.free = max(self.now, self.free) + sent
        self.arrived[step] = self.free if sent else self.now


def clock_of(problem: Problem, order: Sequence[int]) -> Clock:
    """The clock at the end of all steps in an order."""
    clock = Clock(problem)
    for step in order:
        clock.take(step)
    return clock


def quicker_order(problem: Problem) -> list[int] | None:
    """An order that ends earlier than the one given; None where none was found."""
    given = list(range(len(problem.before)))
    if not problem.sends:
        return None
    found = _least_waiting(problem)
    one, other = clock_of(problem, given), clock_of(problem, found)
    ends = (max(one.now, *one.arrived.values()), max(other.now, *other.arrived.values()))
    return found if (other.now, ends[1]) < (one.now, ends[0]) else None


def _least_waiting(problem: Problem) -> list[int]:
    following: list[list[int]] = [[] for _ in problem.before]
    missing = [len(earlier) for earlier in problem.before]
    for step, earlier in enumerate(problem.before):
        for one in earlier:
            following[one].append(step)
    behind, clock = problem.behind(), Clock(problem)
    ready = [step for step, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        able = [one for one in ready if clock.ready(one) <= clock.now]
        soonest = min(ready, key=lambda one: (clock.ready(one), one))
        step = min(able, key=lambda one: (-behind[one], one), default=soonest)
        ready.remove(step)
        order.append(step)
        clock.take(step)
        for one in following[step]:
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    return order

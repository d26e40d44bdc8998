"""Orders the steps of a small problem so that fewer bytes are alive at once; it knows nothing of programs.

A step touches pieces of memory. A piece is alive from the first step that touches it (from the beginning, if it is
given) to the last one (to the end, if it is kept). While a step runs, it takes some bytes more. Some steps must come
before others.

Two orders are tried: forwards, always the step that leaves the fewest bytes alive, and backwards, always the step
before which the fewest are. The second computes a value only right before it is needed. Whichever has the lowest peak
is taken, if that is lower than the peak of the order given. Takes time in proportion to steps × steps that are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Steps by number, in the order given, and pieces of memory by number.

    ``before`` has for each step the earlier ones that must come before it, ``touches`` the pieces that it touches, and
    ``extra`` the bytes that it takes while it runs. ``sizes``, ``given`` and ``kept`` are of each piece. One of the
    steps ``first``, which wait for none, comes first; any step may if there are none.
    """

    before: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    extra: tuple[int, ...]
    sizes: tuple[int, ...]
    given: tuple[bool, ...]
    kept: tuple[bool, ...]
    first: tuple[int, ...] = ()

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive in an order."""
        left = self._touched()
        alive = list(self.given)
        total = sum(size for size, there in zip(self.sizes, alive, strict=True) if there)
        peak = total
        for step in order:
            for piece in self.touches[step]:
                if not alive[piece]:
                    alive[piece] = True
                    total += self.sizes[piece]
            peak = max(peak, total + self.extra[step])
            for piece in self.touches[step]:
                left[piece] -= 1
                if not left[piece] and not self.kept[piece]:
                    total -= self.sizes[piece]
        return peak

    def least(self) -> int:
        """A number of bytes below which no order gets: what one step touches, and what is alive throughout."""
        throughout = [given and kept for given, kept in zip(self.given, self.kept, strict=True)]
        always = sum(size for size, there in zip(self.sizes, throughout, strict=True) if there)
        steps = (
            extra + sum(self.sizes[piece] for piece in pieces if not throughout[piece])
            for pieces, extra in zip(self.touches, self.extra, strict=True)
        )
        return always + max(steps, default=0)

    def backwards(self) -> Problem:
        """The same problem with time turned round; its step 0 is the last one."""
        last = len(self.before) - 1
        after: list[list[int]] = [[] for _ in self.before]
        for step, earlier in enumerate(self.before):
            for one in earlier:
                after[last - one].append(last - step)
        return Problem(
            tuple(map(tuple, after)), self.touches[::-1], self.extra[::-1], self.sizes, self.kept, self.given
        )

    def _touched(self) -> list[int]:
        """How many steps touch each piece."""
        count = [0] * len(self.sizes)
        for pieces in self.touches:
            for piece in pieces:
                count[piece] += 1
        return count

    def greedy(self) -> list[int]:
        """Always the step that leaves the fewest bytes alive, the first of them in the order given."""
        after: list[list[int]] = [[] for _ in self.before]
        missing = [len(earlier) for earlier in self.before]
        for step, earlier in enumerate(self.before):
            for one in earlier:
                after[one].append(step)
        left, alive = self._touched(), list(self.given)
        ready = [step for step, count in enumerate(missing) if not count]
        order: list[int] = []
        may_begin = frozenset(self.first) or range(len(self.before))

        def change(step: int) -> int:
            made = sum(self.sizes[piece] for piece in self.touches[step] if not alive[piece])
            return made - sum(self.sizes[one] for one in self.touches[step] if left[one] == 1 and not self.kept[one])

        while ready:
            able = ready if order else [one for one in ready if one in may_begin]
            step = min(able, key=lambda one: (change(one), one)) if len(able) > 1 else able[0]
            ready.remove(step)
            order.append(step)
            for piece in self.touches[step]:
                alive[piece] = True
                left[piece] -= 1
            for one in after[step]:
                missing[one] -= 1
                if not missing[one]:
                    ready.append(one)
        return order


def better_order(*problems: Problem) -> list[int] | None:
    """An order with a lower peak than that of the order given; None where none was found.

    Several problems of the same steps, whose pieces have other sizes, are views of what may be alive: the order is no
    worse in any of them, and better in one. The first is the one for which orders are looked for.
    """
    problem, traced = problems[0], range(len(problems[0].before))
    given = [one.peak(traced) for one in problems]
    if all(peak <= one.least() for peak, one in zip(given, problems, strict=True)):
        return None
    last = len(problem.before) - 1
    late = [last - step for step in problem.backwards().greedy()][::-1]
    begin = next((step for step in late if step in problem.first), late[0])
    tried = [problem.greedy(), [begin, *(step for step in late if step != begin)]]
    peaks = [[one.peak(order) for one in problems] for order in tried]
    fitting = [at for at in range(len(tried)) if all(map(int.__le__, peaks[at], given)) and peaks[at] != given]
    return tried[min(fitting, key=peaks.__getitem__)] if fitting else None

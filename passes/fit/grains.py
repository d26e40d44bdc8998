"""How finely weights that come and go are brought: by blocks or, where there is no room, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .chain import Chain

SLOTS = 2
"""Through so many slots blocks come: the next one is brought while one is read."""

EXPOSED = 0.1
"""The part of loading, or of computing where that is shorter, that does not go on beside the other."""


@dataclass(frozen=True)
class Grain:
    """Weights come through so many slots, which hold a block or, if it is fine, what one operation reads.

    ``exposed`` is the part of loading and computing that does not overlap: with one slot all of it. With ``has_rest``
    the weights outside of blocks come and go too.
    """

    slots: int = SLOTS
    exposed: float = EXPOSED
    is_fine: bool = False
    has_rest: bool = False

    def of(self, chain: Chain, is_alone: bool) -> Chain:
        """A chain in which the largest of a part is what a slot needs for it.

        On one device that ``is_alone``, what comes of the rest lands in the same slot, and does not count again.
        """
        if not self.is_fine:
            return chain
        rest = chain.rest.least if self.has_rest and is_alone else 0
        return replace(chain, parts=tuple(replace(one, largest=max(0, one.least - rest)) for one in chain.parts))

    def least(self, chain: Chain, is_alone: bool) -> int:
        """The bytes without which the main device has no room for a chain of this grain: a bound that is quick."""
        rest = chain.rest.least if self.has_rest else chain.rest.nbytes
        if not is_alone:
            return rest + chain.rest.live
        slots = self.slots * max((part.largest for part in chain.parts), default=0)
        return rest + min(slots, sum(part.nbytes for part in chain.parts)) + chain.live


BLOCKS = Grain()
GRAINS = (BLOCKS, Grain(1, 1.0, True), Grain(1, 1.0, True, True))
"""The grains that are tried, of which the first one that fits is taken."""

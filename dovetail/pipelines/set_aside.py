"""A pipeline as if no call of it had been planned, for one that does not fit as earlier ones have placed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..components.earlier import Earlier


@dataclass(frozen=True)
class EarlierCalls:
    """What the components of a pipeline have of earlier calls; see `planning.plannable.SetAside`.

    ``restore`` gives the pipeline the places that were decided for these, and ``settle`` has it know those of now.
    """

    components: Sequence[Earlier]
    restore: Callable[[], None]
    settle: Callable[[], None]

    @property
    def is_same(self) -> bool:
        """Whether components are placed now as they were then."""
        return all(one.is_same for one in self.components)

    def put_back(self) -> None:
        """Makes the pipeline what it was."""
        self.restore()
        for one in self.components:
            one.put_back()

    def keep(self) -> None:
        """Has the components have their earlier programs too."""
        for one in self.components:
            one.keep()

    def leave(self) -> None:
        """Lets go of earlier programs, and brings weights to where they rest now."""
        for one in self.components:
            one.leave()
        self.settle()

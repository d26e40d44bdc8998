"""The part of a pipeline's call in which each component works, and what is brought for it leaves with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ..compiler.ir.program import Program
from ..compiler.spec import role_of_component
from ..compiler.spec.residency import Residency
from ..planning.turns import turns_of

_PHASES = {
    "te": "conditioning",
    "clip_vision": "conditioning",
    "diffusion": "sampling",
    "controlnet": "sampling",
    "vae": "decoding",
}


def phase_of(name: str) -> str:
    """The part of a pipeline's call in which a component works; what is staged for it leaves with it.

    One whose name tells no role works in a part of its own: a prior has done its work when the decoder begins.
    """
    return _PHASES.get(role_of_component(name), name)


class Phases:
    """The phase of each component of a pipeline, by name.

    Components of one phase whose weights rest elsewhere are on their devices together. Where that does not fit, each
    works in a phase of its own: its weights leave before the next one's come. Where that does not fit either, weights
    of a component do not stay for its phase: all of them come and go in each call.
    """

    def __init__(self) -> None:
        self._apart: frozenset[str] = frozenset()
        self._going: frozenset[str] = frozenset()
        self.turns: Mapping[str, str] = {}
        """The phases of denoisers that come after others, by name, as the calls show that are planned or made."""

    def __call__(self, name: str) -> str:
        """The phase of a component."""
        return name if name in self._apart else self.turns.get(name) or phase_of(name)

    @property
    def changed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The components that work apart, and those whose weights come and go in each call."""
        return self._apart, self._going

    def start_over(self) -> Callable[[], None]:
        """Has no components work apart, nor weights come and go in each call; what is returned takes it back."""
        apart, going = self.changed
        self._apart = self._going = frozenset()

        def undo() -> None:
            self._apart, self._going = apart, going

        return undo

    def follow(self, calls: Sequence[str]) -> None:
        """Has denoisers of which one has done its work before the next one begins work in phases of their own."""
        self.turns = turns_of(calls, {name: phase_of(name) for name in calls})

    def separate(self, staged: Sequence[str]) -> Callable[[], None] | None:
        """Has the components of the first phase that some of these share work apart; what is returned takes it back.

        Gives None where none share a phase.
        """
        together: dict[str, list[str]] = {}
        for name in staged:
            together.setdefault(self(name), []).append(name)
        shared = next((names for names in together.values() if len(names) > 1), None)
        if shared is None:
            return None
        before = self._apart
        self._apart = before | set(shared)

        def join() -> None:
            self._apart = before

        return join

    def keeps(self, name: str) -> bool:
        """Whether weights of a component may stay on their devices until its phase ends."""
        return name not in self._going

    def let_go(self, names: Collection[str]) -> Callable[[], None] | None:
        """Has weights of components come and go in each call; what is returned takes it back.

        Gives None where those of all of them do.
        """
        before = self._going
        if before.issuperset(names):
            return None
        self._going = before.union(names)

        def keep() -> None:
            self._going = before

        return keep


def let_tables_go(program: Program) -> None:
    """Has buffers and constants rest in host memory, and come and go as parameters do; no program writes them."""
    tables = [name for name, weight in program.weights.items() if weight.kind in ("buffer", "constant")]
    program.residency.update(dict.fromkeys(tables, Residency.HOST))

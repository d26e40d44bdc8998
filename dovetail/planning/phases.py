"""The part of a pipeline's call in which each component works, and what is brought for it leaves with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..compiler.ir.program import Program
from ..compiler.spec import role_of_component
from ..compiler.spec.residency import Residency
from .turns import turns_of

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


@dataclass(frozen=True)
class Phases:
    """The phase of each component of a pipeline, by name.

    Components of one phase whose weights rest elsewhere are on their devices together. Where that does not fit, each
    works in a phase of its own: its weights leave before the next one's come. Where that does not fit either, weights
    of a component do not stay for its phase: all of them come and go in each call.

    Args:
        apart: the components that work in phases of their own.
        going: those whose weights come and go in each call.
        turns: the phases of denoisers that come after others, by name, as the calls show that are planned or made.
    """

    apart: frozenset[str] = frozenset()
    going: frozenset[str] = frozenset()
    turns: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        """The phase of a component."""
        return name if name in self.apart else self.turns.get(name) or phase_of(name)

    def keeps(self, name: str) -> bool:
        """Whether weights of a component may stay on their devices until its phase ends."""
        return name not in self.going

    def together(self) -> Phases:
        """Those in which no components work apart, nor weights come and go in each call."""
        return Phases(turns=self.turns)

    def following(self, calls: Sequence[str]) -> Phases:
        """Those in which denoisers have phases of their own of which one has done its work before the next begins.

        ``calls`` has the component of each call.
        """
        return replace(self, turns=turns_of(calls, {name: phase_of(name) for name in calls}))

    def separated(self, staged: Sequence[str]) -> Phases | None:
        """Those in which the components of the first phase that some of these share work apart; None where none do."""
        together: dict[str, list[str]] = {}
        for name in staged:
            together.setdefault(self(name), []).append(name)
        shared = next((names for names in together.values() if len(names) > 1), None)
        return replace(self, apart=self.apart.union(shared)) if shared is not None else None

    def letting_go(self, names: Collection[str]) -> Phases | None:
        """Those in which weights of components come and go in each call; None where those of all of them do."""
        return None if self.going.issuperset(names) else replace(self, going=self.going.union(names))


def let_tables_go(program: Program) -> None:
    """Has buffers and constants rest in host memory, and come and go as parameters do; no program writes them."""
    tables = [name for name, weight in program.weights.items() if weight.kind in ("buffer", "constant")]
    program.residency.update(dict.fromkeys(tables, Residency.HOST))

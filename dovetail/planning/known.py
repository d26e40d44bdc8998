"""A plan that is known of a kind of call, and whether its programs are still there."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..compiler.devices.device import Device
from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.dry import DryCall
from .generation import Generation
from .lasting import Left
from .tiling import Tile


@dataclass(frozen=True)
class Met:
    """A kind of call that a plan has; it keeps nothing alive, for what is compiled has the planner."""

    component: weakref.ref[Component]
    call: weakref.ref[Call]
    key: tuple[Any, ...]

    @classmethod
    def of(cls, one: DryCall) -> Met:
        """That of a call in a dry run."""
        return cls(weakref.ref(one.component), weakref.ref(one.call), one.key)

    def is_there(self) -> bool:
        """Whether such a call would find its program, as far as its arguments do not count."""
        component, call = self.component(), self.call()
        if component is None or call is None or call.is_over:
            return False
        return isinstance(call.programs.get(self.key), CompiledModule) and component.is_as_planned(call, self.key)


@dataclass(frozen=True)
class Known:
    """A plan that was made, with what has to be as it was then: kinds of calls, tiles, and the turns of denoisers.

    ``programs`` is how many all components had then: what others have brought since lies there too. ``left`` is what
    such a call leaves in the pipeline, where that is known.
    """

    generation: Generation
    met: list[Met]
    tiles: Mapping[str, Tile]
    turns: Mapping[str, str]
    adopted: int
    programs: int
    left: Left | None = None

    def now(self, devices: Iterable[Device]) -> Generation:
        """The plan beside what the last call has left in the pipeline, which may have been one of another kind."""
        beyond = self.left and self.left.beyond(devices)
        return self.generation.after(beyond) if beyond else self.generation

    def is_there(self, components: Iterable[Component]) -> bool:
        """Whether its programs are there still, and no part was put in the place of one that had none."""
        return adopted_by(components) == self.adopted and all(one.is_there() for one in self.met)


def programs_of(components: Iterable[Component]) -> int:
    """How many programs components have, of calls of all kinds."""
    return sum(len(call.programs) for component in components for call in component.calls)


def adopted_by(components: Iterable[Component]) -> int:
    """How many parts were put in the place of others in these components, after a look at those that run by parts."""
    found = 0
    for component in components:
        if component.sites.are_by_parts:
            component.watch.look(component.calls[0])
        found += component.adopted
    return found

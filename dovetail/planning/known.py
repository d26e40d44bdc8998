"""A plan that is known of a kind of call, and whether its programs are still there."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.dry import DryCall
from .generation import Generation
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
    """A plan that was made, with what has to be as it was then: kinds of calls, tiles, and the turns of denoisers."""

    generation: Generation
    met: list[Met]
    tiles: Mapping[str, Tile]
    turns: Mapping[str, str]

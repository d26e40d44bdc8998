"""What a component has of calls that were planned before, set aside while a call is planned as if it were the first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..runtime.store.stored_weight import StoredWeight
from .calls import Answering, Call
from .compiled import CompiledModule

if TYPE_CHECKING:
    from .component import Component


@dataclass(frozen=True)
class Earlier:
    """The programs of a component and where its weights were, before it was planned as if nothing had been.

    One of three things is to be done with it: `put_back`, `keep` or `leave`.
    """

    component: Component
    programs: list[tuple[Call, OrderedDict[Any, Answering]]]
    split: tuple[Any, ...]
    placed: Mapping[StoredWeight, tuple[Any, ...]]
    parts: Mapping[StoredWeight, dict[Any, torch.Tensor]]
    restore: Callable[[], None]

    @classmethod
    def of(cls, component: Component) -> Earlier:
        """Takes programs and decisions out of a component; traces stay, and weights lie where they lie."""
        found = cls(
            component,
            [(call, OrderedDict(call.programs)) for call in component.calls],
            _split(component),
            {one: _placed(one) for one in component.view.weights()},
            {one: dict(one.parts) for one in component.view.weights()},
            component.decisions(),
        )
        for call, programs in found.programs:
            for key in [key for key, one in programs.items() if isinstance(one, CompiledModule)]:
                component.take_back(call, key)
        component.sites.forget()
        component.assigned.forget()
        for one in component.view.weights():
            one.home, one.bounds = None, ()
            one.parts.clear()  # which count as what is there
        return found

    def _take_parts(self) -> None:
        """Gives weights back what lies beside them on devices."""
        for one, parts in self.parts.items():
            one.parts.update(parts)

    @property
    def is_same(self) -> bool:
        """Whether what is decided now agrees with what was decided then, so that both kinds of programs may be used.

        What no program reads now is where those of then have it.
        """
        return _split(self.component) == self.split and all(
            _placed(one) in (then, (then[0], None, ())) for one, then in self.placed.items()
        )

    def put_back(self) -> None:
        """Makes the component what it was."""
        for call, programs in self.programs:
            call.programs.clear()
            call.programs.update(programs)
        self._take_parts()
        self.restore()

    def keep(self) -> None:
        """Has the component have these programs too."""
        self._take_parts()
        for call, programs in self.programs:
            for key, program in programs.items():
                if key not in call.programs:
                    call.keep(key, program, len(call.programs) + 1)
                    if isinstance(program, CompiledModule):
                        self.component.assigned.note(call.module, program.program, planning=True)

    def leave(self) -> None:
        """Lets go of these programs, and brings weights off devices on which they are not to stay any more."""
        self._take_parts()
        for _, programs in self.programs:
            for program in programs.values():
                if isinstance(program, CompiledModule):
                    program.unload()
        self.component.leave_devices()


def _split(component: Component) -> tuple[Any, ...]:
    """How a component is spread over devices."""
    return component.devices, component.plan.by_rows, component.plan.shares


def _placed(one: StoredWeight) -> tuple[Any, ...]:
    """What is decided of a weight that programs rest on."""
    return one.residency, one.home, one.bounds

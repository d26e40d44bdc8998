"""Components of a compiled pipeline that others take the place of: each assignment to the pipeline is such a change."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from ..compiler.spec.residency import Residency
from ..components.component import Component
from ..conventions.roles import role_of_module
from .checks import refuse_taking
from .placed import PlacedPipeline
from .plan import component_plans, modules_of, resting_in_memory
from .sharing import let_go
from .subclass import become_as_before, handle_of, set_apart

if TYPE_CHECKING:
    from .pipeline import CompiledPipeline

logger = logging.getLogger(__name__)


class Exchanging(PlacedPipeline):
    """A compiled pipeline whose components may be exchanged; see CompiledPipeline, which it is a part of."""

    if TYPE_CHECKING:

        def _leader(self) -> CompiledPipeline | None: ...
        def _part(self) -> None: ...

    def exchange(self, name: str, value: object, put: Callable[[], None]) -> None:
        """Has a module, which is compiled then, or something else take the place of a component, which is given back.

        Every assignment to an attribute of the pipeline does so; it takes the devices of what was there before.

        Args:
            name: the attribute.
            value: what it is to be.
            put: sets it.

        Raises UsageError for a module that is compiled or offloaded already; DoesNotFitError where a weight of the old
        component finds no room where it was before.
        """
        parts = self.components
        old = parts.get(name)
        is_part = any(value is one.module for one in parts.values())
        module = value if isinstance(value, nn.Module) and not is_part else None
        if old is None and (module is None or name not in self.pipe.components):
            put()
            return
        if old is not None and value is old.module:
            return
        if self._leader() is not None:  # which keeps its own
            pipe = self.pipe
            become_as_before(pipe)
            put()
            set_apart(pipe)
            return
        with self.turn, self.turn:
            if handle_of(self.pipe) is not self:  # it was undone meanwhile
                put()
                return
            self._exchange(name, old, module, put)

    def _exchange(self, name: str, old: Component | None, module: nn.Module | None, put: Callable[[], None]) -> None:
        """Does that, between calls."""
        new = self._joining(name, module) if module is not None else None
        if new is not None and self.decision is not None:
            logger.warning(
                "the new %s takes the devices that were found for the pipeline as it was, and nothing is searched "
                "again: for that, compile it again after pipe.dovetail.undo()",
                name,
            )
        before = weakref.ref(old.module) if old is not None else None
        put()
        self._planner.forget()
        try:
            if before is not None:
                self._leave(name, before())
        finally:
            self._join(new)
            self._join_left()
            self._part()

    def _joining(self, name: str, module: nn.Module) -> Component:
        """A component that is to take the place of another; where that rests in files, it rests in host memory."""
        refuse_taking(self.pipe, name, module)
        role = role_of_module(name, module)
        modules, roles = {**self._modules(), name: module}, {**self._roles, name: role}
        given = modules, roles, partial(self._whole_on, is_open=self._is_open), (name,)
        plan = component_plans(self._request, *given)[name]
        if plan.residency is Residency.DISK:
            logger.warning("the new %s lies in no file: its weights are kept in host memory", name)
            self._request = resting_in_memory(self._request, name)
            self._asked = resting_in_memory(self._asked, name)
            plan = component_plans(self._request, *given)[name]
        return self._made(name, role, module, plan)

    def _join(self, new: Component | None) -> None:
        if new is not None:
            if new.role == "diffusion":
                self.addons.join(new.name, new.module)
            self._components[new.name] = new
            self._tiles.add(new.name, new.module, new.role)
            new.swap()
        self._settle()

    def _join_left(self) -> None:
        """Compiles again what was given back under one name and is there under another: two that changed places."""
        for name, module in modules_of(self.pipe).items():
            if all(module is not one.module for one in self.components.values()):
                self._join(self._joining(name, module))

    def _leave(self, name: str, module: nn.Module | None) -> None:
        """Gives a component back, if anybody has its module still."""
        old = self._components.pop(name, None)
        self._tiles.remove(name)
        if module is not None:
            self.addons.take_off(module)
        if self.borrowed.pop(name, None) is not None:
            return
        if old is None or module is None or let_go(old, self):
            self._store.forget(module)

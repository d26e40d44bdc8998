"""Notices, before each call, what others changed in the module of a component."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from .by_parts import split_told
from .calls import Call, OfComponent
from .stamp import Stamp, State
from .weights.weight_stamp import WeightStamp

if TYPE_CHECKING:
    from .component import Component

logger = logging.getLogger(__name__)


class Watch(OfComponent):
    """Looks at the modules of a component's calls, and has it take in what others changed."""

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        self._stamps: dict[Call, tuple[Stamp, WeightStamp]] = {}
        self._live: dict[Call, Mapping[nn.Module, str]] = {}
        self._parts: dict[Call, list[nn.Module]] = {}
        self._told = False

    def look(self, call: Call) -> State:
        """The state of a part, after what others changed in it was taken in."""
        component = self.component
        stamp, weights = self._stamps.get(call) or self._stamp_of(call)
        state, is_changed = stamp.look(), weights.is_changed(call.module, stamp.modules)
        if is_changed:
            component.view.survey()
            component.sites.forget()
            component.refresh_weights()
            for one, _ in list(self._stamps.values()):
                one.forget()  # what was one weight may be two now
            state = stamp.look()
        if self._parts.get(call) is not stamp.modules:
            before = self._parts.get(call)
            is_first = before is None and call.module is not component.module
            if not is_first and before != stamp.modules and component.adapters.look_anew():
                stamp.forget()  # it describes what is wrapped in the place of what wraps it
                state = stamp.look()
            self._parts[call] = stamp.modules
            component.take_in(call.module)
            if not is_changed and before not in (None, stamp.modules) and call.module is component.module:
                component.view.survey()  # the weights of parts that were taken out leave their devices
                component.sites.forget()
        if weights.has_turned():
            call.unload()
        if state.live is not self._live.get(call):
            self._leave(call, stamp, state)
        return state

    def _stamp_of(self, call: Call) -> tuple[Stamp, WeightStamp]:
        adapters = self.component.adapters
        stamp = Stamp(call.module, lambda: adapters.bases(call.module))
        return self._stamps.setdefault(call, (stamp, WeightStamp(self.component.view.store)))

    def _leave(self, call: Call, stamp: Stamp, state: State) -> None:
        """Has the parts with hooks, caches and functions of somebody else run as they are; says so once."""
        component, self._live[call] = self.component, state.live
        module, sites = component.module, component.sites
        looked_at = {*stamp.modules, *({module} & {call.module})}  # the hooks of a part are its parent's to see
        left = (sites.left - looked_at) | state.live.keys()
        if left == sites.left:
            return
        sites.leave(left)
        names = {one: path for path, one in module.named_modules()}
        told = sorted(f"{names.get(one) or component.name} ({why})" for one, why in state.live.items())
        if told and not self._told:
            self._told = True
            logger.log(
                logging.INFO if component.tell_of_option() else logging.WARNING,
                "these parts of %s run as they are, because dovetail cannot trace them: %s%s; the rest of it is "
                "compiled by its parts, so that values cross between devices more often%s",
                component.title(call), ", ".join(told[:3]), f", … ({len(told)} in all)" if len(told) > 3 else "",
                split_told(component.plan),
            )  # fmt: skip

    def renew(self) -> None:
        """Looks at the weights again after they were moved by us, so that none is kept alive here."""
        for _, weights in list(self._stamps.values()):
            weights.renew()

    def clear(self) -> None:
        """Forgets all that was seen."""
        self._stamps.clear()
        self._live.clear()
        self._parts.clear()

    def forget(self, call: Call) -> None:
        """Forgets a part that is gone."""
        for seen in (self._stamps, self._live, self._parts):
            seen.pop(call, None)

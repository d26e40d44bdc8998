"""The one place where components take over what was decided in drafts of them; an error leaves them as they were."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..compiler.ir.program import Program
from ..runtime.store.stored_weight import StoredWeight
from .calls import Answering, Call, unload
from .compiled import CompiledModule
from .decisions import Decisions
from .weights.assigned import AssignedWeights

if TYPE_CHECKING:
    from .component import Component


@dataclass(frozen=True)
class _Before:
    """What held of a component, and the programs and traces of its calls."""

    component: Component
    decided: Decisions
    weights: AssignedWeights
    read_as_is: set[StoredWeight]
    calls: Sequence[tuple[Call, OrderedDict[Any, Answering], OrderedDict[Any, Program]]]

    @classmethod
    def of(cls, component: Component) -> _Before:
        calls = [(call, OrderedDict(call.programs), OrderedDict(call.traced)) for call in component.calls]
        decided = component.decided
        return cls(component, decided, decided.assigned.snapshot(), set(decided.sites.read_as_is), calls)

    def put_back(self) -> None:
        """Makes the component what it was."""
        self.component.hold(self.decided)
        self.weights.commit()
        for call, programs, traced in self.calls:
            call.programs, call.traced = programs, traced


@contextlib.contextmanager
def adopting(drafts: Sequence[Decisions], *, earlier_stay: bool = True) -> Iterator[None]:
    """Has what drafts decided hold of their components, which keep the programs; an error within takes it back.

    Of drafts that were made anew, programs of earlier calls stay with ``earlier_stay``; else they go, and weights leave
    devices on which they are not to stay any more. Nothing is checked, and nothing brought to a device.
    """
    before = {draft: _Before.of(draft.component) for draft in drafts}
    try:
        for draft, then in before.items():
            _adopt(draft, then, earlier_stay)
        if not earlier_stay:
            for then in before.values():
                for _, programs, _ in then.calls:
                    unload(programs.values())
                then.component.leave_devices()
        for draft in drafts:
            draft.hold()
        yield
    except BaseException:
        for then in before.values():
            then.put_back()
        raise


def agree_with_earlier(drafts: Sequence[Decisions]) -> bool:
    """Whether the programs of earlier calls may be used beside those of drafts."""
    return all(not draft.is_anew or draft.agrees_with(draft.component.decided) for draft in drafts)


def _adopt(draft: Decisions, before: _Before, stays: bool) -> None:
    component, both = draft.component, draft.is_anew and stays
    component.hold(draft)
    draft.sites.read_as_is.update(before.read_as_is if both else ())
    for call, programs, _ in before.calls if draft.is_anew else ():
        _keep(call, programs, draft) if stays else _let_go(call, programs, component)
    for (call, key), program in draft.programs.items():
        component.compiler.keep(call, key, program, besides=len(call.programs) if both else 0)


def _keep(call: Call, programs: Mapping[Any, Answering], draft: Decisions) -> None:
    """Counts the programs of earlier calls, which a draft that was made anew does not know."""
    for key, program in programs.items():
        if (call, key) not in draft.programs and isinstance(program, CompiledModule):
            draft.assigned.note(call.module, program.program, planning=True)


def _let_go(call: Call, programs: Mapping[Any, Answering], component: Component) -> None:
    """Makes traces of the programs of earlier calls again."""
    for key, program in programs.items():
        if isinstance(program, CompiledModule):
            component.compiler.take_back(call, key)

"""Pipelines that share components: whose these are, who uses them now, and who has them when one is undone.

A component is placed by one pipeline, its owner, and used as it is by every other one over the same module. While a
call of such a borrower runs, the component asks that one what is left of devices, and tells it of its phase; all of
them take turns. An owner that is undone leaves the component to a borrower that is still compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..compiler.spec.backend import Resting
from ..compiler.spec.residency import Residency
from ..components.calls import component_of
from ..components.component import Component
from ..conventions import libraries
from .pipeline_state import take_hook_out
from .plan import modules_of

if TYPE_CHECKING:
    from torch import nn

    from .neighbour import Neighbour
    from .pipeline import CompiledPipeline

T = TypeVar("T")


class OfAllFaces(Generic[T]):
    """An attribute that a placed pipeline has in common with the pipelines that follow it."""

    def __set_name__(self, _: type[object], name: str) -> None:
        self._name = name

    def __get__(self, one: Neighbour, _: type[object]) -> T:
        return cast("T", one.common[self._name])

    def __set__(self, one: Neighbour, value: T) -> None:
        one.common[self._name] = value


def placed_already(modules: Mapping[str, nn.Module]) -> dict[str, Component]:
    """The components that another pipeline has made of some modules."""
    found = {name: component_of(module) for name, module in modules.items()}
    return {name: one for name, one in found.items() if one is not None and one.owner is not None}


def leader_of(pipe: Any) -> CompiledPipeline | None:
    """The compiled pipeline that has all modules of another one as its components, of the same names; or None."""
    try:
        modules = modules_of(pipe)
    except (AttributeError, ValueError):  # it is being made
        return None
    placed = placed_already(modules)
    if not placed or len(placed) < len(modules):
        return None
    for one in dict.fromkeys(user for component in placed.values() for user in users_of(component)):
        if all(one.components.get(name) is component for name, component in placed.items()):
            return one
    return None


def users_of(component: Component) -> list[CompiledPipeline]:
    """The compiled pipelines that use a component, its owner first; those that follow one outlive it."""
    known = [one for one in (component.owner, *component.borrowers) if one is not None]
    return list(dict.fromkeys(face for one in known for face in one.faces))


def named_in(settings: Any, borrowed: Mapping[str, Component]) -> dict[str, Any]:
    """Settings that name the devices of components which are placed already, and where their weights rest."""
    devices = {name: "&".join(map(str, one.devices)) for name, one in borrowed.items()}
    moved = {name: one.view for name, one in borrowed.items() if one.view.residency is not Residency.DEVICE}
    resting = {name: str(Resting(view.residency.value, amounts=view.amounts)) for name, view in moved.items()}
    extended = dict(settings)
    for key, named in (("backend", devices), ("params_backend", resting)):
        given = settings.get(key)
        if not named:
            continue
        if given is None or isinstance(given, Mapping):
            extended[key] = {**(given or {}), **named}
        else:
            extended[key] = ",".join([str(given), *(f"{name}={place}" for name, place in named.items())])
    return extended


@contextlib.contextmanager
def lent(borrowed: Mapping[str, Component], handle: Neighbour) -> Iterator[None]:
    """Has components ask and tell a pipeline that borrows them meanwhile, and not their owner."""
    before = [(one, one.user, vars(one.module).get(libraries.HOOK)) for one in borrowed.values()]
    try:
        for name, one in borrowed.items():
            one.serve(handle.as_user(name))
            vars(one.module)[libraries.HOOK] = handle.hook
        yield
    finally:
        for one, user, hook in before:
            one.serve(user)
            if libraries.HOOK in vars(one.module) and hook is not None:
                vars(one.module)[libraries.HOOK] = hook


def let_go(component: Component, owner: Any) -> bool:
    """Leaves a component to a pipeline that borrows it, or gives its module back; says which of the two, as True.

    Raises DoesNotFitError where it is to be given back and a weight finds no room where it was.
    """
    for heir in users_of(component):
        if heir is not owner and heir.inherits(component):
            return False
    give_back(component)
    return True


def give_back(component: Component) -> None:
    """Gives a component's module back as it was; raises DoesNotFitError where a weight finds no room."""
    take_hook_out(component.module)
    component.restore()

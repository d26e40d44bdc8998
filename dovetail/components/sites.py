"""Where each part of a component runs its own Python, and which device each weight gets that is compiled by parts.

Which device each weight gets is decided once for the whole component, from the names of its weights
(``passes/placement/by_name``), so that parts that are compiled at different times agree.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from ..compiler.devices.device import Device
from ..compiler.ir.program import Program
from ..compiler.ir.weight import Weight
from ..compiler.spec.residency import Residency
from ..passes.placement.assignment import Assigned, Assignment, check_weights
from ..passes.placement.by_name import split_by_name, units_of
from ..runtime.store.stored_weight import StoredWeight
from .calls import OfComponent

if TYPE_CHECKING:
    from .component import Component


@dataclass(frozen=True)
class Site:
    """Where and how a module runs its own Python: ``opens`` if its parts answer for themselves, else all as it is.

    ``needs`` are the weights that must lie there, ``device`` is None where it has none. If it opens, ``stays`` are
    those that are there from then on. ``is_looked_at`` says that it, or a hook, may read others, which lie elsewhere.
    """

    device: Device | None
    opens: bool
    needs: tuple[StoredWeight, ...]
    stays: tuple[StoredWeight, ...] = ()
    is_looked_at: bool = False


class Sites(OfComponent):
    """Where the modules of a component run, and the devices of its weights, which all of its programs share.

    ``left`` are the modules that run as they are.
    """

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        self.left: frozenset[nn.Module] = frozenset()
        self.are_by_parts = False
        """Whether something of the component runs by its parts, so that all weights get their devices by name."""
        self._units: dict[StoredWeight, str] | None = None
        self._unsettle: Callable[[], None] | None = None
        self.read_as_is: set[StoredWeight] = set()
        """The weights that modules read which run their own Python, and that no program brings for them."""
        self._sites: tuple[MutableMapping[nn.Module, Site], ...] = (
            weakref.WeakKeyDictionary(),
            weakref.WeakKeyDictionary(),
        )
        self._around: MutableMapping[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._adapters: tuple[Any, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether every weight of the component has its device, which programs compiled later keep."""
        return self._units is not None

    def leave(self, modules: Collection[nn.Module]) -> None:
        """Has these parts of the component run as they are from now on, and what contains them run by its parts.

        The rest stays compiled. For parts that have hooks, a cache, or a ``forward`` of somebody else. Programs that
        were compiled before keep what they were compiled from: forget those of modules that contain one.
        """
        self.left = frozenset(modules)
        self._clear()

    def forget(self) -> None:
        """Looks at the module anew at the next call; weights keep their devices."""
        self._units = self._unsettle = None
        self.read_as_is.clear()
        self._clear()

    def unsettle(self) -> None:
        """Takes the devices back that weights were given by name, for the component gets other ones."""
        if self._unsettle is not None:
            self._unsettle()
        self._units = self._unsettle = None
        self._clear()

    def _clear(self) -> None:
        for sites in self._sites:
            sites.clear()
        self._around.clear()

    def decisions(self) -> Callable[[], None]:
        """What is settled now: what is returned makes it so again."""
        units, unsettle = self._units, self._unsettle

        def restore() -> None:
            self._units, self._unsettle = units, unsettle
            self._clear()

        return restore

    def place(self, module: nn.Module, program: Program) -> None:
        """Gives a fresh program of the component or of a part of it its devices, and weights the homes they have.

        What other parts hold of a device is not offered again.
        Once the component runs by its parts, a program gets only the devices that its weights are on.
        """
        if self.are_by_parts:
            self.settle()
        assigned = self.component.assigned
        program.rig = self.component.offer(assigned.read_by(module, program))
        assigned.constrain(module, program)
        if self.settled:
            used = [one for one in program.devices if one in program.home.values()]
            program.rig = program.rig.only(used or program.devices[:1])

    def main_of(self, module: nn.Module) -> Device:
        """The main device of a program of the component, or of a part of it."""
        component = self.component
        if not self.are_by_parts:
            return component.devices[0]
        self.settle()
        homes = _homes(component.view.weights(module))
        return next((one for one in component.devices if one.name in homes), component.devices[0])

    def settle(self) -> None:
        """Gives every weight of the component a device, once."""
        if self._units is not None:
            return
        component = self.component
        held = {one.name: one for one in component.view.weights()}
        weights = _described(held)
        given = {name: Assigned(one.home, (), one.residency) for name, one in held.items() if one.home is not None}
        rig = component.offer(list(held.values()))
        residency = {name: one.residency for name, one in held.items()}
        assignment = split_by_name(weights, rig, component.plan.shares, given, residency)
        self.check(assignment)
        self._unsettle = component.assigned.decisions()
        fresh = {held[name]: one for name, one in assignment.items() if name not in given}
        component.assigned.commit(fresh, staged=False)  # what was given, programs may have counted already
        component.assigned.count_staged(self.read_as_is)
        units = units_of(weights, len(rig.devices))
        self._units = {held[name]: unit.name for unit in units for name in unit.weights}

    def weights_by_parts(self) -> Mapping[str, Weight]:
        """What is known of all weights by name, if the component runs by its parts; none of another component."""
        held = self.component.view.weights() if self.are_by_parts else []
        return _described({one.name: one for one in held})

    def check(self, assignment: Assignment) -> None:
        """Raises UsageError or DoesNotFitError where all weights of the component cannot be as assigned by name."""
        component = self.component
        held = component.view.weights()
        weights = _described({one.name: one for one in held})
        check_weights(component.name or type(component.module).__name__, weights, assignment, component.offer(held))

    def of(self, module: nn.Module, keeps: bool = False) -> Site:
        """Where and how a part runs its own Python; one that ``keeps`` what it is given has nothing compiled in it.

        Weights get their devices by name meanwhile, unless nothing of the component runs on its devices yet.
        """
        if self.component.adapters.stamp is not self._adapters:
            self._adapters = self.component.adapters.stamp
            self._clear()
        sites = self._sites[keeps]
        if module not in sites:
            self.are_by_parts = True
            if self._main is not None:
                self.settle()
            sites[module] = self._find_site(module, keeps)
            self.read_as_is.update(sites[module].needs)
            self.component.assigned.count_staged(sites[module].needs)
        return sites[module]

    def note_read(self, held: StoredWeight, device: Device) -> None:
        """Counts a weight that the Python of a module that opens reads on a device, without calling the part it is of.

        One whose home is elsewhere, or that is packed there, is copied, and the copy stays.
        """
        if held.quant or held.home not in (None, device):
            self.component.assigned.count_copy(held, device)
        elif held not in self.read_as_is:
            self.read_as_is.add(held)
            self.component.assigned.count_staged([held])

    @property
    def _main(self) -> Device | None:
        """Where what lies outside of blocks runs; None while nothing runs on the devices of the component."""
        component = self.component
        is_there = component.rig.present and component.whole_on == component.devices[0]
        return component.whole_on if is_there else None

    def _find_site(self, module: nn.Module, keeps: bool) -> Site:
        component, main = self.component, self._main
        inside = component.view.weights(module)
        has_parts = next(module.children(), None) is not None
        opens = has_parts and ((not keeps and _calls_its_parts(module)) or self._has_to_open(module, inside))
        is_left = module in self.left
        around = component.view.weights() if is_left else inside  # which its hooks may read
        if not inside:
            return Site(None, opens, (), is_looked_at=bool(around))
        own, homes = _own_weights(component, module), _homes(inside)
        if main is None:
            return Site(component.whole_on, opens, tuple(own if opens else inside), is_looked_at=opens or is_left)
        device = _only(homes) or _only(_homes(own)) or main
        stays = _staying(inside, device) if opens else ()
        is_looked_at = (opens or is_left) and len(_staying(around, device)) < len(around)
        return Site(device, opens, tuple(own if opens else inside), stays, is_looked_at)

    def _has_to_open(self, module: nn.Module, inside: Sequence[StoredWeight]) -> bool:
        """Whether a part cannot run as it is: its weights are packed, lie on several devices, or come and go."""
        if any(one.quant for one in inside):
            return True
        stays = all(one.residency is Residency.DEVICE for one in inside)
        several = len(_homes(inside)) > 1 or not stays or self.contain_left(module)
        units = {self._units[one] for one in inside if self._units and one in self._units}
        return several and (len(units) > 1 or self._main is None or module in self.left)

    def contain_left(self, module: nn.Module) -> bool:
        """Whether something in a part runs as it is."""
        if module not in self._around:
            self._around[module] = bool(self.left) and any(child in self.left for child in module.modules())
        return self._around[module]


def _calls_its_parts(module: nn.Module) -> bool:
    """Whether a module reads weights of its parts by calling them; else it runs as it is, with all of them at hand.

    PyTorch's attention reads those of its last projection itself, as does a forward that names them.
    """
    if type(module).__module__.startswith("torch.nn."):
        return isinstance(module, nn.Sequential)
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and not _WEIGHTS.intersection(code.co_names)


_WEIGHTS = frozenset({"weight", "bias"})


def _described(held: Mapping[str, StoredWeight]) -> dict[str, Weight]:
    return {name: _weight_of(one) for name, one in held.items()}


def _weight_of(held: StoredWeight) -> Weight:
    kind = "parameter" if isinstance(held.tensor, nn.Parameter) else "buffer"
    weight = Weight(held.name, kind, tuple(held.tensor.shape), held.tensor.dtype)
    return replace(weight, quant=held.quant) if held.quant else weight


def _own_weights(component: Component, module: nn.Module) -> list[StoredWeight]:
    """The weights that belong to a module itself, and to its lists of parameters, which are never called."""
    lists = (child for child in module.children() if isinstance(child, (nn.ParameterList, nn.ParameterDict)))
    places = [place for one in (module, *lists) for place in (one._parameters, one._buffers)]
    return [component.view.store.of(tensor) for place in places for tensor in place.values() if tensor is not None]


def _staying(held: Collection[StoredWeight], device: Device) -> tuple[StoredWeight, ...]:
    """The weights that are on a device as they are read, once they were brought there."""
    return tuple(one for one in held if one.home == device and one.residency is Residency.DEVICE and not one.quant)


def _homes(held: Collection[StoredWeight]) -> dict[str, Device]:
    return {one.home.name: one.home for one in held if one.home is not None}


def _only(homes: Mapping[str, Device]) -> Device | None:
    return next(iter(homes.values())) if len(homes) == 1 else None

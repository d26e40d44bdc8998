"""Where each part of a component runs its own Python, and which device each weight gets that is compiled by parts.

Which device each weight gets is decided once for the whole component, from the names of its weights
(``passes/placement/by_name``), so that parts that are compiled at different times agree.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
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

if TYPE_CHECKING:
    from .component import Component
    from .decisions import Decisions
    from .weights.assigned import AssignedWeights


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


@dataclass
class Outline:
    """What is known of the parts of a component, whatever is decided of it.

    ``left`` are the modules that run as they are, and ``are_by_parts`` says that something of it runs by its parts, so
    that all weights get their devices by name. ``looks`` counts how often the modules changed, and ``forgotten`` how
    often all was to be looked at anew.
    """

    left: frozenset[nn.Module] = frozenset()
    are_by_parts: bool = False
    looks: int = 0
    forgotten: int = 0


class Sites:
    """Where the modules of a component run, and the devices of its weights, which all of its programs share.

    Args:
        decided: what is decided of the component, which keeps this.
        units: the blocks of the weights, where these have their devices by name.
        before: what was decided of the weights when they got these.
        read_as_is: the weights that modules read which run their own Python, and that no program brings for them.
    """

    def __init__(
        self,
        decided: Decisions,
        units: dict[StoredWeight, str] | None = None,
        before: AssignedWeights | None = None,
        read_as_is: Iterable[StoredWeight] = (),
    ) -> None:
        self._decided = weakref.ref(decided)
        self.outline = decided.component.outline
        self._units = units
        self._before = before
        self._read_as_is = set(read_as_is)
        self._sites: tuple[MutableMapping[nn.Module, Site], ...] = (
            weakref.WeakKeyDictionary(),
            weakref.WeakKeyDictionary(),
        )
        self._around: MutableMapping[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._known = self.outline.looks, self.outline.forgotten
        self._adapters: tuple[Any, ...] = ()

    def draft(self, decided: Decisions, *, is_settled: bool = True) -> Sites:
        """The same for a draft of what is decided, in which weights may have no devices by name yet."""
        self._look()
        settled = (self._units, self._before) if is_settled else (None, None)
        return Sites(decided, *settled, self._read_as_is)

    @property
    def decided(self) -> Decisions:
        """What is decided of the component."""
        decided = self._decided()
        assert decided is not None
        return decided

    @property
    def component(self) -> Component:
        """The component."""
        return self.decided.component

    @property
    def left(self) -> frozenset[nn.Module]:
        """The modules that run as they are."""
        return self.outline.left

    @property
    def are_by_parts(self) -> bool:
        """Whether something of the component runs by its parts."""
        return self.outline.are_by_parts

    @property
    def read_as_is(self) -> set[StoredWeight]:
        """The weights that modules read which run their own Python."""
        self._look()
        return self._read_as_is

    @property
    def settled(self) -> bool:
        """Whether every weight of the component has its device, which programs compiled later keep."""
        self._look()
        return self._units is not None

    @property
    def before(self) -> AssignedWeights | None:
        """What was decided of the weights when they got their devices by name."""
        self._look()
        return self._before

    def leave(self, modules: Collection[nn.Module]) -> None:
        """Has these parts of the component run as they are from now on, and what contains them run by its parts.

        The rest stays compiled. For parts that have hooks, a cache, or a ``forward`` of somebody else. Programs that
        were compiled before keep what they were compiled from: forget those of modules that contain one.
        """
        self.outline.left = frozenset(modules)
        self.outline.looks += 1

    def forget(self) -> None:
        """Looks at the module anew at the next call; weights keep their devices."""
        self.outline.forgotten += 1

    def _look(self) -> None:
        """Drops what does not hold of the modules any more."""
        now, adapters = (self.outline.looks, self.outline.forgotten), self.component.adapters.stamp
        if now == self._known and adapters is self._adapters:
            return
        if self._known[1] != self.outline.forgotten:
            self._units = self._before = None
            self._read_as_is.clear()
        self._known, self._adapters = now, adapters
        for sites in self._sites:
            sites.clear()
        self._around.clear()

    def place(self, module: nn.Module, program: Program) -> None:
        """Gives a fresh program of the component or of a part of it its devices, and weights the homes they have.

        What other parts hold of a device is not offered again.
        Once the component runs by its parts, a program gets only the devices that its weights are on.
        """
        if self.are_by_parts:
            self.settle()
        assigned = self.decided.assigned
        program.rig = self.decided.offer(assigned.read_by(module, program))
        assigned.constrain(module, program)
        if self.settled:
            used = [one for one in program.devices if one in program.home.values()]
            program.rig = program.rig.only(used or program.devices[:1])

    def main_of(self, module: nn.Module) -> Device:
        """The main device of a program of the component, or of a part of it."""
        devices = self.decided.devices
        if not self.are_by_parts:
            return devices[0]
        self.settle()
        homes = self._homes(self.component.view.weights(module))
        return next((one for one in devices if one.name in homes), devices[0])

    def settle(self) -> None:
        """Gives every weight of the component a device, once."""
        if self.settled:
            return
        component, decided, assigned = self.component, self.decided, self.decided.assigned
        held = {one.name: one for one in component.view.weights()}
        weights, places = _described(held), {name: assigned.place(one) for name, one in held.items()}
        given = {name: Assigned(at.home, (), at.residency) for name, at in places.items() if at.home is not None}
        rig = decided.offer(list(held.values()))
        residency = {name: at.residency for name, at in places.items()}
        assignment = split_by_name(weights, rig, decided.plan.shares, given, residency)
        self.check(assignment)
        self._before = assigned.snapshot()
        fresh = {held[name]: one for name, one in assignment.items() if name not in given}
        assigned.assign(fresh, staged=False)  # what was given, programs may have counted already
        assigned.count_staged(self.read_as_is)
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
        check_weights(component.name or type(component.module).__name__, weights, assignment, self.decided.offer(held))

    def of(self, module: nn.Module, keeps: bool = False) -> Site:
        """Where and how a part runs its own Python; one that ``keeps`` what it is given has nothing compiled in it.

        Weights get their devices by name meanwhile, unless nothing of the component runs on its devices yet.
        """
        self._look()
        sites = self._sites[keeps]
        if module not in sites:
            self.outline.are_by_parts = True
            if self._main is not None:
                self.settle()
            sites[module] = self._find_site(module, keeps)
            self.read_as_is.update(sites[module].needs)
            self.decided.assigned.count_staged(sites[module].needs)
        return sites[module]

    def note_read(self, held: StoredWeight, device: Device) -> None:
        """Counts a weight that the Python of a module that opens reads on a device, without calling the part it is of.

        One whose home is elsewhere, or that is packed there, is copied, and the copy stays.
        """
        assigned = self.decided.assigned
        if held.quant or assigned.place(held).home not in (None, device):
            assigned.count_copy(held, device)
        elif held not in self.read_as_is:
            self.read_as_is.add(held)
            assigned.count_staged([held])

    @property
    def _main(self) -> Device | None:
        """Where what lies outside of blocks runs; None while nothing runs on the devices of the component."""
        decided = self.decided
        is_there = decided.plan.rig.present and decided.whole_on == decided.devices[0]
        return decided.whole_on if is_there else None

    def _find_site(self, module: nn.Module, keeps: bool) -> Site:
        component, main = self.component, self._main
        inside = component.view.weights(module)
        has_parts = next(module.children(), None) is not None
        opens = has_parts and ((not keeps and _calls_its_parts(module)) or self._has_to_open(module, inside))
        is_left = module in self.left
        around = component.view.weights() if is_left else inside  # which its hooks may read
        if not inside:
            return Site(None, opens, (), is_looked_at=bool(around))
        own, homes = _own_weights(component, module), self._homes(inside)
        if main is None:
            return Site(self.decided.whole_on, opens, tuple(own if opens else inside), is_looked_at=opens or is_left)
        device = _only(homes) or _only(self._homes(own)) or main
        stays = self._staying(inside, device) if opens else ()
        is_looked_at = (opens or is_left) and len(self._staying(around, device)) < len(around)
        return Site(device, opens, tuple(own if opens else inside), stays, is_looked_at)

    def _has_to_open(self, module: nn.Module, inside: Sequence[StoredWeight]) -> bool:
        """Whether a part cannot run as it is: its weights are packed, lie on several devices, or come and go."""
        if any(one.quant for one in inside):
            return True
        stays = all(self.decided.assigned.place(one).residency is Residency.DEVICE for one in inside)
        several = len(self._homes(inside)) > 1 or not stays or self.contain_left(module)
        units = {self._units[one] for one in inside if self._units and one in self._units}
        return several and (len(units) > 1 or self._main is None or module in self.left)

    def _staying(self, held: Collection[StoredWeight], device: Device) -> tuple[StoredWeight, ...]:
        """The weights that are on a device as they are read, once they were brought there."""
        places = {one: self.decided.assigned.place(one) for one in held}
        return tuple(
            one
            for one, at in places.items()
            if at.home == device and at.residency is Residency.DEVICE and not one.quant
        )

    def _homes(self, held: Collection[StoredWeight]) -> dict[str, Device]:
        homes = (self.decided.assigned.place(one).home for one in held)
        return {home.name: home for home in homes if home is not None}

    def contain_left(self, module: nn.Module) -> bool:
        """Whether something in a part runs as it is."""
        self._look()
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


def _only(homes: Mapping[str, Device]) -> Device | None:
    return next(iter(homes.values())) if len(homes) == 1 else None

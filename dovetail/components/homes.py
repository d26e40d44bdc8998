"""Which device each weight of a component was given, and what it takes there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn

from ..compiler.ir.program import Program, Weight
from ..compiler.ir.slices import Bounds
from ..compiler.spec.devices import Device, canonical_name
from ..lora.adapters import plain_name
from ..runtime.store.stored_weight import StoredWeight
from .module_view import ModuleView, locked


class Homes:
    """The devices of the weights of a component, which its programs share, so that programs made later agree."""

    def __init__(self, view: ModuleView) -> None:
        self._view = view
        self.store = view.store
        self._bounds: dict[StoredWeight, Bounds] = {}
        self._planned: dict[tuple[StoredWeight, tuple[int, int] | None], tuple[str, int]] = {}
        self._staged: set[StoredWeight] = set()

    @locked
    def bytes_on(self, apart_from: Iterable[StoredWeight] = ()) -> Counter[str]:
        """Bytes that were brought to each device, or are brought there for a reading, by the device's name.

        Weights ``apart_from`` which they are counted do not count.
        """
        placed: Counter[str] = Counter()
        left_out = set(apart_from)
        for one in self._view.weights():
            if one in left_out:
                continue
            if one.home and one not in self._staged:
                placed[one.home.name] += one.nbytes
            for (_, _, device), part in one.parts.items():
                name = canonical_name(str(device))
                placed[name] += 0 if one.home and one.home.name == name else part.nbytes
        for (one, _), (name, nbytes) in self._planned.items():
            placed[name] += 0 if one in left_out else nbytes
        return placed

    @locked
    def read_by(self, module: nn.Module, program: Program) -> list[StoredWeight]:
        """The weights of the component that a program reads."""
        known = self._view.by_name(module)
        read = (program.weight(node) for node in program.weight_nodes() if node.users)
        return [one for weight in read if (one := _find(weight, known))]

    @locked
    def given(self, module: nn.Module, program: Program) -> dict[str, Device]:
        """Which of a program's devices its weights have already; the program is of a part of the component."""
        known = self._view.by_name(module)
        found = ((weight.name, _find(weight, known)) for weight in program.weights.values())
        return {name: one.home for name, one in found if one and one.home and one.home in program.devices}

    @locked
    def bounds(self, module: nn.Module, program: Program) -> dict[str, Bounds]:
        """Within which bounds other programs slice the weights of a program."""
        known = self._view.by_name(module)
        found = ((weight.name, _find(weight, known)) for weight in program.weights.values())
        return {name: self._bounds[one] for name, one in found if one in self._bounds}

    @locked
    def note_bounds(self, module: nn.Module, program: Program) -> None:
        """Has the programs to come slice weights as this one does."""
        known = self._view.by_name(module)
        self._bounds |= {known[name]: bounds for name, bounds in program.bounds.items() if name in known}

    @locked
    def settle(self, module: nn.Module, program: Program) -> None:
        """Notes where a program's weights are read, and brings none there: for planning, and for what is staged."""
        known = self._view.by_name(module)
        for weight in program.weights.values():
            one, home = _find(weight, known), program.home.get(weight.name)
            if one is None or home is None:
                continue
            if program.stages(weight, home):
                self._planned[one, weight.rows] = home.name, weight.nbytes
                self._staged.add(one)
            if not weight.rows and (one.home is None or one.home not in program.devices):
                one.home = home

    @locked
    def assign(self, homes: Mapping[StoredWeight, Device]) -> None:
        """Settles on which devices weights are read, those that have no home yet, and brings none there."""
        for one, device in homes.items():
            one.home = one.home or device
            if self._view.residency.stages_on(one.home) and isinstance(one.tensor, nn.Parameter):
                self._planned[one, None] = one.home.name, one.nbytes
                self._staged.add(one)

    @locked
    def set_types(self, module: nn.Module, program: Program) -> None:
        """Lets each weight of a fresh program that has no data rest in the type in which its file has it."""
        known = self._view.by_name(module)
        for weight in list(program.weights.values()):
            one = _find(weight, known)
            quant = one.origin.quant_of(weight) if one and one.tensor.is_meta and one.origin else ""
            if quant:
                program.weights[weight.name] = replace(weight, quant=quant)

    @locked
    def rehome(self, device: Device, home: Device) -> None:
        """Has the weights of one device be those of another, where they would lie if this were no planning alone."""
        for one in self._view.weights():
            if one.home == device:
                one.home = home

    def forget(self) -> None:
        """Forgets what is brought to devices for readings."""
        self._planned.clear()
        self._staged.clear()


def _find(weight: Weight, known: Mapping[str, StoredWeight]) -> StoredWeight | None:
    return next((known[name] for name in map(plain_name, weight.names) if name in known), None)

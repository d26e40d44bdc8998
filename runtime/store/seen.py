"""The weights that modules held at one look, to tell at the next whether somebody changed them.

A look compares objects, addresses, strides and counters, never numbers: what is written through ``.data`` is not seen.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...compiler.frontend.trace_lock import alone
from ..devices.accelerator import Accelerator
from .pinning import pin_in_place
from .source import tensors_of_module
from .stored_weight import ORDINARY, Data, Layout, StorageReference, memory_of, stands_in, storage_of, version_of

_VERSION, _WANTS = operator.attrgetter("_version"), operator.attrgetter("requires_grad")
_IS_TENSOR = torch.Tensor.__instancecheck__
_POINTER, _IS_FREED = operator.attrgetter("cdata"), torch.UntypedStorage._expired
_STRIDES, _COUNT = torch.Tensor.stride, torch.Tensor.numel


@dataclass(frozen=True)
class Seen:
    """Some modules, the dictionaries that hold weights, what is in them, and where and how new the data of each was.

    ``tensors`` are those with data: a stand-in is what it is until another tensor takes its place, or its object
    becomes another one (`torch.utils.swap_tensors`), which ``kinds`` tell, or stands for other numbers, for instance in
    another dtype, which ``forms`` tell of the ``stand_ins``.
    ``storages`` tell that this data is still there: when it is freed, other data may come to lie in its place.
    ``held`` tells in which places, by the address of the dictionary and the name, there was a tensor.
    ``wanting`` tells which of all required gradients. ``are_plain`` tells that C can ask all of them at once.
    """

    modules: list[nn.Module]
    places: list[dict[str, Any]]
    values: list[Any]
    kinds: list[type]
    stand_ins: list[Any]
    forms: list[Any]
    tensors: list[torch.Tensor]
    memory: list[Any]
    layouts: list[Layout]
    versions: list[int]
    storages: list[StorageReference | None]
    wanting: list[bool]
    are_plain: bool
    held: frozenset[tuple[int, str]]

    @classmethod
    def of(cls, modules: list[nn.Module], root: nn.Module | None = None) -> Seen:
        """The weights that these modules hold themselves, and a root that is none of them."""
        held = modules if root is None else (root, *modules)
        return cls.within(modules, [place for one in held for place in (one._parameters, one._buffers)])

    @classmethod
    def within(cls, modules: list[nn.Module], places: list[dict[str, Any]]) -> Seen:
        """The weights in some dictionaries of modules."""
        values = _held(places)
        tensors = [value for value in values if value is not None and not stands_in(value)]
        memory, versions = list(map(memory_of, tensors)), list(map(version_of, tensors))
        are_plain = all(type(one) in ORDINARY and not one.is_inference() for one in tensors)
        storages = list(map(storage_of, tensors))
        layouts = _layouts(tensors)
        kinds = list(map(type, values))
        wanting = _wanting(values)
        stand_ins = [value for value in values if value is not None and stands_in(value)]
        forms = _forms(stand_ins)
        held = frozenset((id(place), key) for place in places for key, value in place.items() if value is not None)
        return cls(
            modules, places, values, kinds, stand_ins, forms, tensors, memory, layouts, versions, storages, wanting,
            are_plain, held,
        )  # fmt: skip

    def is_current(self) -> bool:
        """Whether the dictionaries still hold the same tensors, and nobody has written these."""
        memory, version = (torch.Tensor.data_ptr, _VERSION) if self.are_plain else (memory_of, version_of)
        try:
            return (
                _are(_held(self.places), self.values)
                and list(map(type, self.values)) == self.kinds
                and _are(_forms(self.stand_ins), self.forms)
                and list(map(memory, self.tensors)) == self.memory
                and list(map(version, self.tensors)) == self.versions
                and _layouts(self.tensors) == self.layouts
                and not any(map(_IS_FREED, map(_POINTER, filter(None, self.storages))))
            )
        except RuntimeError:  # another thread puts something in, or a tensor is of another kind now
            return False

    def data(self) -> dict[int, tuple[Data, int] | torch.Tensor | None]:
        """The data of each tensor and how often it had been written, by the tensor's id; of a stand-in its form."""
        data = zip(zip(self.memory, self.layouts, self.storages, strict=True), self.versions, strict=True)
        forms = zip(map(id, self.stand_ins), self.forms, strict=True)
        return dict.fromkeys(map(id, self.values)) | dict(forms) | dict(zip(map(id, self.tensors), data, strict=True))

    def lacks(self, before: Seen) -> bool:
        """Whether a tensor was taken out since an earlier look, of a place that was there then and still is."""
        there = set(map(id, self.places))
        return any(one[0] in there for one in before.held - self.held)

    def wants_the_same(self) -> bool:
        """Whether the same tensors require gradients."""
        return _wanting(self.values) == self.wanting


def _held(places: list[dict[str, Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(dict.values, places)))


def _are(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _forms(stand_ins: list[Any]) -> list[Any]:
    """What stand-ins have the form of: another object each time that one is put there, or comes to other numbers."""
    return [vars(one).get("like") for one in stand_ins]


def _layouts(tensors: list[torch.Tensor]) -> list[Layout]:
    return list(zip(map(_STRIDES, tensors), map(_COUNT, tensors), strict=True))


def _wanting(values: list[Any]) -> list[bool]:
    return list(map(_WANTS, filter(_IS_TENSOR, values)))


class ModuleWeights:
    """The weights of a module that is somebody else's: read as they are, and looked at again where that changed.

    The module is kept alive. A look waits until no other thread traces the module, which then holds stand-ins.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._children: list[dict[str, Any]] = []
        self._modules: list[Any] = []
        self._seen: Seen | None = None

    def look(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers, under every name they have."""
        with alone():
            modules = list(self._module.modules())
            self._children = [one._modules for one in modules]
            self._modules = _held(self._children)
            self._seen = Seen.of(modules)
            return tensors_of_module(self._module)

    def emptied(self) -> set[str]:
        """The names, in each module, of parameters and buffers that are None."""
        with alone():
            return {
                f"{path}.{name}" if path else name
                for path, one in self._module.named_modules(remove_duplicate=False)
                for held in (one._parameters, one._buffers)
                for name, tensor in held.items()
                if tensor is None
            }

    def pin(self, tensors: Iterable[torch.Tensor], there: Accelerator) -> tuple[list[torch.Tensor], bool]:
        """Moves weights within their objects, as `pin_in_place` does; the module is to be looked at again then."""
        with alone():
            return pin_in_place(tensors, there)

    def is_changed(self) -> bool:
        """Whether somebody replaced or wrote a weight, or replaced a module, since the last look."""
        if self._seen is None or self._is_as_seen(self._seen):
            return False
        with alone():
            return not self._is_as_seen(self._seen)

    def _is_as_seen(self, seen: Seen) -> bool:
        return _are(_held(self._children), self._modules) and seen.is_current()

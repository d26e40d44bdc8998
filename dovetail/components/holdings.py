"""Every weight of a pipeline, held once, wherever its data lies.

A weight is a tensor in one or more places of one or more modules. Its data is in that tensor, or beside it, in parts:
packed bytes, rows on several devices, copies for second devices; or it is in a file alone. Where a module's own tensor
has no data, a stand-in on meta keeps its place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ..compiler.checkpoints.entries import WeightEntry
from ..compiler.errors import WeightError
from ..compiler.ir.program import Weight
from ..compiler.spec.devices import Device
from ..lora.adapters import plain_name
from ..runtime.devices.transfers import moved
from ..runtime.store.reader import WeightReader
from ..runtime.store.source import check_matches, on_device
from .sharing import ForkSafeLock, Sharing

Slot = tuple[dict[str, Any], str]
"""Where a module holds a weight: a dictionary and a key."""

Part = tuple[tuple[int, int] | None, str, torch.device]
"""What lies beside a module's own tensor: the rows, the GGUF type, and the device."""

Updated = Callable[[str, "tuple[int, int] | None", torch.Tensor], torch.Tensor]
"""Adds what is merged into a weight of a name to rows of it that were read from a file."""


class Files(Protocol):
    """Where the weights of a component lie, by the first name that it has for each."""

    @property
    def index(self) -> Mapping[str, WeightEntry]:
        """Where each weight lies."""

    @property
    def reader(self) -> WeightReader:
        """Reads them."""

    def __call__(self, name: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Reads a whole weight in the dtype of its stand-in; one that is packed is unpacked."""


@dataclass(eq=False)
class Held:
    """One weight.

    Where it has no data in the modules, ``tensor`` is on meta; modules may hold ``shown`` in its place, one number that
    looks like all, so that libraries see a device. ``home`` is the device that a program gave it, ``before`` where it
    was when it was brought elsewhere. What is in ``parts`` stays, what is in ``staged`` is dropped with its phase.
    ``noted`` tells the memory of what was put into the modules last, and how often it had been written.
    """

    name: str
    tensor: torch.Tensor
    slots: list[Slot] = field(default_factory=list)
    shown: torch.Tensor | None = None
    files: Files | None = None
    updated: Updated | None = None
    home: Device | None = None
    before: torch.device | None = None
    parts: dict[Part, torch.Tensor] = field(default_factory=dict)
    staged: dict[Part, torch.Tensor] = field(default_factory=dict)
    noted: tuple[Any, int] | None = None

    @property
    def entry(self) -> WeightEntry | None:
        """Where it lies in a file."""
        return None if self.files is None else self.files.index.get(self.name)

    @property
    def nbytes(self) -> int:
        """Bytes of it as it rests."""
        entry = self.entry
        return entry.nbytes if self.tensor.is_meta and entry and entry.is_packed else self.tensor.nbytes

    @property
    def has_data(self) -> bool:
        """Whether it has numbers anywhere: in the module, in a file or on devices."""
        return not self.tensor.is_meta or self.entry is not None or bool(self.parts)

    def is_in(self, place: dict[str, Any], key: str) -> bool:
        """Whether a module held it there at the last look."""
        return any(one is place and name == key for one, name in self.slots)

    def whole(self, device: torch.device) -> torch.Tensor:
        """All of it, dense, on a device, from where it rests."""
        if not self.tensor.is_meta:
            return moved(self.tensor, device)
        if self.files is not None and self.entry is not None:
            return self._with_updates(None, self.files(self.name, self.tensor, device))
        return moved(self.gathered().to(self.tensor.dtype), device)

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight, on a device, from where it rests: rows of it, packed bytes, or all."""
        entry = self.entry
        if not self.tensor.is_meta:
            check_matches(weight, self.tensor)
            return on_device(weight, self.tensor, device)
        if entry is None or self.files is None:
            return on_device(weight, self.gathered(), device)
        if not weight.rows and not weight.quant:
            return self.whole(device)
        rows = entry.slice(*weight.rows) if weight.rows else entry
        if weight.quant:
            return self.files.reader.read(rows.packed(), torch.uint8, device)
        return self._with_updates(weight.rows, self.files.reader.read(rows, weight.dtype, device))

    def _with_updates(self, rows: tuple[int, int] | None, data: torch.Tensor) -> torch.Tensor:
        return self.updated(self.name, rows, data) if self.updated else data

    def gathered(self) -> torch.Tensor:
        """All of it in host memory, out of its rows on several devices; raises WeightError where it has none."""
        host = torch.device("cpu")
        rows = {span: part for (span, quant, _), part in self.parts.items() if span and not quant}
        if not rows:
            raise WeightError(f"weight {self.name} is on meta and has no data: load the weights first")
        return torch.cat([moved(rows[key], host) for key in sorted(rows)])


class Holdings:
    """The weights of several modules; one that two of them hold, or that lies in a file once, is one.

    Programs run while they share ``sharing``; what changes programs or their weights has it alone. ``lock`` is held
    while weights are looked up or moved, never while anything is computed.
    """

    def __init__(self) -> None:
        self.sharing = Sharing()
        self.lock = ForkSafeLock()
        self._modules: list[tuple[weakref.ref[nn.Module], Files | None, Updated | None]] = []
        self._held: dict[int, Held] = {}

    def add(self, module: nn.Module, files: Files | None = None, updated: Updated | None = None) -> None:
        """Takes in the weights of a module, which lie in files where they have no data."""
        self._modules.append((weakref.ref(module), files, updated))
        self.survey()
        self._join_ranges()

    def survey(self) -> None:
        """Looks where the modules hold weights; to be called when their structure may have changed."""
        known, self._held = self._held, {}
        for reference, files, updated in self._modules:
            module = reference()
            for path, child in module.named_modules() if module is not None else ():
                for held in (child._parameters, child._buffers):
                    for key, tensor in held.items():
                        if tensor is not None:
                            one = self._note(known, tensor, plain_name(f"{path}.{key}" if path else key))
                            one.slots.append((held, key))
                            if one.files is None:
                                one.files, one.updated = files, updated

    def _note(self, known: dict[int, Held], tensor: torch.Tensor, name: str) -> Held:
        if id(tensor) not in self._held:
            one = known.get(id(tensor)) or Held(name, tensor)
            one.slots = []
            self._held[id(tensor)] = self._held[id(one.tensor)] = one
        return self._held[id(tensor)]

    def of(self, tensor: torch.Tensor) -> Held:
        """The weight that a tensor of a module is; looks again where it is not known."""
        if id(tensor) not in self._held:
            self.survey()
        return self._held[id(tensor)]

    def put(self, held: Held, data: torch.Tensor) -> torch.Tensor:
        """Puts other data, or a stand-in, in every place where modules hold a weight; returns what they hold now."""
        held.before = held.before or held.tensor.device
        if isinstance(held.tensor, nn.Parameter) and not isinstance(data, nn.Parameter):
            data = nn.Parameter(data, requires_grad=held.tensor.requires_grad)
        self.restore(held, data)
        return data

    def restore(self, held: Held, tensor: torch.Tensor) -> None:
        """Lets modules hold a tensor that they held before."""
        self._held.pop(id(held.tensor), None)
        self._held.pop(id(held.shown), None)
        held.tensor, held.shown = tensor, None
        held.noted = memory_of(tensor), version_of(tensor)
        self._hand_out(held, tensor)

    def show(self, held: Held, device: torch.device) -> None:
        """Lets modules hold one number that looks like all of a weight without data, and lies on a device."""
        one = torch.zeros((), dtype=held.tensor.dtype, device=device).expand(held.tensor.shape)
        held.shown = nn.Parameter(one, requires_grad=held.tensor.requires_grad)
        self._hand_out(held, held.shown)

    def known(self, tensor: torch.Tensor | None) -> Held | None:
        """The weight that a tensor of a module was at the last look, or None."""
        return self._held.get(id(tensor))

    def behind(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor of a module stands for: a weight without data is on meta, in the strides that it has."""
        held = self._held.get(id(tensor))
        return tensor if held is None else held.tensor

    def _hand_out(self, held: Held, tensor: torch.Tensor) -> None:
        self._held[id(tensor)] = held
        for place, key in held.slots:
            place[key] = tensor

    def take_out(self, held: Held) -> None:
        """Takes the data of a weight out of the modules, which keep a stand-in."""
        if not held.tensor.is_meta:
            self.put(held, torch.empty_like(held.tensor, device="meta"))

    def forget_parts(self, held: Held) -> None:
        """Lets go of what lies beside the modules; rows that lie nowhere else go back into them, to host memory."""
        if held.tensor.is_meta and held.entry is None and held.parts:
            self.put(held, held.gathered().to(held.tensor.dtype))
        held.parts.clear()
        held.staged.clear()

    def _join_ranges(self) -> None:
        """Makes one weight of those without data that lie in the same place of a file."""
        seen: dict[Any, Held] = {}
        for held in list(self._held.values()):
            if held.tensor.is_meta and held.entry is not None:
                first = seen.setdefault((held.entry, held.tensor.dtype, tuple(held.tensor.shape)), held)
                if first is not held:
                    first.slots += held.slots
                    self.restore(first, first.tensor)
                    del self._held[id(held.tensor)]


_ORDINARY = (torch.Tensor, nn.Parameter)


def memory_of(tensor: torch.Tensor | None) -> Any:
    """What tells the memory of a tensor from any other while both are there."""
    if type(tensor) in _ORDINARY:
        return tensor.data_ptr()  # type: ignore[union-attr]
    return getattr(tensor, "memory", None)


def version_of(tensor: torch.Tensor | None) -> int:
    """How often a tensor was written in place."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version

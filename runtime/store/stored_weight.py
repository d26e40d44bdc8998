"""One weight of a store: where its numbers come from, where they are, and who shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ...compiler.errors import WeightError
from ...compiler.ir.slices import Bounds
from ...compiler.ir.weight import Weight
from ...compiler.spec.devices import Device
from ...compiler.spec.residency import Residency
from ..devices.transfers import moved
from .origin import HOST, FileOrigin, Origin, TensorOrigin

Place = tuple[dict[str, Any], str]
"""Where a module holds a weight: a dictionary and a key."""

Part = tuple[tuple[int, int] | None, str, torch.device]
"""What lies beside a weight's own tensor: the rows, the GGUF type, and the device."""


@dataclass(eq=False)
class StoredWeight:
    """One weight.

    Where it has no data in a tensor of its own, ``tensor`` is on meta and has its shape and dtype alone; modules may
    hold ``shown`` in its place, one number that looks like all, so that libraries see a device. What is in ``parts``
    stays on its device, what is in ``staged`` until it is released.

    Args:
        name: its first name, without what adapters put into names.
        tensor: its own tensor, which it moves with, unless that is ``borrowed``: then it stays where it is.
        origin: gives its numbers where the tensor has none.
        owner: whose weight it is, for messages.
        residency: where it rests while nobody computes with it.
        places: where modules hold its tensor.
        home: the device that it was assigned, unless it was assigned rows of it to several.
        bounds: the rows that it was assigned to each device, if so.
        before: where it was when it was brought elsewhere first.
        noted: the data of what was put into the modules last, and how often that had been written.
    """

    name: str
    tensor: torch.Tensor
    origin: Origin | None = None
    owner: str = ""
    residency: Residency = Residency.DEVICE
    borrowed: bool = False
    places: list[Place] = field(default_factory=list)
    shown: torch.Tensor | None = None
    home: Device | None = None
    bounds: Bounds = ()
    before: torch.device | None = None
    parts: dict[Part, torch.Tensor] = field(default_factory=dict)
    staged: dict[Part, torch.Tensor] = field(default_factory=dict)
    noted: tuple[Data, int] | None = None

    @property
    def file(self) -> FileOrigin | None:
        """The range of files that has its numbers, if one has."""
        return None if self.origin is None else self.origin.file

    @property
    def quant(self) -> str:
        """The type in whose blocks a file has it packed, while it has no data elsewhere; else nothing."""
        file = self.file if self.tensor.is_meta else None
        return file.entry.quant if file is not None and file.entry.is_packed else ""

    @property
    def nbytes(self) -> int:
        """Bytes of it as it rests."""
        return self.file.entry.nbytes if self.quant and self.file is not None else self.tensor.nbytes

    @property
    def has_data(self) -> bool:
        """Whether it has numbers anywhere: in its tensor, in a file or on devices."""
        return not self.tensor.is_meta or self.origin is not None or bool(self.parts)

    def is_held(self, weight: Weight, device: torch.device) -> bool:
        """Whether some of the numbers that a program knows as a weight stay on a device beside its own tensor."""
        kept = (rows for rows, _, there in (*self.parts, *self.staged) if there == device)
        return any(rows is None or weight.rows is None or _overlap(rows, weight.rows) for rows in kept)

    def is_in(self, place: dict[str, Any], key: str) -> bool:
        """Whether a module held it there at the last look."""
        return any(one is place and name == key for one, name in self.places)

    def check(self, weight: Weight) -> None:
        """Raises WeightError where it cannot be what a program knows as a weight, which was traced with another."""
        if self.tensor.is_meta and self.origin is not None:
            self.origin.check(weight)
        elif not self.tensor.is_meta:
            TensorOrigin(self.tensor).check(weight)

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight, on a device, from where it is: rows of it, packed bytes, or all."""
        return self._source().read(weight, device)

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """Fills memory on a device with what a program knows as a weight, from where it is."""
        self._source().read_into(weight, place)

    def whole(self, device: torch.device) -> torch.Tensor:
        """All of it, dense, on a device, from where it is."""
        return self._source().whole(self.tensor.dtype, device)

    def _source(self) -> Origin:
        if not self.tensor.is_meta:
            return TensorOrigin(self.tensor)
        return self.origin or TensorOrigin(self.gathered())

    def gathered(self) -> torch.Tensor:
        """All of it in host memory, out of its rows on several devices; raises WeightError where it has none."""
        rows = {span: part for (span, quant, _), part in self.parts.items() if span and not quant}
        if not rows:
            raise WeightError(
                f"weight {self.name} is on meta and has no data: load the weights first, or give them to dovetail.load"
            )
        return torch.cat([moved(rows[key], HOST) for key in sorted(rows)])


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


ORDINARY = (torch.Tensor, nn.Parameter)

Layout = tuple[tuple[int, ...], int]
"""The strides of a tensor, and how many numbers it has."""

Data = tuple[Any, Layout | None, StorageWeakRef | None]
"""Which memory a tensor has and how it reads it, in terms that no other memory ever has while this is held."""


def memory_of(tensor: torch.Tensor | None) -> Any:
    """What tells the memory of a tensor from any other while both are there."""
    if type(tensor) in ORDINARY:
        return tensor.data_ptr()  # type: ignore[union-attr]
    return getattr(tensor, "memory", None)


def storage_of(tensor: torch.Tensor | None) -> StorageWeakRef | None:
    """A reference to the storage of an ordinary tensor, equal to no later one's at its address; others have none."""
    return StorageWeakRef(tensor.untyped_storage()) if type(tensor) in ORDINARY else None  # type: ignore[union-attr]


def data_of(tensor: torch.Tensor | None) -> Data:
    """What tells the data of a tensor from other data, also at the same address, or in another layout."""
    return memory_of(tensor), None if tensor is None else (tensor.stride(), tensor.numel()), storage_of(tensor)


def version_of(tensor: torch.Tensor | None) -> int:
    """How often a tensor was written in place."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version

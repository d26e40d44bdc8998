"""One weight of a store: where its numbers come from, where they are, and who shows them."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ...compiler.devices.device import Device
from ...compiler.errors import WeightError
from ...compiler.frontend.fakes import STANDS_IN
from ...compiler.ir.part import Part, joined
from ...compiler.ir.slices import Bounds
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from ..devices.accelerator import has_memory
from ..devices.transfers import moved
from ..devices.wrapped import bytes_of
from .origin import HOST, FileOrigin, Origin, TensorOrigin

if TYPE_CHECKING:
    from .former import Former
    from .kept import KeptLoad

Place = tuple[dict[str, Any], str]
"""Where a module holds a weight: a dictionary and a key."""

PartKey = tuple[Part | None, str, torch.device]
"""What lies beside a weight's own tensor: the part, the GGUF type, and the device."""


@dataclass(eq=False)
class Numbers:
    """The numbers of a weight, which its stand-ins know too: data, or an origin, or the parts that lie on devices.

    ``weight`` is the weight while a store has it. So a stand-in keeps neither a module nor a store alive. ``given`` are
    the stand-ins that were detached from it, or look at parts of it, while somebody has them.
    """

    data: torch.Tensor | None = None
    origin: Origin | None = None
    parts: dict[PartKey, torch.Tensor] = field(default_factory=dict)
    like: torch.Tensor | None = None
    weight: weakref.ref[StoredWeight] | None = None
    given: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)

    @property
    def stored(self) -> StoredWeight | None:
        """The weight, while a store has it."""
        return None if self.weight is None else self.weight()

    @property
    def store(self) -> Any:
        """The store that has the weight, or None."""
        stored = self.stored
        return None if stored is None or stored.keeper is None else stored.keeper()

    def whole(self, device: torch.device) -> torch.Tensor:
        """All of them on a device, in the form of the weight: to be read, and not to be kept."""
        if self.data is not None:
            return moved(self.data.detach(), device)
        assert self.like is not None
        data = self.source.whole(self.like.dtype, device)
        if data.stride() == self.like.stride():
            return data
        return torch.empty_strided(data.size(), self.like.stride(), dtype=data.dtype, device=device).copy_(data)

    def write(self, is_lent: bool = False) -> torch.Tensor:
        """The weight's data, which is made if there is none; see `Store.write`."""
        stored, store, is_made = self.stored, self.store, self.data is None
        if stored is not None and store is not None:
            store.write(stored, is_lent)
        elif is_made:
            self.data, self.origin = self.owned(is_lent), None
        if is_made and not is_lent:
            self.hand_out()
        assert self.data is not None
        return self.data

    def hand_out(self) -> None:
        """Makes what was detached ordinary tensors of the data, which may be assigned to any other tensor's ``data``.

        What has a history in autograd stays what it is.
        """
        for one in list(self.given.values()):
            if stands_in(one) and one.grad_fn is None:
                one.become(one.write())

    def owned(self, is_lent: bool = False) -> torch.Tensor:
        """All of them in host memory, of their own unless they are lent: else in a view of the file, if there is one.

        What is written into such a view is lost when its memory is let go of.
        """
        data = self.whole(HOST)
        return data if is_lent or has_memory(data) else data.clone()

    @property
    def source(self) -> Origin:
        """What gives them now; raises WeightError where there are none."""
        if self.data is not None:
            return TensorOrigin(self.data)
        return self.origin or TensorOrigin(self.gathered())

    def gathered(self) -> torch.Tensor:
        """All of them in host memory, out of parts on several devices; raises WeightError where there are none."""
        parts = {which: data for (which, quant, _), data in self.parts.items() if which and not quant}
        if not parts:
            name = self.stored.name if self.stored else ""
            raise WeightError(
                f"weight {name} is on meta and has no data: have the module hold real weights, or name the files "
                "that have them (weights=…)"
            )
        return joined({which: moved(data, HOST) for which, data in parts.items()})


@dataclass(eq=False)
class StoredWeight:
    """One weight.

    It has data or an origin, never both: what a module holds wins over a file that has a weight of that name. Where it
    has no data in a tensor of its own, ``tensor`` is a stand-in, or on meta if no module holds it. What is in ``parts``
    stays on its device, what is in ``staged`` until the ``slots`` that have it are emptied.

    Args:
        name: its first name, without what adapters put into names.
        tensor: its own tensor, which it moves with, unless that is ``borrowed``: then it stays where it is.
        numbers: what it knows of its numbers; that it has data in its tensor is noted there by the store.
        owner: whose weight it is, for messages.
        residency: where it rests while nobody computes with it.
        places: where modules hold its tensor.
        holders: for each place the module, which is not kept alive.
        home: the device that it was assigned, unless it was assigned rows of it to several.
        bounds: the rows that it was assigned to each device, if so.
        before: where it was when it was brought elsewhere first.
        noted: the data of what was put into the modules last, and how often that had been written; None where somebody
            else put it there, or writes it.
        read_from: the origin that its data was brought from, as it was then.
        keeper: the store, for stand-ins.
        lasts: whether modules go on holding the same object, which is ours, whatever becomes of its numbers.
        former: the object that modules held before another came in its place.
    """

    name: str
    tensor: torch.Tensor
    numbers: Numbers = field(default_factory=Numbers)
    owner: str = ""
    residency: Residency = Residency.DEVICE
    borrowed: bool = False
    places: list[Place] = field(default_factory=list)
    holders: list[weakref.ref[nn.Module]] = field(default_factory=list)
    home: Device | None = None
    bounds: Bounds = ()
    before: torch.device | None = None
    staged: dict[PartKey, torch.Tensor] = field(default_factory=dict)
    slots: weakref.WeakSet[KeptLoad] = field(default_factory=weakref.WeakSet)
    noted: tuple[Data, int] | None = None
    read_from: Origin | None = None
    keeper: weakref.ref[Any] | None = None
    lasts: bool = False
    former: Former | None = None

    def __post_init__(self) -> None:
        if stands_in(self.tensor):
            self.numbers = self.tensor.numbers  # type: ignore[attr-defined]
        elif not self.tensor.is_meta:
            self.numbers.data = self.tensor
        if self.numbers.stored is None:
            self.numbers.weight = weakref.ref(self)

    @property
    def origin(self) -> Origin | None:
        """What gives its numbers while its tensor has none."""
        return self.numbers.origin

    @origin.setter
    def origin(self, origin: Origin | None) -> None:
        self.numbers.origin = origin

    @property
    def parts(self) -> dict[PartKey, torch.Tensor]:
        """What lies beside its tensor and stays there."""
        return self.numbers.parts

    @property
    def is_here(self) -> bool:
        """Whether its tensor has its numbers."""
        return self.numbers.data is not None

    @property
    def lies_on(self) -> torch.device:
        """The device of its numbers, if its tensor has them; else the device of what has none."""
        return self.tensor.device if self.is_here else torch.device("meta")

    @property
    def is_in_host_memory(self) -> bool:
        """Whether its data takes up memory of the host: a view of a file takes none."""
        return self.is_on(HOST) and has_memory(self.tensor)

    def is_as_noted(self) -> bool:
        """Whether its tensor has the data that was noted last, which nobody has written since."""
        return self.noted == (data_of(self.tensor), version_of(self.tensor))

    def is_on(self, device: torch.device) -> bool:
        """Whether its tensor has its numbers on a device."""
        return self.lies_on == device

    @property
    def source(self) -> Origin | None:
        """What gives its numbers beside its tensor: its origin, or what its data was brought from, if nobody wrote it.

        A write through ``.data`` of its tensor is not seen here.
        """
        if not self.is_here:
            return self.origin
        is_untouched = self.noted == (data_of(self.tensor), version_of(self.tensor))
        return self.read_from if is_untouched else None

    @property
    def file(self) -> FileOrigin | None:
        """The range of files that has its numbers, if one has."""
        source = self.source
        return None if source is None else source.file

    @property
    def quant(self) -> str:
        """The type in whose blocks a file has it packed, while it has no data elsewhere; else nothing."""
        origin = self.origin
        return origin.entry.quant if isinstance(origin, FileOrigin) and origin.entry.is_packed else ""

    @property
    def nbytes(self) -> int:
        """Bytes of it as it rests."""
        return self.file.entry.nbytes if self.quant and self.file is not None else bytes_of(self.tensor)

    @property
    def is_moved(self) -> bool:
        """Whether it lies elsewhere than it was, or in parts on several devices alone."""
        return bool(self.parts) if not self.is_here else self.before is not None and not self.is_on(self.before)

    @property
    def is_held_apart(self) -> bool:
        """Whether a module that is still there holds its tensor."""
        held = zip(self.places, self.holders, strict=True)
        return any(holder() is not None and place.get(key) is self.tensor for (place, key), holder in held)

    @property
    def has_data(self) -> bool:
        """Whether it has numbers anywhere: in its tensor, in a file or on devices."""
        return self.is_here or self.origin is not None or bool(self.parts)

    def is_held(self, weight: Weight, device: torch.device) -> bool:
        """Whether some of the numbers that a program knows as a weight stay on a device beside its own tensor."""
        kept = (part for part, _, there in (*self.parts, *self.staged) if there == device)
        return any(part is None or weight.which is None or part.overlaps(weight.which) for part in kept)

    def coming(self, key: PartKey) -> tuple[KeptLoad, torch.Tensor] | None:
        """The load that has some of it on its way into a slot, and the memory for that."""
        for load in list(self.slots):
            memory = load.coming.get((self, key))
            if memory is not None and not load.is_empty:
                return load, memory
        return None

    def leave_slots(self, but: Collection[tuple[Part | None, torch.device]] = ()) -> None:
        """Lets go of what slots have of it that are filled once, but for some parts on devices; they are empty then."""
        stays = {key: data for key, data in self.staged.items() if (key[0], key[2]) in but}
        if not stays or len(stays) < len(self.staged):
            self.staged = stays
            for one in list(self.slots):
                one.empty()

    def is_in(self, place: dict[str, Any], key: str) -> bool:
        """Whether a module held it there at the last look."""
        return any(one is place and name == key for one, name in self.places)

    def leave_numbers(self) -> Numbers:
        """Knows other numbers from now on; returns those that it had, which what was detached from it keeps."""
        left = self.numbers
        left.weight, left.data = None, None if left.data is None else left.data.detach()
        self.numbers = Numbers(like=left.like, weight=weakref.ref(self))
        return left

    def take_numbers(self, numbers: Numbers) -> None:
        """Has the numbers of a stand-in of no weight: what is written through either is written to both."""
        self.numbers = numbers
        numbers.weight = weakref.ref(self)

    def check(self, weight: Weight) -> None:
        """Raises WeightError where it cannot be what a program knows as a weight, which was traced with another."""
        if self.is_here or self.origin is not None:
            self.numbers.source.check(weight)

    def read(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight, on a device, from where it is: a part of it, packed bytes, or all."""
        return self.numbers.source.read(weight, device)

    def read_into(self, weight: Weight, place: torch.Tensor) -> None:
        """Fills memory on a device with what a program knows as a weight, from where it is."""
        self.numbers.source.read_into(weight, place)

    def whole(self, device: torch.device) -> torch.Tensor:
        """All of it, dense, on a device, from where it is."""
        return self.numbers.source.whole(self.tensor.dtype, device)


def stands_in(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a stand-in of a weight, whose numbers are elsewhere."""
    return hasattr(type(tensor), STANDS_IN)


ORDINARY = (torch.Tensor, nn.Parameter)

Layout = tuple[tuple[int, ...], int]
"""The strides of a tensor, and how many numbers it has."""


class StorageReference(StorageWeakRef):
    """A storage that is not kept alive, and that may also be compared with None, which PyTorch's own may not."""

    __slots__ = ()
    __hash__ = StorageWeakRef.__hash__  # which Python drops where equality is defined

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageWeakRef) and bool(super().__eq__(other))  # type: ignore[no-untyped-call]


Data = tuple[Any, Layout | None, StorageReference | None]
"""Which memory a tensor has and how it reads it, in terms that no other memory ever has while this is held."""


def memory_of(tensor: torch.Tensor | None) -> Any:
    """What tells the memory of a tensor from any other while both are there."""
    if type(tensor) in ORDINARY:
        return tensor.data_ptr()  # type: ignore[union-attr]
    return getattr(tensor, "memory", None)


def storage_of(tensor: torch.Tensor | None) -> StorageReference | None:
    """A reference to the storage of an ordinary tensor, equal to no later one's at its address; others have none."""
    if tensor is None or type(tensor) not in ORDINARY:
        return None
    return StorageReference(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def data_of(tensor: torch.Tensor | None) -> Data:
    """What tells the data of a tensor from other data, also at the same address, or in another layout."""
    return memory_of(tensor), None if tensor is None else (tensor.stride(), tensor.numel()), storage_of(tensor)


def version_of(tensor: torch.Tensor | None) -> int:
    """How often a tensor was written in place."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version

"""The one owner of weights: each is held once, wherever its numbers are, and brought to devices by this alone.

A weight is brought to its device when a program that reads it is loaded for the first time. It takes the place of the
tensor that modules hold, so that the memory it had before is free and a module still knows its weights. A weight that
no program has read yet stays where it was. Parameters that rest in host memory or on disk are brought to a device for
the segment that reads them, and stay until they are released.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ...compiler.errors import DoesNotFitError, WeightError
from ...compiler.frontend.refusals import foreign_library
from ...compiler.ir.weight import Weight
from ...compiler.spec.devices import Device, canonical_name
from ...compiler.spec.residency import Residency, evenly
from ...compiler.spec.units import format_bytes
from ..devices.accelerator import accelerator_of
from ..devices.fork import ForkSafeLock
from ..devices.out_of_memory import fetched, ran_out
from ..devices.transfers import land, moved
from .origin import HOST, FileOrigin, Origin
from .reader import WeightReader
from .stored_weight import Part, StoredWeight, data_of, version_of

Origins = Mapping[str, Origin]
"""Where the weights of a module come from, by the first name that it has for each."""

_WAY_OUT = "list more devices, or give {device} a smaller share (tensor_split, max_vram)"


class Store:
    """Weights, of one module or of all modules of a pipeline; what two modules hold, or a file has once, is one.

    ``lock`` is held while weights are looked up or moved, never while anything is computed.

    Args:
        name_of: gives the name of a weight for what a module calls it.
    """

    def __init__(self, name_of: Callable[[str], str] = lambda name: name) -> None:
        self.lock = ForkSafeLock()
        self.name_of = name_of
        self._modules: list[tuple[weakref.ref[nn.Module], Origins, Residency]] = []
        self._weights: dict[int, StoredWeight] = {}
        self._readers: set[WeightReader] = set()
        self._coming: set[torch.device] = set()

    def adopt(self, one: StoredWeight) -> StoredWeight:
        """Takes in a weight that no module holds."""
        if one.file is not None:
            self._readers.add(one.file.reader)
        return one

    def add(self, module: nn.Module, origins: Origins | None = None, residency: Residency = Residency.DEVICE) -> None:
        """Takes in the weights of a module, with where they come from if they have no data, and where they rest."""
        self._modules.append((weakref.ref(module), origins or {}, residency))
        self.survey()
        self._join_ranges()

    def forget(self, module: nn.Module | None) -> None:
        """Lets go of the weights of a module that was taken in, and of those that are gone; others keep theirs."""
        self._modules = [entry for entry in self._modules if entry[0]() not in (None, module)]
        self.survey()

    def rest_in(self, module: nn.Module, residency: Residency, in_memory: int = 0) -> None:
        """Has the parameters of a module that was taken in rest elsewhere, and so many bytes of them in host memory."""
        self._modules = [
            (known, origins, residency if known() is module else before) for known, origins, before in self._modules
        ]
        resting = list(dict.fromkeys(self.of(tensor) for tensor in module.parameters()))
        for one, on_host in zip(resting, evenly([one.nbytes for one in resting], in_memory), strict=True):
            one.residency = Residency.HOST if on_host else residency

    def survey(self) -> None:
        """Looks where the modules hold weights; to be called when their structure may have changed."""
        known, self._weights = self._weights, {}
        for reference, origins, residency in self._modules:
            module = reference()
            for path, child in module.named_modules() if module is not None else ():
                for place in (child._parameters, child._buffers):
                    for key, tensor in place.items():
                        if tensor is not None:
                            name = self.name_of(f"{path}.{key}" if path else key)
                            one = self._note(known, tensor, name, origins, residency, type(module).__name__)
                            one.places.append((place, key))

    def _note(
        self,
        known: dict[int, StoredWeight],
        tensor: torch.Tensor,
        name: str,
        origins: Origins,
        residency: Residency,
        owner: str,
    ) -> StoredWeight:
        if id(tensor) in self._weights:
            return self._weights[id(tensor)]
        one = known.get(id(tensor))
        if one is None:
            rests = residency if isinstance(tensor, nn.Parameter) else Residency.DEVICE
            one = self.adopt(StoredWeight(name, tensor, origins.get(name), owner, rests))
        one.places = []
        self._weights[id(tensor)] = self._weights[id(one.tensor)] = one
        return one

    def of(self, tensor: torch.Tensor) -> StoredWeight:
        """The weight that a tensor of a module is; looks again where it is not known."""
        if id(tensor) not in self._weights:
            self.survey()
        return self._weights[id(tensor)]

    def known(self, tensor: torch.Tensor | None) -> StoredWeight | None:
        """The weight that a tensor of a module was at the last look, or None."""
        return self._weights.get(id(tensor))

    def behind(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor of a module stands for: a weight without data is on meta, in the strides that it has."""
        one = self._weights.get(id(tensor))
        return tensor if one is None else one.tensor

    def put(self, one: StoredWeight, data: torch.Tensor) -> torch.Tensor:
        """Has other data, or a stand-in, be a weight's tensor wherever modules hold it; returns what they hold now."""
        one.before = one.before or one.tensor.device
        if isinstance(one.tensor, nn.Parameter) and not isinstance(data, nn.Parameter):
            data = nn.Parameter(data, requires_grad=one.tensor.requires_grad)
        self.restore(one, data)
        return data

    def restore(self, one: StoredWeight, tensor: torch.Tensor) -> None:
        """Lets modules hold a tensor that they held before."""
        self._weights.pop(id(one.tensor), None)
        self._weights.pop(id(one.shown), None)
        one.tensor, one.shown = tensor, None
        one.noted = data_of(tensor), version_of(tensor)
        self._hand_out(one, tensor)

    def show(self, one: StoredWeight, device: torch.device) -> None:
        """Lets modules hold one number that looks like all of a weight without data, and lies on a device."""
        number = fetched(partial(torch.zeros, (), dtype=one.tensor.dtype, device=device))
        one.shown = nn.Parameter(number.expand(one.tensor.shape), requires_grad=one.tensor.requires_grad)
        self._hand_out(one, one.shown)

    def _hand_out(self, one: StoredWeight, tensor: torch.Tensor) -> None:
        if one.places:
            self._weights[id(tensor)] = one
        for place, key in one.places:
            place[key] = tensor

    def take_out(self, one: StoredWeight) -> None:
        """Takes the data of a weight out of its tensor, and leaves a stand-in."""
        if not one.tensor.is_meta:
            self.put(one, torch.empty_like(one.tensor, device="meta"))

    def drop(self, one: StoredWeight) -> None:
        """Lets go of what was brought of a weight that lies in a file, unless modules hold it."""
        if one.places or one.file is None:
            return
        self.take_out(one)
        one.parts.clear()
        one.staged.clear()

    def forget_parts(self, one: StoredWeight) -> None:
        """Lets go of what lies beside the modules; rows that lie nowhere else go back into them, to host memory."""
        if one.tensor.is_meta and one.origin is None and one.parts:
            self.put(one, one.gathered().to(one.tensor.dtype))
        one.parts.clear()
        one.staged.clear()

    def place(self, one: StoredWeight, device: Device) -> torch.Tensor:
        """The weight on its device, where it is from now on; raises DoesNotFitError when there is no room."""
        one.home = one.home or device
        there = one.home.torch
        return one.tensor if one.tensor.device == there else self.bring(one, there)

    def bring(self, one: StoredWeight, device: torch.device, way_out: str = _WAY_OUT) -> torch.Tensor:
        """Brings a whole weight to a device, where its tensor is from now on."""
        return self.put(one, _fetched(one, one, device, partial(one.whole, device), way_out))

    def fetch(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight on a device; nothing of it is kept here."""
        return _fetched(one, weight, device, partial(one.read, weight, device))

    def copy_on(self, one: StoredWeight, device: torch.device) -> torch.Tensor:
        """A second copy of a whole weight, for a module that runs as it is on another device than its home."""
        return _once(one, (None, "", device), lambda: _fetched(one, one, device, partial(one.whole, device)))

    def part(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What stays on a device beside the weight's own tensor: rows, packed bytes, or a second copy; made once."""
        return _once(one, (weight.rows, weight.quant, device), lambda: self.fetch(one, weight, device))

    def stage(self, one: StoredWeight, weight: Weight, device: torch.device, keeps: bool) -> torch.Tensor:
        """What a segment reads of a weight that rests elsewhere; one that is kept stays there until `release`."""
        key = weight.rows, weight.quant, device
        if key in one.staged:
            return one.staged[key]
        staged = self._fetch_from_rest(one, weight, device)
        if keeps:
            one.staged[key] = staged
            self._coming.add(device)
        return staged

    def land(self, one: StoredWeight, weight: Weight, place: torch.Tensor) -> None:
        """Fills memory on a device with what a segment reads of a weight, from where it rests.

        It is filled, or on its way on the current stream, when this returns. The store is not locked while bytes move.
        """
        device = place.device
        with self.lock:
            if one.residency is Residency.HOST and weight.quant:
                resting: torch.Tensor | None = self._packed_at_rest(one, weight, device)
            else:
                one.check(weight)
                self.rest(one, device)
                resting = None if one.tensor.is_meta else one.tensor.detach()
        if resting is None:
            one.read_into(weight, place)
        else:
            land(resting[slice(*weight.rows)] if weight.rows else resting, place)

    def bring_view(self, one: StoredWeight, weight: Weight) -> torch.Tensor | None:
        """What a segment on the host reads of a weight that rests in a file, as a view of that, in memory by now.

        None where it has to be copied: it is packed, has another dtype or other strides, or has updates merged.
        """
        with self.lock:
            one.check(weight)
            self.rest(one, HOST)
            origin = one.origin if one.tensor.is_meta and one.tensor.is_contiguous() else None
        return origin.bring_view(weight) if isinstance(origin, FileOrigin) else None

    def stay(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program keeps on a device of a weight that rests elsewhere; made once, a copy like others."""
        return _once(one, (weight.rows, weight.quant, device), lambda: self._fetch_from_rest(one, weight, device))

    def settle_staged(self, device: torch.device) -> None:
        """Blocks the host until what was staged on a device, and is kept, is there."""
        with self.lock:
            if device in self._coming:
                self._coming.discard(device)
                accelerator_of(device).synchronize()

    def release(self, weights: Iterable[StoredWeight]) -> None:
        """Lets go of what was staged and kept, and of the memory that views of files take."""
        for one in weights:
            if one.staged and one.residency is Residency.DISK and one.file is not None:
                one.file.reader.release([one.file.entry])
            one.staged.clear()

    def rest(self, one: StoredWeight, device: torch.device) -> None:
        """Brings a weight to where it rests: host memory, from which copies to a device need not stage, or its file.

        A weight that shall rest on disk and is in no file, such as an adapter's, rests in host memory.
        """
        if one.residency is Residency.DEVICE or one.borrowed:
            return
        if one.residency is Residency.DISK and one.file is not None:
            self.take_out(one)
            return
        data = accelerator_of(device).pin(one.whole(HOST))
        if one.tensor.device != HOST or data.data_ptr() != one.tensor.data_ptr():
            self.put(one, data)

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views; cheap enough for every call."""
        for reader in self._readers:
            reader.check()

    def _fetch_from_rest(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        return _fetched(one, weight, device, partial(self._from_rest, one, weight, device))

    def _from_rest(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        if one.residency is Residency.HOST and weight.quant:
            packed = self._packed_at_rest(one, weight, device)
            return moved(packed[slice(*weight.rows or (None,))], device)
        one.check(weight)
        self.rest(one, device)
        return one.read(weight, device)

    def _packed_at_rest(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """All packed bytes of a weight in host memory, read once, from where copies to a device need not stage."""

        def read() -> torch.Tensor:
            assert one.file is not None
            one.check(weight)
            whole = one.file.reader.read(one.file.entry.packed(), torch.uint8, HOST)
            return accelerator_of(device).pin(whole)

        return _once(one, (None, weight.quant, HOST), read)

    def _join_ranges(self) -> None:
        """Makes one weight of those without data that lie in the same place of a file."""
        seen: dict[Any, StoredWeight] = {}
        for one in list(self._weights.values()):
            if one.tensor.is_meta and one.file is not None:
                first = seen.setdefault((one.file.entry, one.tensor.dtype, tuple(one.tensor.shape)), one)
                if first is not one:
                    first.places += one.places
                    self.restore(first, first.tensor)
                    self._weights.pop(id(one.tensor), None)


def _once(one: StoredWeight, key: Part, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What lies beside a weight's own tensor, made when it is first asked for."""
    if key not in one.parts:
        one.parts[key] = make()
    return one.parts[key]


def _fetched(
    one: StoredWeight,
    what: StoredWeight | Weight,
    device: torch.device,
    fetch: Callable[[], torch.Tensor],
    way_out: str = _WAY_OUT,
) -> torch.Tensor:
    """What a fetch brings to a device of a weight; where memory runs out it is tried once more with all caches empty.

    Raises DoesNotFitError, which names the weight, when there is no room, and WeightError when the weight is of a class
    of another library that cannot lie there.
    """
    try:
        return fetched(fetch)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            _refuse_foreign(one, device, error)
            raise
        there = canonical_name(device)
        raise DoesNotFitError(
            f"weight {what.name} of {one.owner} needs {format_bytes(what.nbytes)} on {there}: {error}: "
            f"{way_out.format(device=there)}"
        ) from error


def _refuse_foreign(one: StoredWeight, device: torch.device, error: Exception) -> None:
    if library := foreign_library(one.tensor):
        raise WeightError(
            f"{one.name} of {one.owner} is a {type(one.tensor).__name__} of {library}, which does not go to "
            f"{canonical_name(device)}: load the component without, and give the file of its quantized weights to "
            "dovetail (weights=…)"
        ) from error

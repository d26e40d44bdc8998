"""The one owner of weights: each is held once, wherever its numbers are, and brought to devices by this alone.

A weight is brought to its device when a program that reads it is loaded for the first time. It takes the place of the
tensor that modules hold, so that the memory it had before is free and a module still knows its weights. A weight that
no program has read yet stays where it was. Parameters that rest in host memory or on disk are brought to a device for
the segment that reads them, and stay until they are released.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from ...compiler.devices.device import Device
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Amounts, Residency
from ..devices.accelerator import accelerator_of
from ..devices.fork import ForkSafeLock
from ..devices.transfers import land, moved
from ..devices.wrapped import is_wrapped
from .fetching import GRADIENT_WAY_OUT, WAY_OUT, fetched_weight, is_in_file, of_one_range, once
from .former import Former
from .objects import can_exchange, exchange_contents, gradient_for, hang_on
from .origin import HOST, FileOrigin, Origin
from .reader import WeightReader
from .source import tensors_of_module
from .stand_in import StandIn
from .stand_in_ops import form_of
from .stored_weight import ORDINARY, Numbers, StoredWeight, data_of, stands_in, version_of

Origins = Mapping[str, Origin]
"""Where the weights of a module come from, by the first name that it has for each."""


class _Found(NamedTuple):
    """What a module holds in a place, under a name, with what was said of the module's weights."""

    place: dict[str, Any]
    key: str
    tensor: torch.Tensor
    name: str
    origins: Origins
    residency: Residency
    owner: str
    holder: nn.Module


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
        self._is_looking = False
        self._parted: list[StoredWeight] = []
        self.room_for: Callable[[Sequence[StoredWeight]], None] = lambda _: None
        """Raises DoesNotFitError where host memory has no room for weights that somebody writes."""

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
        self._parted.clear()

    def rest_in(self, module: nn.Module, residency: Residency, amounts: Amounts) -> None:
        """Has the parameters of a module that was taken in rest elsewhere, and some bytes of them otherwise."""
        self._modules = [
            (known, origins, residency if known() is module else before) for known, origins, before in self._modules
        ]
        for one, rests in self.resting(module, residency, amounts).items():
            one.residency = rests

    def resting(self, module: nn.Module, residency: Residency, amounts: Amounts) -> dict[StoredWeight, Residency]:
        """Where the parameters of a module rest that rest so, but for some bytes of them; nothing is changed."""
        held = dict.fromkeys(self.of_module(module).values())
        found = [one for one in held if isinstance(one.tensor, nn.Parameter)]
        return dict(zip(found, amounts.of([one.nbytes for one in found], residency), strict=True))

    def survey(self) -> None:
        """Looks where the modules hold weights; to be called when their structure may have changed.

        Whether the host has room for what is written meanwhile is asked when all other weights are known.
        """
        with self.lock:
            if not self._is_looking:
                self._is_looking = True
                try:
                    self._look()
                finally:
                    self._is_looking = False

    def _look(self) -> None:
        known, self._weights = self._weights, {}
        foreign = []
        for found in self._held():
            if isinstance(found.tensor, StandIn) and id(found.tensor) not in known:
                foreign.append(found)
            else:
                self._note(known, found, found.tensor)
        for found in foreign:
            tensor = found.place[found.key] = self._settled(found.tensor)
            self._note(known, found, tensor)
        self._stand_in()
        gone = (one for one in (*self._parted, *known.values()) if id(one.tensor) not in self._weights)
        self._parted = [one for one in gone if one.is_moved and one.is_held_apart]

    def let_go(self) -> None:
        """Brings weights of parts that were taken out of their modules to where they were, but for those in files.

        Raises DoesNotFitError where there is no room.
        """
        while self._parted:
            one = self._parted.pop()
            self.forget_parts(one)
            self.bring(one, HOST if one.before is None or one.before.type == "meta" else one.before)
            self.give_back(one)

    def _held(self) -> Iterator[_Found]:
        """What the modules hold, and where."""
        for reference, origins, residency in self._modules:
            module = reference()
            for path, child in module.named_modules() if module is not None else ():
                for place in (child._parameters, child._buffers):
                    for key, tensor in list(place.items()):
                        if tensor is not None:
                            name = self.name_of(f"{path}.{key}" if path else key)
                            yield _Found(place, key, tensor, name, origins, residency, type(module).__name__, child)

    def _settled(self, tensor: Any) -> torch.Tensor:
        """What a module shall hold in which somebody put a stand-in: the weight's tensor, if it is of a whole weight.

        A part of a weight that was put there has memory of that weight.
        """
        one = tensor.numbers.stored
        if tensor.steps or tensor.numbers.data is not None:
            data: torch.Tensor = tensor.write()
            return nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data
        if one is None:
            return cast("torch.Tensor", tensor)
        held: torch.Tensor = one.tensor if one.keeper is not None and one.keeper() is self else tensor.write()
        return held

    def _note(self, known: Mapping[int, StoredWeight], found: _Found, tensor: torch.Tensor) -> None:
        """Takes in what a module holds in a place."""
        one = self._weights.get(id(tensor))
        if one is None:
            one = self._weights[id(tensor)] = self._noted(known.get(id(tensor)), found, tensor)
            one.places, one.holders = [], []
        one.places.append((found.place, found.key))
        one.holders.append(weakref.ref(found.holder))

    def _noted(self, known: StoredWeight | None, found: _Found, tensor: torch.Tensor) -> StoredWeight:
        has_data = not tensor.is_meta and not stands_in(tensor)
        if known is not None and (known.is_here or not has_data):
            return known
        # other data came into the object (swap_tensors), if it was known
        rests = found.residency if isinstance(tensor, nn.Parameter) else Residency.DEVICE
        origin = found.origins.get(found.name) if tensor.is_meta else None
        one = self.adopt(StoredWeight(found.name, tensor, Numbers(origin=origin), found.owner, rests))
        one.keeper = weakref.ref(self)
        return one

    def _stand_in(self) -> None:
        """Puts stand-ins into the places of weights that have numbers, and none in their tensors."""
        for one in list(self._weights.values()):
            if one.tensor.is_meta and one.origin is not None:
                self._lay_bare(one, one.origin)

    def of(self, tensor: torch.Tensor) -> StoredWeight:
        """The weight that a tensor of a module is; looks again where it is not known."""
        if id(tensor) not in self._weights:
            self.survey()
        return self._weights[id(tensor)]

    def of_module(self, module: nn.Module) -> dict[str, StoredWeight]:
        """The weights of a module, under every name that it has for them; looks again where one is not known."""
        tensors = tensors_of_module(module)
        if not self._weights.keys() >= set(map(id, tensors.values())):
            self.survey()  # which may put the tensor of a weight in the place of what somebody put there
            tensors = tensors_of_module(module)
        known = self._weights  # while somebody looks, those that were found so far
        return {name: known[id(tensor)] for name, tensor in tensors.items() if id(tensor) in known}

    def known(self, tensor: torch.Tensor | None) -> StoredWeight | None:
        """The weight that a tensor of a module was at the last look, or None."""
        return self._weights.get(id(tensor))

    def put(self, one: StoredWeight, data: torch.Tensor) -> torch.Tensor:
        """Has data be a weight's tensor wherever modules hold it, and no origin any more; returns what they hold now.

        The numbers are those that it had: they are brought, or moved.
        """
        one.before = one.before or one.lies_on
        source = one.source
        data = data.detach() if type(data) in ORDINARY else data  # for the object is somebody's
        if isinstance(one.tensor, nn.Parameter) and not isinstance(data, nn.Parameter):
            data = nn.Parameter(data, requires_grad=one.tensor.requires_grad)
        self._hold(one, data)
        one.origin, one.read_from = None, source
        return one.tensor

    def write(self, one: StoredWeight, is_lent: bool = False) -> torch.Tensor:
        """What somebody may write of a weight: its tensor, with its numbers in host memory if it had none.

        Copies beside it are let go of, and what was brought from a file is taken for the file's no more. Where the
        memory is ``is_lent``, to be read or written, it may be a view of the file, and is compared with that later.
        Raises DoesNotFitError, before anything changes, where the host has no room.
        """
        with self.lock, torch.inference_mode(False), torch.no_grad():
            if not one.is_here:
                if not (is_lent and isinstance(one.origin, FileOrigin) and one.origin.can_view(one.tensor.dtype)):
                    self.room_for([one])
                self.put(one, one.numbers.owned(is_lent))
            one.parts.clear()
            one.leave_slots()
            one.noted = None
            one.read_from = one.read_from if is_lent else None
            return one.tensor

    def renew(self, one: StoredWeight, origin: Origin) -> None:
        """Has another origin give the numbers of a weight that has no data: its own, with an update."""
        assert not one.is_here
        one.parts.clear()
        one.leave_slots()
        self._lay_bare(one, origin)
        one.noted = None

    def exchange(self, one: StoredWeight, other: torch.Tensor) -> None:
        """Has somebody else's data be a weight's; of a stand-in that belongs to no module the numbers, and no data.

        What was detached from the weight before keeps its numbers of then.
        """
        one.leave_slots()
        if isinstance(other, StandIn) and not other.steps and other.numbers.stored is None and other.numbers.origin:
            one.leave_numbers()
            one.take_numbers(other.numbers)
            self._lay_bare(one, other.numbers.origin, other.like)
        else:
            data = other.write() if isinstance(other, StandIn) else other
            left = one.leave_numbers()
            if left.given:
                left.write()
            self.put(one, data)
        one.noted = one.read_from = None

    def _hold(self, one: StoredWeight, tensor: torch.Tensor) -> None:
        """Has modules hold a tensor in the place of the one before, as the same object once that was a stand-in.

        Somebody's own tensor stays as it was, for another model may share it; what was hung on it is on the other too.
        """
        before, one.lasts = one.tensor, one.lasts or stands_in(one.tensor)
        if one.former is not None:
            one.former.look(one)
        if one.places and tensor is not before and can_exchange(before, tensor):
            if one.lasts:
                exchange_contents(before, tensor)
                tensor = before
            else:
                self._follow(one, tensor)
        self._put_in_places(one, tensor)

    def _follow(self, one: StoredWeight, tensor: torch.Tensor) -> None:
        before, there = one.tensor, tensor.device
        grad = fetched_weight(one, one, there, partial(gradient_for, tensor, before), GRADIENT_WAY_OUT)
        if one.former is None and not before.is_meta:
            one.former = Former(before)
        hang_on(tensor, before)
        if grad is not None:
            tensor.grad = grad

    def _put_in_places(self, one: StoredWeight, tensor: torch.Tensor) -> None:
        before = one.tensor
        self._weights.pop(id(before), None)
        one.tensor, one.noted = tensor, (data_of(tensor), version_of(tensor))
        one.numbers.data = None if tensor.is_meta or stands_in(tensor) else tensor
        if one.former is not None:
            one.former.note(tensor)
        if one.places:
            self._weights[id(tensor)] = one
        for place, key in one.places:
            if place.get(key) is before:  # and nobody has put another there since
                place[key] = tensor

    def give_back(self, one: StoredWeight) -> None:
        """Has modules hold the object again that they held before the weight was first brought, if somebody has it.

        So an optimizer that was made before goes on with what it was made for; see `Former` for its numbers.
        """
        former = None if one.former is None else one.former.again(one)
        one.former = None
        if former is not None:
            one.lasts = False
            self._put_in_places(one, former)

    def take_out(self, one: StoredWeight, origin: Origin | None) -> None:
        """Takes the data of a weight out of its tensor, and leaves a stand-in.

        Its numbers are those of an origin from now on, or lie in its parts if there is none.
        """
        if one.is_here:
            one.before = one.before or one.lies_on
            self._lay_bare(one, origin)

    def _lay_bare(self, one: StoredWeight, origin: Origin | None, like: torch.Tensor | None = None) -> None:
        one.numbers.like = form = form_of(one.tensor) if like is None else like
        is_parameter = isinstance(one.tensor, nn.Parameter)
        requires_grad = is_parameter and one.tensor.requires_grad
        if one.places:
            bare: torch.Tensor = StandIn.of(
                one.numbers, form.detach(), is_parameter=is_parameter, requires_grad=requires_grad
            )
        else:
            bare = nn.Parameter(form, requires_grad) if is_parameter else form
        self._hold(one, bare)
        one.origin, one.read_from = origin, None

    def put_back(
        self, one: StoredWeight, data: torch.Tensor | None, origin: Origin | None, read_from: Origin | None, ours: bool
    ) -> None:
        """Has a weight have the data again that it had before, or none, with what was known of its numbers.

        Data that is not ``ours``, but what somebody gave it, is still to be seen.
        """
        if data is None:
            self._lay_bare(one, origin)
            return
        self.put(one, data) if one.lasts else self._hold(one, data)
        one.origin, one.read_from = origin, read_from
        if not ours:
            one.noted = None

    def drop(self, one: StoredWeight) -> None:
        """Lets go of what was brought of a weight that lies in a file, unless modules hold it."""
        if one.places or one.file is None:
            return
        self.take_out(one, one.source)
        one.parts.clear()
        one.leave_slots()

    def forget_parts(self, one: StoredWeight) -> None:
        """Lets go of what lies beside the modules; parts that lie nowhere else go back into them, to host memory."""
        if not one.is_here and one.origin is None and one.parts:
            self.put(one, one.numbers.gathered().to(one.tensor.dtype))
        one.parts.clear()
        one.leave_slots()

    def place(self, one: StoredWeight, device: Device) -> torch.Tensor:
        """The weight on its device, where it is from now on; raises DoesNotFitError when there is no room."""
        one.home = one.home or device
        there = one.home.torch
        return one.tensor if one.is_on(there) else self.bring(one, there)

    def bring(self, one: StoredWeight, device: torch.device, way_out: str = WAY_OUT) -> torch.Tensor:
        """Brings a whole weight to a device, where its tensor is from now on."""
        return self.put(one, fetched_weight(one, one, device, partial(one.whole, device), way_out))

    def fetch(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program knows as a weight on a device; nothing of it is kept here."""
        return fetched_weight(one, weight, device, partial(one.read, weight, device))

    def copy_on(self, one: StoredWeight, device: torch.device) -> torch.Tensor:
        """A second copy of a whole weight, for a module that runs as it is on another device than its home."""
        return once(one, (None, "", device), lambda: fetched_weight(one, one, device, partial(one.whole, device)))

    def part(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What stays on a device beside the weight's own tensor: a part, packed bytes, or a second copy; made once."""
        return once(one, (weight.which, weight.quant, device), lambda: self.fetch(one, weight, device))

    def stage(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program reads of a weight that rests elsewhere; nothing of it is kept here."""
        return fetched_weight(one, weight, device, partial(self._from_rest, one, weight, device))

    def land(self, one: StoredWeight, weight: Weight, place: torch.Tensor) -> None:
        """Fills memory on a device with what a segment reads of a weight, from where it rests.

        It is filled, or on its way on the current stream, when this returns. The store is not locked while bytes move.
        """
        resting = self.at_rest(one, weight, place.device)
        if resting is None:
            one.read_into(weight, place)
        else:
            land(weight.of(resting), place)

    def at_rest(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor | None:
        """The whole of what copies of a weight to a device are made from, where it rests; None if that is its file."""
        with self.lock:
            if one.residency is Residency.HOST and weight.quant:
                return self._packed_at_rest(one, weight, device)
            one.check(weight)
            self.rest(one, device)
            return one.tensor.detach() if one.is_here else None

    def bring_view(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor | None:
        """What a segment reads of a weight that lies on its device, or in a file: a view of that, in memory by now.

        None where it has to be copied: it is packed, has another dtype or other strides, or has updates merged.
        """
        if device != HOST and not (one.borrowed and one.is_on(device)):
            return None
        with self.lock:
            one.check(weight)
            self.rest(one, HOST)
            if one.is_here:
                return one.tensor.detach() if one.is_on(device) and not (weight.which or weight.quant) else None
            origin = one.origin if one.tensor.is_contiguous() else None
        view = origin.bring_view(weight) if isinstance(origin, FileOrigin) else None
        if view is None or view.shape != one.tensor.shape:
            return view
        return view.as_strided(view.shape, one.tensor.stride())  # of dimensions of one, which kernels look at

    def stay(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a program keeps on a device of a weight that rests elsewhere; made once, a copy like others."""
        return once(one, (weight.which, weight.quant, device), lambda: self.stage(one, weight, device))

    def release(self, weights: Iterable[StoredWeight]) -> None:
        """Lets go of what was kept for a phase, and of the memory that views of files take."""
        for one in weights:
            if one.staged and one.residency is Residency.DISK and one.file is not None:
                one.file.reader.release([one.file.entry])
            one.leave_slots()

    def rest(self, one: StoredWeight, device: torch.device) -> None:
        """Brings a weight to where it rests: host memory, from which copies to a device need not stage, or its file.

        A weight that shall rest on disk and is in no file rests in host memory: an adapter's, or one that somebody
        replaced or wrote.
        """
        if one.residency is Residency.DEVICE or one.borrowed:
            return
        if one.residency is Residency.DISK and is_in_file(one):
            self.take_out(one, one.read_from)
            return
        there = accelerator_of(device)
        if one.is_on(HOST) and type(one.tensor) in ORDINARY and there.is_pinned(one.tensor):
            return
        if one.is_here and not one.is_on(HOST):  # lent, perhaps on another stream than the one that reads it now
            accelerator_of(one.lies_on).synchronize()
        whole = one.whole(HOST)
        data = whole if is_wrapped(whole) else there.pin(whole)
        if not one.is_on(HOST) or data.data_ptr() != one.tensor.data_ptr():
            self.put(one, data)

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views; cheap enough for every call."""
        for reader in self._readers:
            reader.check()

    def _from_rest(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        if one.residency is Residency.HOST and weight.quant:
            packed = self._packed_at_rest(one, weight, device)
            return moved(weight.of(packed), device)
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

        return once(one, (None, weight.quant, HOST), read)

    def _join_ranges(self) -> None:
        """Makes one weight of those without data that lie in the same place of a file."""
        for first, one in of_one_range(list(self._weights.values())):
            first.places += one.places
            first.holders += one.holders
            self._weights.pop(id(one.tensor), None)
            for place, key in one.places:
                place[key] = first.tensor

"""What a pipeline keeps of a call after its end: the next call has that on its devices until it makes it anew.

A scheduler keeps its timesteps, say. In a first call they come when the text is encoded already; in the next one the
old ones are there while it is encoded. So a plan counts what a call of its kind leaves; where one of another kind
has left more, the call that comes next has that.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..compiler.devices.device import Device
from ..runtime.devices.accelerator import accelerator_of

Key = tuple[int, str]
Piece = tuple[torch.device, int, int]
"""The device, address and bytes of a piece of memory."""


class Lasting:
    """What some objects keep on devices that count their bytes, from the beginning of a call to its end.

    Args:
        copies: by the identities of the pipeline, its schedulers and the like, copies that the call changes.
        pipe: the pipeline itself, which nothing changes meanwhile.
    """

    def __init__(self, copies: Mapping[int, Any], pipe: Any) -> None:
        originals = _originals(pipe, copies)
        self._originals = [originals.get(number) for number in copies]
        self._objects = objects = list(copies.values())
        self._before = {key: [weakref.ref(one) for one in tensors] for key, tensors in _kept_by(objects)}
        self._of_originals = {piece for _, tensors in _kept_by([*originals.values()]) for piece in _pieces(tensors)}
        self._copied = {key: _pieces(tensors) - self._of_originals for key, tensors in _kept_by(objects)}
        self._names = _names_of(objects)
        self._empty = {key: one for key in self._names if _is_empty(one := vars(objects[key[0]])[key[1]])}

    def changed(self) -> frozenset[Hashable]:
        """The attributes that are not what they were at the beginning."""
        now, names = dict(_kept_by(self._objects)), _names_of(self._objects)
        return frozenset(key for key in names | self._names if not self._is_as_before(key, now.get(key, [])))

    def beyond(self, changed: frozenset[Hashable]) -> Counter[torch.device]:
        """What another call has on devices in the attributes that are not changed, as this one leaves them, by device.

        To be asked at the end. Less what this call had there, copies of what an earlier one had left: it counted them
        among its own, and it may be less than nothing.
        """
        now = {key: _pieces(tensors) - self._of_originals for key, tensors in _kept_by(self._objects)}
        found = _bytes_of(now, changed)
        found.subtract(_bytes_of(self._copied, changed))
        return found

    def left(self) -> Left:
        """What the call leaves in the pipeline, to be asked at the end."""
        kept = {key: _pieces(tensors) for key, tensors in _kept_by(self._objects)}
        return Left([None if one is None else weakref.ref(one) for one in self._originals], kept)

    def _is_as_before(self, key: Key, tensors: Sequence[torch.Tensor]) -> bool:
        before, empty = self._before.get(key, []), self._empty.get(key)
        if key not in self._names or (empty is not None and vars(self._objects[key[0]]).get(key[1]) is not empty):
            return False
        return len(before) == len(tensors) and all(was() is one for was, one in zip(before, tensors, strict=True))


@dataclass(frozen=True)
class Left:
    """What a planned call leaves in the pipeline and its schedulers, each attribute's pieces of memory.

    It keeps nothing alive.
    """

    originals: Sequence[weakref.ref[Any] | None]
    kept: Mapping[Key, set[Piece]]

    def placed(self, device_of: Callable[[torch.device], Device]) -> Left:
        """The same where the devices of the call stand for others."""
        kept = {key: {(device_of(one[0]).torch, *one[1:]) for one in pieces} for key, pieces in self.kept.items()}
        return Left(self.originals, kept)

    def beyond(self, devices: Iterable[Device]) -> Callable[[frozenset[Hashable]], Counter[Device]] | None:
        """What is there now and would not be if a call of the kind had been the last, less the attributes it changed.

        Of these devices alone; None where nothing is.
        """
        names = {device.torch: device for device in devices}
        now = {key: _pieces(tensors) for key, tensors in _kept_by([one and one() for one in self.originals])}

        def beyond(changed: frozenset[Hashable]) -> Counter[Device]:
            more = _bytes_of(now, changed) - _bytes_of(self.kept, changed)
            return Counter({names[device]: nbytes for device, nbytes in (+more).items() if device in names})

        every = now.keys() | self.kept.keys()
        return beyond if any(beyond(frozenset(every - {key})) for key in now) else None


def _originals(pipe: Any, copies: Container[int]) -> dict[int, Any]:
    """What there are copies of, by identity: a pipeline, and what it and other pipelines in it have in attributes."""
    found: dict[int, Any] = {}
    waiting = [pipe]
    while waiting:
        one = waiting.pop()
        if id(one) in copies and id(one) not in found:
            found[id(one)] = one
            waiting += vars(one).values()
    return found


def _kept_by(objects: Sequence[Any]) -> Iterator[tuple[Key, list[torch.Tensor]]]:
    """The tensors on devices that count their bytes, by the attribute that has them."""
    for number, one in enumerate(objects):
        for name, value in list(vars(one).items()) if hasattr(one, "__dict__") else ():
            tensors = [leaf for leaf in _leaves(value) if accelerator_of(leaf.device).has_streams]
            if tensors:
                yield (number, name), tensors


def _names_of(objects: Sequence[Any]) -> set[Key]:
    """The attributes of objects, each with the number of its object."""
    return {(number, name) for number, one in enumerate(objects) for name in vars(one)}


def _pieces(tensors: Sequence[torch.Tensor]) -> set[Piece]:
    """Each piece of memory that tensors lie in."""
    starts = [(leaf, leaf.data_ptr() - int(leaf.storage_offset()) * leaf.itemsize) for leaf in tensors]
    return {(leaf.device, start, leaf.untyped_storage().nbytes()) for leaf, start in starts}


def _bytes_of(kept: Mapping[Key, set[Piece]], but: frozenset[Hashable]) -> Counter[torch.device]:
    """The bytes of what attributes keep ``but`` for some by device, each piece once."""
    found: Counter[torch.device] = Counter()
    for device, _, nbytes in {piece for key in kept.keys() - but for piece in kept[key]}:
        found[device] += nbytes
    return found


def _is_empty(value: Any) -> bool:
    """Whether a value is a list of nothing: schedulers begin with a new one, so that what the old one had is gone."""
    return isinstance(value, list) and all(item is None for item in value)


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an attribute."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        yield from (item for item in pytree.tree_leaves(value) if isinstance(item, torch.Tensor))

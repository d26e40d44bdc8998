"""What a pipeline keeps of a call after its end: the next call has that on its devices until it makes it anew.

A scheduler keeps its timesteps, say. In a first call they come when the text is encoded already; in the next one the
old ones are there while it is encoded.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..runtime.devices.accelerator import accelerator_of

Key = tuple[int, str]
Piece = tuple[torch.device, int, int]
"""The device, address and bytes of a piece of memory."""


class Lasting:
    """What some objects keep on devices that count their bytes, from the beginning of a call to its end.

    Args:
        objects: the pipeline, its schedulers; what a call changes.
        originals: those that the objects are copies of, which nothing changes meanwhile.
    """

    def __init__(self, objects: Sequence[Any], originals: Sequence[Any]) -> None:
        self._objects = objects
        self._before = {key: [weakref.ref(one) for one in tensors] for key, tensors in _kept_by(objects)}
        self._of_originals = {piece for _, tensors in _kept_by(originals) for piece in _pieces(tensors)}
        self._copied = {key: _pieces(tensors) - self._of_originals for key, tensors in _kept_by(objects)}
        self._names = {(number, name) for number, one in enumerate(objects) for name in vars(one)}

    def still(self) -> frozenset[Hashable]:
        """The attributes that are what they were at the beginning."""
        now = dict(_kept_by(self._objects))
        return frozenset(key for key in self._names | now.keys() if self._is_as_before(key, now.get(key, [])))

    def beyond(self, still: frozenset[Hashable]) -> Counter[torch.device]:
        """What another call has on devices where these attributes are still those of this one, by device.

        To be asked at the end. Less what this call had there, copies of what an earlier one had left: it counted them
        among its own, and it may be less than nothing.
        """
        now = {key: _pieces(tensors) - self._of_originals for key, tensors in _kept_by(self._objects)}
        found = _bytes_of(now, still)
        found.subtract(_bytes_of(self._copied, still))
        return found

    def _is_as_before(self, key: Key, tensors: Sequence[torch.Tensor]) -> bool:
        before = self._before.get(key, [])
        return len(before) == len(tensors) and all(was() is one for was, one in zip(before, tensors, strict=True))


def _kept_by(objects: Sequence[Any]) -> Iterator[tuple[Key, list[torch.Tensor]]]:
    """The tensors on devices that count their bytes, by the attribute that has them."""
    for number, one in enumerate(objects):
        for name, value in list(vars(one).items()) if hasattr(one, "__dict__") else ():
            tensors = [leaf for leaf in _leaves(value) if accelerator_of(leaf.device).has_streams]
            if tensors:
                yield (number, name), tensors


def _pieces(tensors: Sequence[torch.Tensor]) -> set[Piece]:
    """Each piece of memory that tensors lie in."""
    starts = [(leaf, leaf.data_ptr() - int(leaf.storage_offset()) * leaf.itemsize) for leaf in tensors]
    return {(leaf.device, start, leaf.untyped_storage().nbytes()) for leaf, start in starts}


def _bytes_of(kept: Mapping[Key, set[Piece]], keys: frozenset[Hashable]) -> Counter[torch.device]:
    """The bytes of what attributes keep by device, each piece once."""
    found: Counter[torch.device] = Counter()
    for device, _, nbytes in {piece for key in kept.keys() & keys for piece in kept[key]}:
        found[device] += nbytes
    return found


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an attribute."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (item for item in value if isinstance(item, torch.Tensor))

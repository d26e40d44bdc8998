"""What a pipeline keeps of a call after its end: the next call has that on its devices until it makes it anew.

A scheduler keeps its timesteps, say. In a first call they come when the text is encoded already; in the next one the
old ones are there while it is encoded.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch

from ..runtime.devices.accelerator import accelerator_of

Key = tuple[int, str]


class Lasting:
    """What some objects keep on devices that count their bytes, from the beginning of a call to its end.

    Args:
        objects: the pipeline, its schedulers.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = objects
        self._before = {key: [weakref.ref(one) for one in tensors] for key, tensors in self._now()}
        self._bytes_before = set(self._bytes(frozenset(key for key, _ in self._now())))
        self._names = {(number, name) for number, one in enumerate(objects) for name in vars(one)}

    def still(self) -> frozenset[Hashable]:
        """The attributes that are what they were at the beginning."""
        now = dict(self._now())
        return frozenset(key for key in self._names | now.keys() if self._is_as_before(key, now.get(key, [])))

    def beyond(self, still: frozenset[Hashable]) -> Counter[torch.device]:
        """What another call has on devices where these attributes are still those of this one, by device.

        To be asked at the end.
        """
        found: Counter[torch.device] = Counter()
        for device, _, nbytes in set(self._bytes(still)) - self._bytes_before:
            found[device] += nbytes
        return found

    def _is_as_before(self, key: Key, tensors: Sequence[torch.Tensor]) -> bool:
        before = self._before.get(key, [])
        return len(before) == len(tensors) and all(was() is one for was, one in zip(before, tensors, strict=True))

    def _now(self) -> Iterator[tuple[Key, list[torch.Tensor]]]:
        for number, one in enumerate(self._objects):
            for name, value in list(vars(one).items()):
                tensors = [leaf for leaf in _leaves(value) if accelerator_of(leaf.device).has_streams]
                if tensors:
                    yield (number, name), tensors

    def _bytes(self, keys: frozenset[Hashable]) -> Iterator[tuple[torch.device, int, int]]:
        """The device, address and bytes of each piece of memory that attributes have."""
        for leaf in (leaf for key, tensors in self._now() if key in keys for leaf in tensors):
            start = leaf.data_ptr() - int(leaf.storage_offset()) * leaf.itemsize
            yield leaf.device, start, leaf.untyped_storage().nbytes()


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an attribute."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (item for item in value if isinstance(item, torch.Tensor))

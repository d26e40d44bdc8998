"""Weights into which adapters are merged: at once, where their numbers are, and out again to the bit.

A weight that has data is written in place, so that no more memory is taken but for a copy of its base in host memory,
where no file has that. Of one that has none, the origin gets the update. Where somebody changed a weight after the
merge, what was merged is subtracted from it, as peft does: the change stays, and so does rounding.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from ..runtime.devices.accelerator import has_memory
from ..runtime.devices.out_of_memory import fetched
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST, MergedOrigin, Origin, TensorOrigin
from ..runtime.store.store import Store
from ..runtime.store.stored_weight import ORDINARY, StoredWeight, data_of, version_of
from .updates import Update

Undo: TypeAlias = Callable[[], None]
"""Makes a weight what it was before a change."""

Merged: TypeAlias = tuple[weakref.ref[nn.Module], Update]
"""A layer of peft's, and what of it is merged."""


@dataclass(frozen=True, eq=False)
class _Record:
    """What is merged into a weight.

    ``base`` gives its numbers without that; there is none where somebody changed it later. ``where`` is the device on
    which it was merged, and ``origin`` is what the weight comes from if it had no data.
    """

    base: Origin | None
    merged: tuple[Merged, ...]
    where: torch.device
    origin: Origin | None = None

    @property
    def updates(self) -> tuple[Update, ...]:
        """What was added, in order."""
        return tuple(update for _, update in self.merged)

    def of(self, layer: nn.Module) -> list[Update]:
        """What a layer of peft's has added."""
        return [update for owner, update in self.merged if owner() is layer]


class MergedWeights:
    """The weights of a component with what is merged into them.

    What is known of a merge goes with the layers of peft that could take it out.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: weakref.WeakValueDictionary[str, _Record] = weakref.WeakValueDictionary()
        self._by_layer: weakref.WeakKeyDictionary[nn.Module, dict[str, _Record]] = weakref.WeakKeyDictionary()

    def has(self, name: str, layer: nn.Module) -> bool:
        """Whether something of a layer is merged into a weight."""
        return name in self._by_layer.get(layer, {})

    def add(self, one: StoredWeight, update: Update, layer: nn.Module, is_checked: bool) -> Undo:
        """Merges an update into a weight; returns what makes the weight as it was.

        Raises ValueError where numbers are to be checked and are not finite; nothing changed then, or where memory
        runs out.
        """
        self._store.forget_parts(one)
        record = self._records.get(one.name)
        base = self._base(one) if record is None else record.base if _is_as_merged(one, record) else None
        merged = record.merged if record is not None else ()
        if one.is_here:
            undo = self._back(one, base, merged)
            numbers = fetched(partial(_added, one.tensor.detach(), [update]))
            _check(numbers, is_checked)
            self._note(one.name, record, _Record(base, (*merged, (weakref.ref(layer), update)), one.tensor.device))
            self._write(one, numbers)
            return self._undoing(one.name, record, undo)
        update, before = update.kept(), one.numbers.source
        origin = MergedOrigin(before, (update,)) if base is None or record is None else _sum(base, merged, update)
        if is_checked:
            _check(origin.whole(one.tensor.dtype, HOST), is_checked)
        self._note(one.name, record, _Record(base, (*merged, (weakref.ref(layer), update)), HOST, origin))
        self._store.renew(one, origin)
        return self._undoing(one.name, record, partial(self._store.renew, one, before))

    def take_out(self, one: StoredWeight, layer: nn.Module) -> Undo:
        """Takes out what a layer has merged into a weight; returns what makes the weight as it was."""
        self._store.forget_parts(one)
        record = self._records[one.name]
        others = tuple(pair for pair in record.merged if pair[0]() is not layer)
        base = record.base if _is_as_merged(one, record) else None
        removed = [update.taken_out(one.tensor.dtype) for update in reversed(record.of(layer))]
        if one.is_here:
            undo = self._back(one, base, record.merged)
            if base is None:
                numbers = fetched(partial(_added, one.tensor.detach(), removed))
            else:
                numbers = fetched(partial(_numbers, one, base, [update for _, update in others], record.where))
            self._note(one.name, record, _Record(base, others, record.where) if others else None)
            self._write(one, numbers)
            one.read_from = None if others or isinstance(base, TensorOrigin) else base
            return self._undoing(one.name, record, undo)
        before = one.numbers.source
        rest = tuple(update for _, update in others)
        origin = MergedOrigin(before, removed) if base is None else MergedOrigin(base, rest) if rest else base
        self._note(one.name, record, _Record(base, others, HOST, origin) if others else None)
        self._store.renew(one, origin)
        return self._undoing(one.name, record, partial(self._store.renew, one, before))

    def _base(self, one: StoredWeight) -> Origin | None:
        """What gives the numbers of a weight later, which are about to change: its file, or a copy of them."""
        source = one.source
        if not one.is_here:
            return source
        if source is not None and _has_bits(one.tensor, source.whole(one.tensor.dtype, HOST)):
            return source
        data = one.tensor.detach()
        return TensorOrigin(fetched(lambda: data.clone() if data.device == HOST else moved(data, HOST)))

    def _back(self, one: StoredWeight, base: Origin | None, merged: Sequence[Merged]) -> Undo:
        """What gives a weight the numbers of now again: its base and what is merged, or a copy of them."""
        record = self._records.get(one.name)
        where = record.where if record is not None else one.tensor.device
        source = one.read_from
        copied = moved(one.tensor.detach().clone(), HOST) if base is None else None

        def undo() -> None:
            if copied is not None:
                numbers = copied
            else:
                assert base is not None
                numbers = _numbers(one, base, [update for _, update in merged], where)
            self._write(one, numbers)
            one.read_from = source

        return undo

    def _write(self, one: StoredWeight, numbers: torch.Tensor) -> None:
        """Gives a weight other numbers, in the memory that it has unless that is a file's."""
        data = one.tensor.detach()
        is_own = type(one.tensor) not in ORDINARY or has_memory(data)
        if is_own and not data.is_inference():
            data.copy_(numbers)
            one.noted = data_of(one.tensor), version_of(one.tensor)
        else:
            self._store.put(one, moved(numbers, data.device))
        one.read_from = None

    def _undoing(self, name: str, record: _Record | None, undo: Undo) -> Undo:
        known = self._records.get(name)

        def both() -> None:
            undo()
            self._note(name, known, record)

        return both

    def _note(self, name: str, before: _Record | None, now: _Record | None) -> None:
        """Keeps a record for as long as there are layers that could take out what it tells of."""
        for record in filter(None, (before, now)):
            for layer in filter(None, (owner() for owner, _ in record.merged)):
                held = self._by_layer.setdefault(layer, {})
                held.pop(name, None)
                if now is not None and now.of(layer):
                    held[name] = now
        self._records.pop(name, None)
        if now is not None:
            self._records[name] = now


def _is_as_merged(one: StoredWeight, record: _Record) -> bool:
    """Whether a weight has the numbers that a merge has left, to the bit."""
    if record.base is None or not one.is_here:
        return record.base is not None and one.origin is record.origin
    return _has_bits(one.tensor, _numbers(one, record.base, record.updates, record.where))


def _sum(base: Origin, merged: Sequence[Merged], update: Update) -> MergedOrigin:
    return MergedOrigin(base, (*(other for _, other in merged), update))


def _numbers(one: StoredWeight, base: Origin, updates: Sequence[Update], where: torch.device) -> torch.Tensor:
    """The numbers of a weight's base with updates, computed where they were before."""
    return _added(base.whole(one.tensor.dtype, where), updates)


def _added(data: torch.Tensor, updates: Sequence[Update]) -> torch.Tensor:
    """Numbers with updates added, one after the other, each rounded to the dtype."""
    for update in updates:
        data = (data + update.on(data.device)).to(data.dtype)
    return data


def _check(numbers: torch.Tensor, is_checked: bool) -> None:
    if is_checked and not torch.isfinite(numbers).all():
        raise ValueError("NaNs detected in the merged weights. The adapter seems to be broken")


def _has_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, also where these are no numbers."""
    here, there = (moved(one.detach(), HOST).reshape(-1).view(torch.uint8) for one in (tensor, other))
    return torch.equal(here, there)

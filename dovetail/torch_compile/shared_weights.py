"""Weights that several programs read on the same devices, and have there once.

A model falls into several graphs, and is compiled again for other sizes; each graph has a program of its own.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..compiler.ir.weight import Weight
from ..runtime.devices.fork import ForkSafeLock
from ..runtime.store.program_weights import ProgramWeights
from ..runtime.store.stored_weight import data_of, version_of

_brought: Any = WeakIdKeyDictionary()
"""A weight of a model → what lies of it on devices, by its data, part and form, as long as a program holds that."""

_lock = ForkSafeLock()


class SharedWeights(ProgramWeights):
    """The weights of one program of a model, of which others have brought some."""

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The weight on a device, as ``ProgramWeights`` brings it unless it is there."""
        if self.adapters.known(weight) is not None:
            return super().__call__(weight, device)
        with _lock:
            own = self._stored(weight).tensor
            parts = _brought.setdefault(own, WeakValueDictionary())
            key = data_of(own), version_of(own), own.dtype, weight.which, weight.quant, device, own.requires_grad
            found: torch.Tensor | None = parts.get(key)
            if found is None:
                found = parts[key] = super().__call__(weight, device)
            return found

"""Merges adapters into weights as they rest, and takes them out again to the bit.

peft merges by adding to the tensor that a module holds, and takes out by subtracting, which leaves rounding behind; and
here that tensor may have no data, or only the rows of one device. So peft's layers note here what they are to merge.
A weight that has data is replaced by its base with the updates added, the base being kept, or read again from its file;
one that is read later, or rows of one, are read with the updates added. Updates are what peft computes, in its dtypes.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ..compiler.errors import UsageError
from ..conventions import libraries
from ..conventions.replacements import Method, put_method, take_methods_out
from ..lora.adapters import Wrapper
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST, MergedOrigin, TensorOrigin
from ..runtime.store.stored_weight import StoredWeight
from .calls import OfComponent

if TYPE_CHECKING:
    from .component import Component

_CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


@dataclass(frozen=True)
class Update:
    """What an adapter adds to a weight: a product of two matrices, or a vector, times its scale."""

    layer: Any
    up: torch.Tensor
    down: torch.Tensor | None
    scale: float

    def rows(self, rows: tuple[int, int] | None) -> torch.Tensor:
        """Rows of the update, on the host; half precision is computed in single, as peft does there.

        They are cut from the product of the whole matrices: with fewer rows a matmul may round otherwise.
        """
        up = moved(self.up.detach(), HOST)
        part = slice(*rows or (None,))
        if self.down is None:
            return up[part] * self.scale
        down, dtype = moved(self.down.detach(), HOST), up.dtype
        if dtype in (torch.float16, torch.bfloat16):
            up, down = up.float(), down.float()
        return (_product(up, down)[part] * self.scale).to(dtype)


def _product(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    if up.ndim == 2:
        return up @ down
    if down.shape[2:].numel() == 1:
        return (up.flatten(1) @ down.flatten(1)).reshape(*up.shape[:1], *down.shape[1:])
    return _CONVOLVE[up.ndim](down.transpose(0, 1), up).transpose(0, 1)


class _Through:
    """Calls a method of merges for a wrapped layer, and keeps neither alive."""

    def __init__(self, merges: Merges, function: Callable[..., None], wrapper: Wrapper) -> None:
        self._merges = weakref.ref(merges)
        self._function = function
        self._path, self._is_plain = wrapper.path, wrapper.is_plain
        self._layer = weakref.ref(wrapper.layer)

    def __call__(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        merges = self._merges()
        if merges is None:
            return original(*args, **kwargs)
        return self._function(merges, Wrapper(self._path, self._layer(), self._is_plain), *args, **kwargs)


class Merges(OfComponent):
    """What is merged into the weights of a component."""

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        self._updates: dict[str, list[Update]] = defaultdict(list)
        self._touched: dict[str, None] = {}

    @property
    def are_pending(self) -> bool:
        """Whether something was merged or taken out since the data of weights was brought up to date."""
        return bool(self._touched)

    def take_over(self, wrapper: Wrapper) -> None:
        """Lets a layer of peft's merge and take out through this object from now on."""
        for name, function in (("merge", Merges._merge), ("unmerge", Merges._unmerge)):
            if not isinstance(vars(wrapper.layer).get(name), Method):
                put_method(wrapper.layer, name, _Through(self, function, wrapper))

    def hand_back(self, wrapper: Wrapper) -> None:
        """Gives a layer its own ways of merging back; what is merged stays so."""
        take_methods_out(wrapper.layer)

    def settle(self) -> None:
        """Brings the data of weights up to date after something was merged or taken out."""
        if not self._touched:
            return
        weights = {one.name: one for one in self.component.view.weights()}
        with torch.inference_mode(False), torch.no_grad():
            for name in self._touched:
                self._renew(weights[name])
        self._touched.clear()
        self.component.refresh_weights()

    def _merge(self, wrapper: Wrapper, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """What peft calls merge."""
        layer = wrapper.layer
        if not self._touched:
            self.check()
        for name in libraries.adapters_to_merge(layer, adapter_names):
            if libraries.has_lora(layer, name):
                self._note(wrapper, name, safe_merge)
                layer.merged_adapters.append(name)

    def _note(self, wrapper: Wrapper, adapter: str, safe: bool) -> None:
        base, tensors = wrapper.layer.get_base_layer(), wrapper.tensors(adapter)
        scale = wrapper.layer.scaling[adapter]
        if safe and not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
            raise ValueError(f"NaNs detected in the merged weights. The adapter {adapter} seems to be broken")
        self._add(base.weight, Update(wrapper.layer, tensors["up"], tensors["down"], scale))
        if "bias" in tensors:
            self._add(base.bias, Update(wrapper.layer, tensors["bias"], None, scale))

    def _add(self, weight: torch.Tensor, update: Update) -> None:
        name = self._name_of(weight)
        self._updates[name].append(update)
        self._touched[name] = None

    def _unmerge(self, wrapper: Wrapper) -> None:
        """What peft calls unmerge."""
        layer = wrapper.layer
        if not layer.merged_adapters:
            return
        base = layer.get_base_layer()
        held = [self._name_of(tensor) for tensor in (base.weight, base.bias) if tensor is not None]
        ours = [name for name in held if any(update.layer is layer for update in self._updates[name])]
        if not ours:
            raise UsageError(
                f"what is merged into {wrapper.path} was merged before the pipeline was compiled, so its base is lost: "
                "call pipe.dovetail.undo(), and unfuse_lora then"
            )
        layer.merged_adapters.clear()
        for name in ours:
            self._updates[name] = [update for update in self._updates[name] if update.layer is not layer]
            self._touched[name] = None

    def _name_of(self, weight: torch.Tensor) -> str:
        return self.component.view.store.of(weight).name

    def _renew(self, one: StoredWeight) -> None:
        """Lets a weight come from its base with all that is merged into it; one with data has that at once."""
        store, updates = self.component.view.store, self._updates[one.name]
        store.forget_parts(one)
        base = one.origin.base if isinstance(one.origin, MergedOrigin) else one.origin
        base = base or TensorOrigin(moved(one.tensor, HOST))
        one.origin = MergedOrigin(base, tuple(updates)) if updates else base
        if not one.tensor.is_meta:
            store.put(one, moved(one.origin.whole(one.tensor.dtype, HOST), one.tensor.device))
        if one.origin.file is None and not updates:
            one.origin = None

    def check(self) -> None:
        """Raises UsageError when an adapter of the component cannot be merged."""
        for wrapper in self.component.adapters.wrappers(self.component.module):
            self._check(wrapper)

    def _check(self, wrapper: Wrapper) -> None:
        base: Any = wrapper.layer.get_base_layer()
        if not wrapper.is_plain or getattr(base, "groups", 1) > 1:
            raise UsageError(
                f"the adapter of {wrapper.path} cannot be merged: only plain low-rank branches can be, beside a matmul "
                "or a convolution in one group: leave it beside the weights (lora_apply_mode=at_runtime)"
            )
        quant = self.component.view.store.of(base.weight).quant
        if quant:
            raise UsageError(
                f"no adapter can be merged into {wrapper.path}, which is quantized ({quant}): rounding "
                "would swallow it: leave it beside the weights (lora_apply_mode=at_runtime)"
            )

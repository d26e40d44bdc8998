"""Lets peft's layers merge adapters into weights that may be anywhere, and take them out again.

peft adds to the tensor that a module holds, and subtracts from it. Here that tensor may have no data, or only the rows
of one device. So its layers merge through this object (`lora/merged_weights.py` says how), all of a call or none.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..compiler.errors import UsageError
from ..compiler.frontend.first_trace import interrupt_deferred
from ..conventions import libraries
from ..conventions.replacements import Method, put_method, take_methods_out
from ..lora.adapters import Wrapper
from ..lora.merged_weights import MergedWeights, Undo
from ..lora.updates import Update
from .calls import OfComponent

if TYPE_CHECKING:
    from .component import Component


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
        self._undo: list[Undo] | None = None
        self._is_checked = False
        self._due: list[Wrapper] = []

    @functools.cached_property
    def _weights(self) -> MergedWeights:
        return MergedWeights(self.component.view.store)

    def take_over(self, wrapper: Wrapper) -> None:
        """Lets a layer of peft's merge and take out through this object from now on."""
        for name, function in (("merge", Merges._merge), ("unmerge", Merges._unmerge)):
            if not isinstance(vars(wrapper.layer).get(name), Method):
                put_method(wrapper.layer, name, _Through(self, function, wrapper))

    def hand_back(self, wrapper: Wrapper) -> None:
        """Gives a layer its own ways of merging back; what is merged stays so."""
        take_methods_out(wrapper.layer)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Whatever is merged and taken out meanwhile is, or nothing of it where something fails; no call runs then."""
        if self._undo is not None:
            yield
            return
        component = self.component
        with component.turn, component.turn, component.view.store.lock, torch.inference_mode(False), torch.no_grad():
            self._undo = []
            restore = _states(component.adapters.wrappers(component.module))
            try:
                yield
            except BaseException:
                for undo in reversed(self._undo):
                    undo()
                restore()
                raise
            finally:
                is_changed, self._undo, self._is_checked = bool(self._undo), None, False
                if is_changed:
                    component.refresh_weights()
                    component.view.moved()

    def _merge(self, wrapper: Wrapper, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """What peft calls merge."""
        with self.together():
            if not self._is_checked:
                self.check()
                self._is_checked = True
            for name in libraries.adapters_to_merge(wrapper.layer, adapter_names):
                if libraries.has_lora(wrapper.layer, name):
                    self._add(wrapper, name, safe_merge)
                    wrapper.layer.merged_adapters.append(name)

    def _add(self, wrapper: Wrapper, adapter: str, safe: bool) -> None:
        base, tensors = wrapper.layer.get_base_layer(), wrapper.tensors(adapter)
        scale, dtype = wrapper.scale(adapter), base.weight.dtype if safe else None
        updates = [(base.weight, Update(tensors["up"], tensors["down"], scale, dtype))]
        if "bias" in tensors:
            if base.bias is None:
                raise UsageError(
                    f"the adapter of {wrapper.path} has a bias, and {wrapper.path} has none to merge it into"
                )
            updates.append((base.bias, Update(tensors["bias"], None, scale)))
        assert self._undo is not None
        for tensor, update in updates:
            with interrupt_deferred():  # what is written can be undone
                self._undo.append(self._weights.add(self.component.view.store.of(tensor), update, wrapper.layer, safe))

    def _unmerge(self, wrapper: Wrapper) -> None:
        """What peft calls unmerge."""
        layer = wrapper.layer
        if not layer.merged_adapters:
            return
        if self.component.takes_adapters:  # its weights gave way to stand-ins
            self._due.append(wrapper)
            layer.merged_adapters.clear()
            return
        self._take_out(wrapper)

    def _take_out(self, wrapper: Wrapper) -> None:
        layer = wrapper.layer
        store, base = self.component.view.store, layer.get_base_layer()
        with self.together():
            held = [store.of(tensor) for tensor in (base.weight, base.bias) if tensor is not None]
            ours = [one for one in held if self._weights.has(one.name, layer)]
            if not ours:
                raise UsageError(
                    f"what is merged into {wrapper.path} was merged before the pipeline was compiled, so its base is "
                    "lost: call pipe.dovetail.undo(), and unfuse_lora then"
                )
            assert self._undo is not None
            for one in ours:
                with interrupt_deferred():
                    self._undo.append(self._weights.take_out(one, layer))
            layer.merged_adapters.clear()

    def take_out_due(self) -> None:
        """Takes out of the weights what peft took out while it loaded an adapter."""
        due, self._due = self._due, []
        if not due:
            return
        with self.together():
            for wrapper in due:
                self._take_out(wrapper)

    def forget_due(self) -> None:
        """Leaves it in: the adapter was refused, and all is as it was."""
        self._due = []

    def check(self) -> None:
        """Raises UsageError when an adapter of the component cannot be merged."""
        for wrapper in self.component.adapters.wrappers(self.component.module):
            self._check(wrapper)

    def _check(self, wrapper: Wrapper) -> None:
        base: Any = wrapper.layer.get_base_layer()
        if not wrapper.is_low_rank or getattr(base, "groups", 1) > 1:
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


def _states(wrappers: Sequence[Wrapper]) -> Callable[[], None]:
    """What makes the scales of wrappers, and which of their adapters they call merged, what they are now."""
    lists = [(one.layer.merged_adapters, list(one.layer.merged_adapters)) for one in wrappers]
    scales = [(one.layer.scaling, copy.deepcopy(one.layer.scaling)) for one in wrappers if one.is_low_rank]

    def restore() -> None:
        for merged, before in lists:
            merged[:] = before
        for scaling, was in scales:
            scaling.update(was)

    return restore


def merged_together(components: Sequence[Component], original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Fuses adapters into components, or takes them out: in all of them, or in none where one fails."""
    with contextlib.ExitStack() as stack:
        for component in components:
            stack.enter_context(component.merges.together())
        return original(*args, **kwargs)

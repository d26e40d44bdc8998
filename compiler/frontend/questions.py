"""Notes what a model asks of its inputs, beside their elements, while it is traced (``ir/asked.py``).

The trace answers with what it has, and keeps no sign of it: ``x.is_contiguous()`` is a number of Python. A question
about strides counts for any tensor but a weight, for most ops hand the strides of their operands on; the others count
for the inputs and their views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ..ir.asked import LAYOUT, STRIDES, WITHOUT_GRADIENTS

_ASKING: dict[str, tuple[str, ...]] = {
    "is_contiguous": (LAYOUT,),
    "is_non_overlapping_and_dense": (LAYOUT,),
    **dict.fromkeys(("stride", "sym_stride", "dim_order"), (STRIDES,)),
    **dict.fromkeys(("storage_offset", "sym_storage_offset"), ("offset",)),
    **dict.fromkeys(("as_strided", "as_strided_"), (STRIDES, "memory")),
    **dict.fromkeys(("storage", "untyped_storage", "_typed_storage", "is_set_to"), ("offset", "memory")),
    **dict.fromkeys(("_is_view", "_base"), ("view",)),
    **dict.fromkeys(("requires_grad", "grad"), ("gradient",)),
    **dict.fromkeys(("is_leaf", "grad_fn", "retains_grad"), ("history",)),
    **dict.fromkeys(("is_conj", "is_neg"), ("conjugate",)),
    "is_inference": ("inference",),
    "_version": ("version",),
}
"""What calls and attributes of a tensor ask, by their names."""


class Questions:
    """What was asked so far of the inputs of a module, while its forward runs."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self._inputs: dict[int, int] | None = None
        self._weights: set[int] = set()
        self._leaves: set[int] = set()

    @contextlib.contextmanager
    def listening(self, module: nn.Module) -> Iterator[None]:
        """Notes what the forward of a module asks meanwhile."""
        if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and is no module to be traced
            yield
            return
        before = module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
        after = module.register_forward_hook(self._end, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def note(self, func: Any, args: Sequence[Any]) -> None:
        """Notes what a call of PyTorch asks, if it asks."""
        if self._inputs is None or not args:
            return
        name: str = getattr(func, "__name__", "")
        if name == "__get__":
            name = func.__self__.__name__
        asked = _ASKING.get(name.partition(".")[0])
        if asked is None or not isinstance(args[0], FakeTensor):
            return
        memory = _memory(args[0])
        if memory in self._weights:
            return
        self.asked.update(one for one in asked if memory in self._inputs.values() or one in (LAYOUT, STRIDES))
        if "offset" in asked and id(args[0]) not in self._inputs:  # where a view begins depends on strides
            self.asked.add(STRIDES)

    def note_of_gradients(self, tensor: torch.Tensor) -> None:
        """Notes that the model asks whether gradients flow through a tensor, which none does in a trace.

        Through what is computed of a weight they do in a call with gradients enabled.
        """
        if self._inputs is not None and self._leaves and id(tensor) not in self._leaves:
            self.asked.add(WITHOUT_GRADIENTS)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        self._inputs = {id(leaf): _memory(leaf) for leaf in given}
        weights = [*module.parameters(), *module.buffers()]
        self._weights = set(map(_memory, weights))
        is_trained = any(one.requires_grad for one in weights)
        self._leaves = {*self._inputs, *map(id, weights)} if is_trained else set()

    def _end(self, *_: object) -> None:
        self._inputs = None


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)

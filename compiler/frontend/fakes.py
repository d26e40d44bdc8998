"""Fake CPU tensors in place of a module's own, and eval mode, for the time of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .model_view import ModelView
from .rollback import contents_of_weights, restore

STANDS_IN = "stands_in"
"""The attribute of a class of tensors that stand for weights whose numbers are elsewhere."""


LARGEST_WRITTEN = 1 << 24
"""Bytes of a tensor that a module may write in a call; what is larger is a weight."""

MARKS = frozenset({"_is_param", "_is_buffer", "persistent", "_is_hf_initialized"})
"""What PyTorch and transformers hang on weights, which says nothing of what is computed."""


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that somebody hung on a weight, which a forward may read; none of a class of another library."""
    kind = type(tensor)
    held = getattr(kind, "HELD", None)
    if held is None and kind not in (torch.Tensor, nn.Parameter):
        return {}
    return {name: value for name, value in vars(tensor).items() if name not in MARKS and name not in (held or ())}


def has_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor itself has numbers that may be taken over: none are on meta, fake, or in a stand-in."""
    return not (tensor.is_meta or isinstance(tensor, FakeTensor) or hasattr(type(tensor), STANDS_IN))


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Puts every submodule in eval mode, and each back into its own mode at the end."""
    training = [child for child in module.modules() if child.training]
    try:
        for child in training:
            child.training = False
        for child in module.modules():
            if vars(child).get("_compiled_call_impl") is not None:  # of Module.compile; it comes back with the rest
                child.__dict__["_compiled_call_impl"] = None
        yield
    finally:
        for child in training:
            child.training = True


@contextlib.contextmanager
def faked(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Puts fake CPU tensors in place of all parameters, and of buffers that have no values."""
    memo: dict[int, torch.Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    places = contents_of_weights(module)
    try:
        for child in module.modules():
            for held in cast(list[dict[str, Any]], [child._parameters, child._buffers]):
                for name, tensor in list(held.items()):
                    if tensor is not None:
                        replaced.append((held, name, tensor))
                        held[name] = memo.setdefault(id(tensor), _stand_in(tensor, mode))
        with _hung_on_fakes(module, [(held, name, attributes_of(tensor)) for held, name, tensor in replaced]):
            yield
    finally:
        for held, name, tensor in replaced:  # of scripted parts too, which are no dictionaries to restore
            held[name] = tensor
        for place, before in places:  # a forward may register more
            restore(place, before)


@contextlib.contextmanager
def cloned_buffers(module: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Puts clones in place of real buffers meanwhile: what writes a number into one computes, though the rest is fake.

    A buffer that is too large for that is a fake.
    """
    places, memo = contents_of_weights(module), dict[int, torch.Tensor]()
    for place, before in places:
        for name, tensor in before.items():
            if tensor is not None and not isinstance(tensor, (nn.Parameter, FakeTensor)):
                place[name] = memo.setdefault(id(tensor), _clone(tensor, mode))
    try:
        yield
    finally:
        for place, before in places:
            restore(place, before)


def _clone(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    return tensor.clone() if tensor.nbytes <= LARGEST_WRITTEN else fake_like(tensor, mode)


@contextlib.contextmanager
def _hung_on_fakes(
    module: nn.Module, attributes: Sequence[tuple[Mapping[str, Any], str, Mapping[str, Any]]]
) -> Iterator[None]:
    """Has each call of a module find on its weights what hangs on them: torch.export puts fakes of its own there."""
    found = [one for one in attributes if one[2]]

    def hang(*_: Any) -> None:
        for held, name, hung in found:
            if held.get(name) is not None:
                vars(held[name]).update(hung)

    handle = module.register_forward_pre_hook(hang) if found else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _stand_in(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake_like(tensor, mode), requires_grad=tensor.requires_grad)
    if not has_numbers(tensor):
        return fake_like(tensor, mode)
    return tensor.cpu()


def copy_on_host(tensor: torch.Tensor, mode: FakeTensorMode, view: ModelView) -> torch.Tensor:
    """A copy of a tensor that a module keeps for itself, in host memory, or a fake where it has no values."""
    if not has_numbers(tensor):
        return fake_like(tensor, mode)
    copy = tensor.detach().clone() if tensor.is_cpu else tensor.detach().cpu()
    view.keep(copy)
    return copy


def fake(leaf: Any, mode: FakeTensorMode) -> Any:
    """A fake of a tensor; anything else as it is."""
    return fake_like(leaf, mode) if isinstance(leaf, torch.Tensor) else leaf


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake CPU tensor of the same shape, dtype and strides."""
    with mode:
        return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")

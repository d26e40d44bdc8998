"""Gives tensor objects other contents, so that whoever holds the object of a weight goes on holding the weight.

An optimizer is made over the parameters of a module, before a picture as well as after it. Where a weight is brought,
moved or written, its object therefore stays, and what is in it is another: its memory, its class, its attributes.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from functools import partial
from typing import Any

import torch
from torch import nn

from ...compiler.frontend.refusals import foreign_library
from ..devices.transfers import moved
from .origin import HOST


def has_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, also where these are no numbers; the other one is in host memory."""
    here = moved(tensor.detach(), HOST).reshape(-1).view(torch.uint8)
    return torch.equal(here, other.reshape(-1).view(torch.uint8))


def can_exchange(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors can exchange their contents: their classes are PyTorch's or ours, and of one kind."""
    kinds = isinstance(one, nn.Parameter) == isinstance(other, nn.Parameter)
    return kinds and not (foreign_library(one) or foreign_library(other))


def exchange_contents(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchanges all that two tensors are but their identity; the gradient that a parameter has stays with its object.

    An interrupt (Ctrl-C) comes before or after it, for it runs in C alone.
    """
    # what torch.compile traces may write a weight, and it follows no object that becomes one of another class
    (_exchange_untraced if "torch._dynamo" in sys.modules else _exchange)(one, other)


def _exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    _take_gradient(one, other)
    mine, theirs = _hung_on(one) | _of_class(other), _hung_on(other) | _of_class(one)
    steps = (
        partial(torch._C._swap_tensor_impl, one, other),
        partial(setattr, one, "__class__", type(other)),
        partial(setattr, other, "__class__", type(one)),
        partial(setattr, one, "__dict__", mine),
        partial(setattr, other, "__dict__", theirs),
        *_hooking(one, one),
        *_hooking(other, other),
    )
    deque(map(partial.__call__, steps), maxlen=0)
    _pass_on_gradients(other, one)


_exchange_untraced = torch._compile._disable_dynamo(_exchange)


def hang_on(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a tensor that comes in the place of another what somebody hung on that: attributes and hooks."""
    vars(tensor).update(_hung_on(before))
    for step in _hooking(tensor, before):
        step()


def attributes_on(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a copy of a tensor the attributes that somebody hung on that."""
    vars(tensor).update(_hung_on(before))


def can_be(former: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether a tensor can take the numbers of another: not where one lies on a simulated device and one does not."""
    return can_exchange(former, now) and torch._has_compatible_shallow_copy_type(former, now)


def be_again(former: torch.Tensor, now: torch.Tensor) -> None:
    """Makes the tensor that a weight was before what the weight is now: its numbers, and what was hung on it since.

    Where it has the same numbers it keeps its memory, which others may look at.
    """
    with torch.inference_mode(former.is_inference()), torch.no_grad():
        if not _is_alike(former, now):  # a tensor of inference mode takes no data but of its own kind
            former.data = now.clone() if former.is_inference() and not now.is_inference() else now.detach()
        hang_on(former, now)
        if former.is_leaf and former.requires_grad != now.requires_grad:
            former.requires_grad_(now.requires_grad)
        if now.grad is not None:
            former.grad = now.grad


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    def form(tensor: torch.Tensor) -> Any:
        return tensor.dtype, tensor.device, tensor.size(), tensor.stride()

    return form(one) == form(other) and one.device == HOST and has_bits(one, other.detach())


def _of_class(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes in which a tensor's class keeps what the tensor is."""
    names = {"_is_param", *getattr(type(tensor), "HELD", ())}
    return {name: value for name, value in vars(tensor).items() if name in names}


def _hung_on(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that others have given a tensor."""
    own = _of_class(tensor)
    return {name: value for name, value in vars(tensor).items() if name not in own}


def _hooking(tensor: torch.Tensor, before: torch.Tensor) -> list[partial[None]]:
    """What puts the hooks on a tensor's gradient that another has, or that itself has had before it was exchanged."""
    hooks = ((name, getattr(before, name)) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return [partial(setattr, tensor, name, held) for name, held in hooks if held is not None]


def _take_gradient(one: torch.Tensor, other: torch.Tensor) -> None:
    """Gives a tensor the gradient of another that it comes in the place of, if it may have that."""
    if not (one.is_leaf and one.requires_grad and other.is_leaf and other.requires_grad):
        return
    grad = one.grad
    if grad is not None and (grad.shape, grad.dtype) == (other.shape, other.dtype):
        other.grad = moved(grad, other.device)
        one.grad = None


def _pass_on_gradients(left: torch.Tensor, kept: torch.Tensor) -> None:
    """Has the object of a weight get gradients of what was computed with what it was before."""
    if not (left.is_leaf and left.requires_grad and left._use_count() > 1):  # type: ignore[attr-defined]
        return
    reference = weakref.ref(kept)

    def pass_on(one: torch.Tensor) -> None:
        owner, grad = reference(), one.grad
        if owner is None or grad is None or owner.shape != grad.shape:
            return
        grad = moved(grad, owner.device)
        owner.grad, one.grad = grad if owner.grad is None else owner.grad + grad, None
        for hook in (getattr(owner, "_post_accumulate_grad_hooks", None) or {}).values():
            hook(owner)

    left.register_post_accumulate_grad_hook(pass_on)

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
    return torch.equal(bits_of(moved(tensor.detach(), HOST)), bits_of(other))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's numbers in their order, also where its memory has the conjugates or negatives."""
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


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
    mine, theirs = hung_on(one) | _of_class(other), hung_on(other) | _of_class(one)
    steps = (
        partial(torch._C._swap_tensor_impl, one, other),
        partial(setattr, one, "__class__", type(other)),
        partial(setattr, other, "__class__", type(one)),
        partial(setattr, one, "__dict__", mine),
        partial(setattr, other, "__dict__", theirs),
        *hooking(one, one),
        *hooking(other, other),
    )
    deque(map(partial.__call__, steps), maxlen=0)
    _pass_on_gradients(other, one)


_exchange_untraced = torch._compile._disable_dynamo(_exchange)


def hang_on(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a tensor that comes in the place of another what somebody hung on that: attributes and hooks."""
    vars(tensor).update(hung_on(before))
    for step in hooking(tensor, before):
        step()


def attributes_on(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Gives a copy of a tensor the attributes that somebody hung on that."""
    vars(tensor).update(hung_on(before))


def gradient_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The gradient that a tensor has; one that is no leaf of autograd has none."""
    return tensor.grad if tensor is not None and tensor.is_leaf else None


def is_dense(grad: torch.Tensor) -> bool:
    """Whether a gradient has memory of its own, which goes to any device; a sparse one has none."""
    return grad.layout == torch.strided


def gradient_for(tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a tensor for another that comes in its place, and has none; on that one's device."""
    grad = gradient_of(before)
    if (
        grad is None
        or not is_dense(grad)
        or not tensor.is_leaf
        or tensor.grad is not None
        or grad.shape != tensor.shape
    ):
        return gradient_of(tensor)
    return moved(grad, tensor.device).to(tensor.dtype)


def _of_class(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes in which a tensor's class keeps what the tensor is."""
    names = {"_is_param", *getattr(type(tensor), "HELD", ())}
    return {name: value for name, value in vars(tensor).items() if name in names}


def hung_on(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that others have given a tensor."""
    own = _of_class(tensor)
    return {name: value for name, value in vars(tensor).items() if name not in own}


def hooking(tensor: torch.Tensor, before: torch.Tensor) -> list[partial[None]]:
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

"""Gives tensor objects other contents, so that whoever holds the object of a weight goes on holding the weight.

An optimizer is made over the parameters of a module, before a picture as well as after it. Where a weight is brought,
moved or written, its object therefore stays, and what is in it is another: its memory, its class, its attributes.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from functools import partial

import torch
from torch import nn

from ...compiler.frontend.refusals import foreign_library
from ..devices.transfers import moved


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
    steps = (
        partial(torch._C._swap_tensor_impl, one, other),
        partial(setattr, one, "__class__", type(other)),
        partial(setattr, other, "__class__", type(one)),
        partial(setattr, one, "__dict__", vars(other)),
        partial(setattr, other, "__dict__", vars(one)),
    )
    deque(map(partial.__call__, steps), maxlen=0)
    _pass_on_gradients(other, one)


_exchange_untraced = torch._compile._disable_dynamo(_exchange)


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

    left.register_post_accumulate_grad_hook(pass_on)

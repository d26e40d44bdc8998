"""Flex attention on simulated devices: PyTorch names the kinds of devices that have it, and computes it by a compiler.

A call with tensors of a simulated device is computed on copies in host memory, as PyTorch computes it on the CPU; a
plan has calls on any device be answered without computing them (``flex_answer.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex
from torch.utils import _pytree as pytree

from ...compiler.errors import TraceError
from ..devices.block_masks import is_block_mask, moved_function, moved_mask
from ..flex_answer import FLEX_ANSWER
from .tensor import SimTensor

_HOST = torch.device("cpu")
_REFUSED = "the higher-order op flex_attention cannot be compiled: rewrite the model without it"


def install() -> None:
    """Lets flex attention take tensors of simulated devices, and be answered by plans; once is enough."""
    if not hasattr(flex.flex_attention, "_takes_simulated"):
        taking: Any = functools.wraps(flex.flex_attention)(functools.partial(_attend, flex.flex_attention))
        taking._takes_simulated = True
        flex.flex_attention = taking


def _attend(
    attend: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        raise TraceError(_REFUSED)  # which PyTorch would say of some devices only, after it has compiled for them
    answer = None if torch.compiler.is_dynamo_compiling() else FLEX_ANSWER.get()
    wants_more = len(args) > 4 or kwargs.get("return_lse") or kwargs.get("return_aux") is not None
    if answer is not None and not wants_more:
        return answer(query, key, value)
    if not isinstance(query, SimTensor):
        return attend(query, key, value, *args, **kwargs)
    device = query.device
    result = attend(
        *pytree.tree_map(functools.partial(_on_host, device), (query, key, value, *args)),
        **pytree.tree_map(functools.partial(_on_host, device), kwargs),
    )
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), result)


def _on_host(device: torch.device, value: Any) -> Any:
    """A value in host memory; raises RuntimeError for a tensor of another device than the query's."""
    if isinstance(value, torch.Tensor):
        if value.device != device:
            raise RuntimeError(f"flex_attention got tensors on {device} and {value.device}: copy them to one device")
        return value.cpu()
    if is_block_mask(value):
        _on_host(device, value.kv_num_blocks)
        return moved_mask(value, _HOST)
    return moved_function(value, functools.partial(_on_host, device))

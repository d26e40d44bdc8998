"""Flex attention on simulated devices: PyTorch names the kinds of devices that have it, and computes it by a compiler.

A call with tensors of a simulated device is computed on copies in host memory, as PyTorch computes it on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex
from torch.utils import _pytree as pytree

from ..devices.block_masks import is_block_mask, moved_function, moved_mask
from .tensor import SimTensor

_HOST = torch.device("cpu")


def install() -> None:
    """Lets flex attention take tensors of simulated devices; once is enough."""
    if not hasattr(flex.flex_attention, "_takes_simulated"):
        taking: Any = functools.wraps(flex.flex_attention)(functools.partial(_attend, flex.flex_attention))
        taking._takes_simulated = True
        flex.flex_attention = taking


def _attend(attend: Callable[..., Any], query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(query, SimTensor):
        return attend(query, *args, **kwargs)
    device = query.device
    result = attend(
        *pytree.tree_map(functools.partial(_on_host, device), (query, *args)),
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

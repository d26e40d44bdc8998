"""Brings block masks of PyTorch's flex attention to a device, with what they close over, which PyTorch leaves."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .transfers import handed

_FLEX = "torch.nn.attention.flex_attention"


def is_block_mask(value: Any) -> bool:
    """Whether a value is a block mask; there is none before its module was imported."""
    flex = sys.modules.get(_FLEX)
    return flex is not None and isinstance(value, flex.BlockMask)


def moved_mask(mask: Any, device: torch.device) -> Any:
    """A block mask on a device, with the tensors that its function reads."""
    there = copy.copy(mask)
    held = {name: value for name, value in vars(mask).items() if name != "mask_mod"}
    vars(there).update(pytree.tree_map_only(torch.Tensor, lambda tensor: handed(tensor, device), held))
    there.mask_mod = moved_function(mask.mask_mod, lambda tensor: handed(tensor, device))
    return there


def moved_function(function: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A function that closes over other tensors; the same function where it closes over none."""
    if not isinstance(function, FunctionType) or not function.__closure__:
        return function
    cells = tuple(_moved_cell(cell, change) for cell in function.__closure__)
    if all(new is old for new, old in zip(cells, function.__closure__, strict=True)):
        return function
    other = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    other.__kwdefaults__ = function.__kwdefaults__
    return other


def _moved_cell(cell: CellType, change: Callable[[torch.Tensor], torch.Tensor]) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # nothing is in it yet
        return cell
    changed = _changed(held, change)
    return cell if changed is held else CellType(changed)


def _changed(held: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(held, torch.Tensor):
        return change(held)
    if type(held) in (tuple, list):
        items = [_changed(item, change) for item in held]
        return held if all(new is old for new, old in zip(items, held, strict=True)) else type(held)(items)
    return moved_function(held, change)

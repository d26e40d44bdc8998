"""A reference in float64 that is not rounded where its module casts to float32, though the module is in float64.

Many models cast what they compute to float32, for norms or attention. A module in float64 does so too, and rounds
there as in eager, by the same kernels: eager is near such a reference because it makes the same errors, and what adds
the same numbers in another order, with smaller errors, is not. What no weight has a part in stays as eager has it:
tables, and times that are embedded, are the same for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class InFloat64(TorchDispatchMode):
    """Has what is computed from parameters in float64 stay in float64, whatever floating type is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._of_weights = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes one operation, in float64 if an operand is of weights."""
        asked = kwargs or {}
        if not any(map(self._is_of_weights, pytree.tree_leaves((args, asked)))):
            return func(*args, **asked)
        if asked.get("dtype") in _NARROW:
            asked = {**asked, "dtype": torch.float64}
        if not func._schema.is_mutable:  # what is written stays what it is
            args, asked = pytree.tree_map(_widened, (args, asked))
        result = func(*args, **asked)
        for one in pytree.tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self._of_weights[one] = True
        return result

    def _is_of_weights(self, one: Any) -> bool:
        return isinstance(one, nn.Parameter) or (isinstance(one, torch.Tensor) and one in self._of_weights)


def _widened(one: Any) -> Any:
    return one.double() if isinstance(one, torch.Tensor) and one.dtype in _NARROW else one

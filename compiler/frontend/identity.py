"""Refuses a module that computes something else where two of its arguments are one tensor (``query is key``).

A trace shows each argument as a tensor of its own, and Python does not tell who compares two objects. So where a call
is given one tensor twice, the module is called twice more on fake tensors, which takes a fraction of the time of the
trace, once with tensors of their own and once with one: the operations must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import TraceError
from ..ir.asked import one_tensor

_Calls = Callable[[Mapping[str, Any]], object]


def refuse_identity(module: nn.Module, given: Mapping[str, Any], example: Mapping[str, Any], call: _Calls) -> None:
    """Raises TraceError where a module computes otherwise because some of the arguments given to it are one tensor.

    ``example`` has a tensor of its own for each. Where these calls fail, nothing is known, and nothing refused.
    """
    names = [name for name in example if isinstance(given[name], torch.Tensor)]
    same = one_tensor(given[name] for name in names)
    if not same:
        return
    first = {name: example[names[index]] for name, index in zip(names, same, strict=True)}
    try:
        differs = _operations(call, example) != _operations(call, {**example, **first})
    except Exception:  # what looks at values cannot be called with fakes
        return
    if differs:
        twice = [name for index, name in enumerate(names) if same.count(same[index]) > 1]
        raise TraceError(
            f"{type(module).__name__} computes otherwise where {' and '.join(twice)} are one tensor, which no program "
            "tells from two: give a clone of one"
        )


def _operations(call: _Calls, given: Mapping[str, Any]) -> Sequence[object]:
    noted = _Noted()
    with noted:
        call(given)
    return noted.found


class _Noted(TorchDispatchMode):
    """Notes the operations that are called meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append(func)
        return func(*args, **(kwargs or {}))

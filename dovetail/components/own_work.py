"""What a module's own Python computes between its parts in a dry run: noted by its cost, and attention not computed.

No program has it, so that a plan would not count its seconds. Attention is answered with zeros, which is what it would
give, for it is handed zeros: a long sequence would take minutes otherwise.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..passes.simulate.cost import OpCost


class OwnWork(TorchFunctionMode):
    """Notes in ``costs`` what is computed while it is entered."""

    def __init__(self, costs: Counter[OpCost]) -> None:
        super().__init__()
        self._costs = costs

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Notes nothing meanwhile, and is out of the way of who asks for modes."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes, or answers attention with zeros, and notes what it costs."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and len(args) >= 3:
            return self._attention(*args[:3])
        result = func(*args, **kwargs)
        cost = _traffic(func, pytree.tree_leaves((args, kwargs)), result)
        if cost.written:
            self._costs[cost] += 1
        return result

    def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        *batch, length, _ = query.shape
        made = query.new_zeros((*batch[:-1], length, *batch[-1:], value.shape[-1]))
        result = made.transpose(-2, -3) if batch else made
        flops = 2.0 * query.numel() * key.shape[-2] + 2.0 * result.numel() * key.shape[-2]
        read = query.nbytes + key.nbytes + value.nbytes
        self._costs[OpCost(flops, read, result.nbytes, _name_of(query), attention=True)] += 1
        return result


def _traffic(func: Callable[..., Any], given: Sequence[Any], result: Any) -> OpCost:
    """The bytes that an operation reads and writes; none of one that makes a view, or says something of a tensor."""
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    made = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    if not made:
        return OpCost()
    known = {one.untyped_storage()._cdata for one in tensors}
    name = getattr(func, "__name__", "")
    writes = name.endswith("_") and not name.endswith("__")
    new = [one for one in made if writes or one.untyped_storage()._cdata not in known]
    if not new:
        return OpCost()
    return OpCost(0.0, sum(one.nbytes for one in tensors), sum(one.nbytes for one in new), _name_of(new[0]))


def _name_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""What a module's own Python computes between its parts in a dry run: noted by its cost, and not computed if large.

No program has it, so that a plan would not count its seconds. Attention and what makes large tensors on the host are
answered with zeros of the right shape, which take no time: no more is known of numbers that follow from zeros, and a
long sequence would take minutes otherwise.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Token
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..passes.simulate.cost import OpCost
from ..runtime.flex_answer import FLEX_ANSWER, Answer

_LARGE = 1 << 20
"""So many elements of a tensor on the host are zeros, whatever is computed of it."""


class OwnWork(TorchFunctionMode):
    """Notes in ``costs`` what is computed while it is entered."""

    def __init__(self, costs: Counter[OpCost]) -> None:
        super().__init__()
        self._costs = costs
        self._tokens: list[Token[Answer | None]] = []

    def __enter__(self) -> OwnWork:
        """Notes what is computed from now on."""
        self._tokens.append(FLEX_ANSWER.set(self._attention))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Notes nothing any more."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        FLEX_ANSWER.reset(self._tokens.pop())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Notes nothing meanwhile, and is out of the way of who asks for modes."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes, or answers attention with zeros, and notes what it costs."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and len(args) >= 3:
            return self._attention(*args[:3])
        leaves = pytree.tree_leaves((args, kwargs))
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, filter(_is_tensor, leaves))):
            return func(*args, **kwargs)  # within vmap nothing has a storage by which it is known
        result = _of_zeros(func, args, kwargs)
        cost = _traffic(func, leaves, result)
        if cost.written:
            self._costs[cost] += 1
        return result

    def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        same = query.shape[-1] == value.shape[-1]
        result = torch.zeros_like(query) if same else query.new_zeros((*query.shape[:-1], value.shape[-1]))
        flops = 2.0 * query.numel() * key.shape[-2] + 2.0 * result.numel() * key.shape[-2]
        read = query.nbytes + key.nbytes + value.nbytes
        self._costs[OpCost(flops, read, result.nbytes, _name_of(query), attention=True)] += 1
        return result


def _of_zeros(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a function gives; of large tensors on the host zeros that look like it, unless it is a view or a value.

    Integers and masks are computed as they are, for they say how long something is.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    is_large = any(one.numel() >= _LARGE and one.is_floating_point() for one in tensors)
    if not is_large or not all(one.is_cpu for one in tensors) or getattr(func, "__name__", "").endswith("_"):
        return func(*args, **kwargs)
    hollow = [_without_data(one) if isinstance(one, torch.Tensor) else one for one in leaves]
    try:
        given, named = pytree.tree_unflatten(hollow, spec)
        looks = func(*given, **named)
    except (RuntimeError, NotImplementedError, TypeError):  # it asks for values
        return func(*args, **kwargs)
    made = [one for one in pytree.tree_leaves(looks) if isinstance(one, torch.Tensor)]
    known = {one.untyped_storage()._cdata for one in hollow if isinstance(one, torch.Tensor)}
    is_new = all(one.is_meta and one.untyped_storage()._cdata not in known for one in made)
    if not made or not is_new or not all(one.is_floating_point() for one in made):
        return func(*args, **kwargs)
    return pytree.tree_map_only(torch.Tensor, lambda one: torch.zeros_like(one, device="cpu"), looks)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


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

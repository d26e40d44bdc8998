"""Writes the casts of ``torch.autocast`` into a graph, where it acted on what the trace recorded.

torch.export records ops above autocast: the values that it notes have the dtypes that autocast gives them, the casts
that made them so are not in the graph. Which operands an op casts, and to what, is not read off a list but looked up by
running the op on fake tensors, once for each op and its dtypes, on the host and on the device that the program is for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..devices.device import HOST
from ..errors import TraceError
from ..ir.program import LOWERED
from .diagnostics import line_of_stack

aten = torch.ops.aten

_LOWER = tuple(LOWERED.values())


def autocast_state(kind: str) -> torch.dtype | None:
    """The dtype to which autocast lowers ops on a kind of device now; None where it is off."""
    if not torch._C._is_any_autocast_enabled() or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


@contextlib.contextmanager
def autocast_set(kind: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Lets autocast act on a kind of device, or not, and keep no cast of a weight meanwhile."""
    enabled, before, cached = (
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )
    torch.set_autocast_enabled(kind, dtype is not None)
    torch.set_autocast_dtype(kind, dtype or before)
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, before)
        torch.set_autocast_cache_enabled(cached)


class Casts:
    """What autocast to a dtype does on a kind of device, op by op."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        self._kind = kind
        self._dtype = dtype
        self._known: dict[Any, tuple[torch.dtype | None, ...] | None] = {}

    def apply(self, node: Node) -> None:
        """Inserts the casts of a node's operands before it.

        Raises TraceError where autocast acts within the op, or acts otherwise on the device than on the host.
        """
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or _names_device(node):
            return
        operands = [arg for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), Tensor)]
        if not any(operand.meta["val"].is_floating_point() for operand in operands):
            return
        for operand, dtype in zip(operands, self._casts(node, operands), strict=True):
            if dtype is not None:
                with node.graph.inserting_before(node):
                    cast = node.graph.call_function(aten.to.dtype, (operand, dtype))
                cast.meta = {**node.meta, "val": _like(operand.meta["val"], dtype)}
                node.replace_input_with(operand, cast)

    def _casts(self, node: Node, operands: list[Node]) -> tuple[torch.dtype | None, ...]:
        others = tuple(leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, torch.dtype))
        key = node.target, tuple(operand.meta["val"].dtype for operand in operands), others
        if key not in self._known:
            here = _observe(node, operands, HOST, self._dtype)
            same = self._kind == HOST or _observe(node, operands, self._kind, self._dtype) == here
            self._known[key] = here if same else None
        found = self._known[key]
        if found is None:
            where = line_of_stack(node.meta.get("stack_trace") or "")
            raise TraceError(
                f"autocast to {self._dtype} on {self._kind} cannot be written into the graph at {where or node}, for "
                f"{node.target} casts within itself there: convert the model's weights to {self._dtype} instead"
            )
        return found


def casts_of(kind: str, dtype: Any) -> Casts | None:
    """What autocast to a dtype does; nothing where it is off, or the dtype is none that it lowers to."""
    return Casts(kind, dtype) if dtype in _LOWER else None


class _Record(TorchDispatchMode):
    """Notes which ops run, on which dtypes; casts of the given tensors before anything else are those of autocast."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {id(tensor): index for index, tensor in enumerate(given)}
        self.casts: dict[int, torch.dtype] = {}
        self.ran: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        index = self._given.get(id(args[0])) if args else None
        if func is aten._to_copy.default and index is not None and not self.ran:
            self.casts[index] = kwargs["dtype"]
        elif func.namespace != "prim":  # such as a question for the device
            self.ran.append((func, [_dtype_of(leaf) for leaf in pytree.tree_leaves((args, kwargs))]))
        return func(*args, **(kwargs or {}))


def _observe(node: Node, operands: list[Node], kind: str, dtype: torch.dtype) -> tuple[torch.dtype | None, ...] | None:
    """The dtypes to which autocast casts the operands of a node; None where that is not all that it does."""
    given = [_like(operand.meta["val"], operand.meta["val"].dtype, kind) for operand in operands]
    lowered = _ops(node, operands, given, kind, dtype)
    if lowered is None:
        return None
    if lowered == _ops(node, operands, given, kind, None):
        return (None,) * len(given)
    with autocast_set(kind, dtype):
        seen = _run(node, operands, given, given)
    casts = tuple(seen.casts.get(index) for index in range(len(given)))
    cast = [tensor if to is None else _like(tensor, to, kind) for tensor, to in zip(given, casts, strict=True)]
    return casts if _ops(node, operands, cast, kind, None) == seen.ran else None


def _ops(
    node: Node, operands: list[Node], given: list[Tensor], kind: str, dtype: torch.dtype | None
) -> list[Any] | None:
    """What a node runs on given tensors; None where it cannot run, on such dtypes together or on fakes at all."""
    with autocast_set(kind, dtype):
        try:
            return _run(node, operands, given, []).ran
        except Exception:
            return None


def _run(node: Node, operands: list[Node], given: list[Tensor], watched: list[Tensor]) -> _Record:
    tensors = dict(zip(operands, given, strict=True))
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda arg: tensors.get(arg, arg.meta.get("val")))
    record = _Record(watched)
    with torch.no_grad(), record:
        node.target(*args, **kwargs)  # type: ignore[operator]
    return record


def _like(tensor: Tensor, dtype: torch.dtype, kind: str = HOST) -> Tensor:
    assert isinstance(tensor, FakeTensor)
    with tensor.fake_mode:
        return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=dtype, device=kind)


def _names_device(node: Node) -> bool:
    """Whether an op moves or makes a tensor, or asks where it lies: autocast acts on none of these."""
    return any(isinstance(value, torch.device) for value in (*node.args, *node.kwargs.values()))


def _dtype_of(leaf: Any) -> Any:
    return leaf.dtype if isinstance(leaf, Tensor) else leaf if isinstance(leaf, torch.dtype) else None

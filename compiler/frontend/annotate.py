"""Turns what torch.export left in ``node.meta`` into dovetail's own annotations.

The exported metadata holds fake tensors and stack traces; what is kept of them is small, frozen and can be written to
a file: types with a storage number each, module paths and source lines.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import map_aggregate

from ..errors import TraceError
from ..ir.program import HERE, Origin
from ..ir.sizes import evaluate
from ..ir.value import TensorType, Value
from .diagnostics import cannot_trace, innermost, line_of_stack
from .guards import expression_text


def annotate(graph: Graph, name: str) -> dict[str, int]:
    """Replaces the metadata of every node by its value and origin.

    Returns the symbols of dynamic dimensions with the sizes they had in the example. Raises TraceError, with the name
    of the module, where a size depends on the values of tensors.
    """
    fakes = [node.meta.get("val") for node in graph.nodes]  # all alive at once: storages are told apart by address
    reader = _Reader()
    for node, fake in zip(graph.nodes, fakes, strict=True):
        if node.target is torch.ops.aten.lift_fresh_copy.default:
            reader.part(fake)
        try:
            node.meta = {"value": reader.value(fake), "origin": _origin(node.meta)}
        except _UnknownSize as error:
            where = line_of_stack(node.meta.get("stack_trace") or "")
            raise TraceError(cannot_trace(name, where, f"the size {error} depends on the values of tensors")) from None
    return reader.symbols


class _UnknownSize(Exception):
    """A size has no value in the example."""


class _Reader:
    """Reads fake tensors into types, numbering storages as they are met."""

    def __init__(self) -> None:
        self.symbols: dict[str, int] = {}
        self._storages: dict[int, int] = {}
        self._numbers = count()

    def value(self, fake: Any) -> Value:
        if isinstance(fake, torch.Tensor):
            return self._tensor(fake)
        if isinstance(fake, (tuple, list)):
            return tuple(map(self.value, fake))
        return None

    def part(self, fake: torch.Tensor) -> None:
        """Numbers the storage of a fake tensor anew: the trace lets the copy of a constant share the constant's."""
        self._storages[fake.untyped_storage()._cdata] = next(self._numbers)

    def _tensor(self, fake: torch.Tensor) -> TensorType:
        address = fake.untyped_storage()._cdata
        if address not in self._storages:
            self._storages[address] = next(self._numbers)
        storage = self._storages[address]
        shape = tuple(map(self._size, fake.shape))
        stride = tuple(map(self._size, fake.stride()))
        hint = tuple(map(_hint, fake.shape)) if any(isinstance(size, str) for size in shape) else ()
        return TensorType(shape, fake.dtype, stride, storage, hint)

    def _size(self, size: int | torch.SymInt) -> int | str:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.is_number:
            return int(expression)
        known = _known_sizes(size.node.shape_env)
        for symbol in expression.free_symbols:
            if symbol not in known:
                raise _UnknownSize(expression)
            self.symbols.setdefault(str(symbol), int(known[symbol]))
        return self._written(expression)

    def _written(self, expression: Any) -> str:
        """An expression as torch writes it, where that can be evaluated, or in the language of sizes."""
        for text in (str(expression), expression_text(expression)):
            with contextlib.suppress(ValueError, KeyError):
                evaluate(text, self.symbols)
                return text
        raise _UnknownSize(expression)


def _known_sizes(shapes: Any) -> Mapping[Any, Any]:
    """The size that each symbol has in the trace; newer versions of torch warn at the older name."""
    known: Mapping[Any, Any] | None = getattr(shapes, "backed_var_to_val", None)
    return shapes.var_to_val if known is None else known


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _origin(meta: dict[str, Any]) -> Origin:
    stack = meta.get("nn_module_stack")
    path, cls = next(reversed(stack.values())) if stack else ("", "")
    name = cls if isinstance(cls, str) else cls.__qualname__
    return Origin(path.partition("@")[0], name.rpartition(".")[2], _source(meta.get("stack_trace") or ""))


@lru_cache(maxsize=4096)
def _source(stack: str) -> str:
    """The innermost line that is not torch's own, as ``package/file.py:line``."""
    frame = innermost(stack)
    return f"{_shorten(frame[0])}:{frame[1]}" if frame else ""


@lru_cache(maxsize=1024)
def _shorten(path: str) -> str:
    roots = [root for root in sys.path if root and path.startswith(root + "/")]
    return path.removeprefix(max(roots, key=len) + "/") if roots else path.rpartition("/")[2]


def drop_frozen_devices(graph: Graph) -> None:
    """Replaces the devices that the trace froze into arguments by HERE, and drops pinning of fresh tensors."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if any(isinstance(argument, torch.device) for argument in (*node.args, *node.kwargs.values())):
            node.args = map_aggregate(node.args, _here)
            node.kwargs = map_aggregate(node.kwargs, _here)
        if not node.kwargs.get("pin_memory", True):
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "pin_memory"}


def _here(argument: Any) -> Any:
    return HERE if isinstance(argument, torch.device) else argument

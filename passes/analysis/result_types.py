"""What operations yield, found by running them without data, once for operands that are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from ...compiler.ir.fake_strides import EagerStrides
from ...compiler.ir.program import HERE, Program, value_of
from ...compiler.ir.value import TensorType, Value, flat


class ResultTypes:
    """Finds the types of new nodes of a program, in fresh memory or in that of an operand."""

    def __init__(self, program: Program) -> None:
        self.fresh = program.fresh_storages()
        self.mode = EagerStrides()
        self.known: dict[Any, Value] = {}

    def of(self, node: Node) -> Value:
        """What a node yields, in fresh memory or in that of an operand."""
        operands = node.all_input_nodes
        kinds = tuple(_kind(value_of(one)) for one in operands)
        names = {one: f"%{number}" for number, one in enumerate(operands)}
        key = node.target, kinds, repr(map_arg((node.args, node.kwargs), names.__getitem__))
        if key not in self.known:
            self.known[key] = self._found(node)
        held = [tensor.storage for one in operands for tensor in flat(value_of(one))]
        fresh: dict[int, int] = {}
        return _with_storages(
            self.known[key], lambda at: held[at] if at >= 0 else fresh.setdefault(at, next(self.fresh))
        )

    def _found(self, node: Node) -> Value:
        """The type of a node's result; storages of operands by their numbers, others below 0."""
        with self.mode:
            fakes = {one: _fake(value_of(one)) for one in node.all_input_nodes}
            args, kwargs = map_aggregate((node.args, node.kwargs), lambda one: _given(one, fakes))
            found = node.target(*args, **kwargs)  # type: ignore[operator]
        given = [tensor for fake in fakes.values() for tensor in _tensors(fake)]
        storages = {tensor.untyped_storage()._cdata: number for number, tensor in reversed(list(enumerate(given)))}
        return _value_of(found, storages)


def _given(argument: Any, fakes: Mapping[Node, Any]) -> Any:
    """An argument of an operation that is run without data, all of it on one device."""
    if isinstance(argument, Node):
        return fakes[argument]
    return torch.device("cpu") if argument == HERE else argument


def _kind(value: Value) -> Any:
    if isinstance(value, TensorType):
        return value.shape, value.dtype, value.stride
    return None if value is None else tuple(map(_kind, value))


def _fake(value: Value) -> Any:
    if isinstance(value, TensorType):
        return torch.empty_strided(value.sizes, value.stride, dtype=value.dtype)  # type: ignore[arg-type]
    return 1 if value is None else tuple(map(_fake, value))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, (tuple, list)) else []


def _value_of(found: Any, storages: dict[int, int]) -> Value:
    if isinstance(found, torch.Tensor):
        number = storages.setdefault(found.untyped_storage()._cdata, -1 - len(storages))
        return TensorType(tuple(found.shape), found.dtype, tuple(found.stride()), number)
    return None if not isinstance(found, (tuple, list)) else tuple(_value_of(one, storages) for one in found)


def _with_storages(value: Value, storage: Callable[[int], int]) -> Value:
    if isinstance(value, TensorType):
        return replace(value, storage=storage(value.storage))
    return None if value is None else tuple(_with_storages(one, storage) for one in value)

"""Renames storages after two of them became one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.fx import Node

from ...compiler.ir.program import tensors_of, value_of
from ...compiler.ir.value import TensorType, Value


def rename_storages(node: Node, merged: Mapping[int, int]) -> None:
    """Gives the tensors of a node the storages that theirs were merged into."""
    if merged and any(tensor.storage in merged for tensor in tensors_of(node)):
        node.meta["value"] = _renamed(value_of(node), merged)


def _renamed(value: Value, merged: Mapping[int, int]) -> Value:
    if isinstance(value, TensorType):
        return replace(value, storage=merged.get(value.storage, value.storage))
    return None if value is None else tuple(_renamed(item, merged) for item in value)

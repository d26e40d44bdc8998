"""Has the readers of packed weights compute with the packed bytes.

A weight that rests in a GGUF type is multiplied with, or looked up in, by one operation that unpacks a chunk of rows
at a time; so neither the weights' bytes nor the memory plan depend on unpacked copies. Whatever else reads such a
weight reads the result of one node that unpacks it whole; that requires no gradient, and so a product with a view of it
may round as one with a frozen weight does. Must run before weights are placed, by their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node

from ...compiler.ir.ops import LIBRARY as LIBRARY  # the operations exist once it is imported
from ...compiler.ir.program import Program, origin_of, value_of
from ...compiler.ir.sizes import evaluate
from ...compiler.ir.value import TensorType, dense_stride
from ..infra.base import Change, Pass


@dataclass(frozen=True)
class Quantize(Pass):
    """Lowers matmuls with packed weights, and lookups in them, to operations on packed bytes."""

    name: ClassVar[str] = "quantize"
    refuses: ClassVar[frozenset[str]] = frozenset({"placed", "quantized"})
    ensures: ClassVar[frozenset[str]] = frozenset({"quantized"})

    def run(self, program: Program) -> Change:
        """Gives each packed weight its bytes as value, and rewrites its readers."""
        packed = [node for node in program.weight_nodes() if program.weight(node).quant]
        order = {node: index for index, node in enumerate(program.graph.nodes)} if packed else {}
        for node, fresh in zip(packed, program.fresh_storages(), strict=False):
            _lower(program, node, sorted(node.users, key=order.__getitem__), fresh)
        return Change(len(packed), "packed weights")


def _lower(program: Program, node: Node, readers: list[Node], storage: int) -> None:
    """Rewrites the readers of a weight and gives it its bytes.

    The unpacked numbers, where somebody reads them, keep the storage number that the weight's views name.
    """
    dense = value_of(node)
    assert isinstance(dense, TensorType)
    weight = program.weight(node)
    node.meta["value"] = TensorType.dense(*weight.stored, storage)
    others = [reader for reader in readers if not _fuse(program, reader, node)]
    if not others:
        return
    with program.graph.inserting_before(others[0]):
        arguments = (node, weight.quant, dense.dtype)
        unpacked = program.graph.call_function(torch.ops.dovetail.dequantize.default, arguments)
    unpacked.meta = {"value": replace(dense, stride=dense_stride(dense.sizes)), "origin": origin_of(others[0])}
    for reader in others:
        reader.replace_input_with(node, unpacked)


def _fuse(program: Program, reader: Node, node: Node) -> bool:
    """Makes a reader an operation on packed bytes, if there is one that does what it does."""
    weight, ops, args = program.weight(node), torch.ops.dovetail, _arguments(reader)
    if len(weight.shape) != 2 or args.get("weight") is not node or list(args.values()).count(node) > 1:
        return False
    if reader.target is torch.ops.aten.linear.default and (not weight.frozen or _is_one_matrix(program, args)):
        reader.target = ops.quantized_linear.default
        reader.args = (args["input"], node, args.get("bias"), weight.quant)
    elif reader.target is torch.ops.aten.embedding.default:
        reader.target = ops.quantized_embedding.default
        reader.args = (node, args["indices"], weight.quant, weight.dtype)
    else:
        return False
    reader.kwargs = {}
    return True


def _is_one_matrix(program: Program, args: dict[str, Any]) -> bool:
    """Whether linear multiplies its input as one matrix even with a frozen weight, as the operation does."""
    value = value_of(args["input"])
    assert isinstance(value, TensorType)
    sizes = [evaluate(size, program.symbols) for size in value.shape]
    strides = [evaluate(stride, program.symbols) for stride in value.stride]
    return all(strides[at] == strides[at + 1] * sizes[at + 1] for at in range(len(sizes) - 2))


def _arguments(reader: Node) -> dict[str, Any]:
    """What an operation is given, by the names of its schema."""
    if not isinstance(reader.target, torch._ops.OpOverload):
        return {}
    names = (argument.name for argument in reader.target._schema.arguments)
    return {**dict(zip(names, reader.args, strict=False)), **reader.kwargs}

"""Which ops alias their input: the four classes of ATen ops, and a value's base.

A schema tells what an op may do to its inputs; the traced storages tell what it did. Both are kept, for a program
that was read from a file has only the second as data and the first as a law.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from .program import Program, tensors_of, weight_of


class Alias(Enum):
    """What a schema says of an op's output and its inputs' memory."""

    COMPUTE = "the output is fresh memory"
    VIEW = "the output aliases an input"
    MAYBE = "the output is the input, a view of it, or a copy"
    WRITE = "an input is written"


_HIDDEN = {"dropout", "type_as", "meshgrid", "einsum"}
_ASKING = {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"}


@cache
def alias_class(target: Any) -> Alias:
    """The class of an op by its schema (torch's alias annotations and its composite kernels).

    Ops that return an input with no annotation (eval dropout, ``type_as``, ``meshgrid``, ``einsum``) are MAYBE. Those
    that only ask a tensor for its layout (``sym_size``) count as views of it: they need it where it is.
    """
    if target is operator.getitem:
        return Alias.VIEW
    if not isinstance(target, torch._ops.OpOverload):
        return Alias.COMPUTE
    if target is torch.ops.aten.detach_.default:  # it writes no element
        return Alias.VIEW
    infos = [argument.alias_info for argument in target._schema.arguments]
    if any(info is not None and info.is_write for info in infos):
        return Alias.WRITE
    if target.overloadpacket.__name__ in _HIDDEN:
        return Alias.MAYBE
    if target.overloadpacket.__name__ in _ASKING:
        return Alias.VIEW
    returned = any(result.alias_info is not None for result in target._schema.returns)
    if not returned or not any(info is not None for info in infos):
        return Alias.COMPUTE
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return Alias.MAYBE if composite else Alias.VIEW


def writes(node: Node) -> set[int]:
    """The storages that a node writes."""
    if node.op != "call_function" or alias_class(node.target) is not Alias.WRITE:
        return set()
    found: set[int] = set()
    for argument, value in bound_arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Node):
                    found.update(tensor.storage for tensor in tensors_of(item))
    return found


def bound_arguments(node: Node) -> list[tuple[Any, Any]]:
    """Pairs of a schema's argument and the value a node passes for it."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    pairs = list(zip(arguments, node.args, strict=False))
    named = {argument.name: argument for argument in arguments}
    return pairs + [(named[key], value) for key, value in node.kwargs.items() if key in named]


def base_of(node: Node) -> Node | None:
    """The operand whose memory a node's output lies in; None for a node that computes fresh memory.

    Exact for the traced strides: it compares the storages that the trace saw. An item taken out of several results
    lives where they live, whether or not it shares memory with an input; so does a number that a tensor is asked for,
    and an op that yields nothing lives where it writes.
    """
    if node.op != "call_function":
        return None
    mine = {tensor.storage for tensor in tensors_of(node)} or writes(node)
    asks = not mine and alias_class(node.target) is Alias.VIEW
    if asks or node.target is operator.getitem:
        return next((first for first in node.args[:1] if isinstance(first, Node)), None)
    if not mine:
        return None
    for operand in node.all_input_nodes:
        if mine & {tensor.storage for tensor in tensors_of(operand)}:
            return operand
    return None


def readings(program: Program) -> Iterator[tuple[Node, Node, int]]:
    """Each reading of a value that is no weight: who reads, what, and how often its memory had been written by then."""
    written: Counter[int] = Counter()
    for node in program.graph.nodes:
        for operand in node.all_input_nodes:
            if weight_of(operand) is None:
                yield node, operand, max((written[tensor.storage] for tensor in tensors_of(operand)), default=0)
        if node.op == "call_function":
            written.update(writes(node))

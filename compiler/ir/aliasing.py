"""Which ops alias their inputs, as certainly as it can be said, and what that means for memory.

Three answers of different certainty, and every caller names the one it needs:

- `alias_class` reads the schema: an op *is* a view (VIEW), *may be* one (MAYBE: whether it copies depends on strides,
  and kernels choose strides), writes an input (WRITE), or yields fresh memory (COMPUTE). It holds under any strides.
- `possible_memory` joins all values that may share memory under any strides. What must stay right whatever kernels
  choose (moving a view over a write, dropping a copy, overwriting an operand) rests on it.
- `base_of` compares the storages of the trace. It is a guess about kernels, good enough to place a node.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from .program import Program, TensorType, tensors_of, value_of, weight_of


class Alias(Enum):
    """What a schema says of an op's output and its inputs' memory, under any strides."""

    COMPUTE = "the output is fresh memory"
    VIEW = "the output aliases an input"
    MAYBE = "the output is the input, a view of it, or a copy"
    WRITE = "an input is written"


_HIDDEN = {"dropout", "feature_dropout", "alpha_dropout", "type_as", "meshgrid", "einsum", "broadcast_tensors"}
"""Ops that may return an input, or views of inputs, and have no annotation that says so."""

_ALWAYS_VIEWS = {"chunk", "narrow", "unflatten", "movedim", "swapaxes", "expand_as", "view_as"}
"""Composite ops that call nothing but views."""

_ASKING = {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"}


@cache
def alias_class(target: Any) -> Alias:
    """The class of an op by its schema (torch's alias annotations and its composite kernels).

    Ops that return an input with no annotation (eval dropout, ``type_as``, ``meshgrid``, ``einsum``) are MAYBE.
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
    name = target.overloadpacket.__name__
    if name in _HIDDEN:
        return Alias.MAYBE
    returned = any(result.alias_info is not None for result in target._schema.returns)
    if not returned or not any(info is not None for info in infos):
        return Alias.COMPUTE
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return Alias.MAYBE if composite and name not in _ALWAYS_VIEWS else Alias.VIEW


@cache
def asks(target: Any) -> bool:
    """Whether an op asks a tensor for a number of its layout (``sym_size``): it computes where the tensor is."""
    return isinstance(target, torch._ops.OpOverload) and target.overloadpacket.__name__ in _ASKING


@cache
def reshapes(target: Any) -> bool:
    """Whether an op changes the shape or strides of its operand itself (``squeeze_``, ``t_``)."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.inplace_view in target.tags


@cache
def in_place(target: Any) -> Any:
    """The in-place form of an elementwise operation: its name with an underscore; None without one."""
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    packet = getattr(getattr(torch.ops, target.namespace), f"{target.overloadpacket.__name__}_", None)
    twin = getattr(packet, target._overloadname, None)
    if twin is None or [a.name for a in twin._schema.arguments] != [a.name for a in target._schema.arguments]:
        return None
    return twin


def overwrites(node: Node) -> bool:
    """Whether a node computes in the memory of its first operand, where strides allow.

    It is how the program says so: an elementwise op with an in-place form whose result has its operand's storage.
    """
    operand = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(operand, Node) or in_place(node.target) is None:
        return False
    mine, theirs = value_of(node), value_of(operand)
    return isinstance(mine, TensorType) and isinstance(theirs, TensorType) and mine.storage == theirs.storage


def possible_memory(program: Program) -> dict[Node, Node]:
    """For each node that yields tensors the first node whose memory may be its own, under any strides.

    Two values with different first nodes never share memory, whatever kernels choose. All results of an op count as
    one piece. What `overwrites` its operand is a piece of its own: its value is another one.
    """
    first: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while first[node] is not node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for node in program.graph.nodes:
        first[node] = node
        for operand in _aliased(node):
            first[find(node)] = find(operand)  # the older one, for a chain starts where memory is made
    return {node: find(node) for node in program.graph.nodes}


def _aliased(node: Node) -> Iterator[Node]:
    """The operands whose memory a node's results may lie in."""
    if node.op != "call_function":
        return
    kind = alias_class(node.target)
    if kind is Alias.COMPUTE:
        mine = {tensor.storage for tensor in tensors_of(node)}
        views = not overwrites(node) and mine
        yield from (one for one in node.all_input_nodes if views and mine & {t.storage for t in tensors_of(one)})
    elif node.target is operator.getitem or not any(a.alias_info for a in node.target._schema.arguments):  # type: ignore[union-attr]
        yield from (operand for operand in node.all_input_nodes if tensors_of(operand))
    else:
        yield from (operand for argument, operand in _operands(node) if argument.alias_info is not None)


def writes(node: Node) -> set[int]:
    """The storages that a node writes."""
    return {tensor.storage for operand in written_by(node) for tensor in tensors_of(operand)}


def written_by(node: Node) -> list[Node]:
    """The operands that a node writes into."""
    if node.op != "call_function" or alias_class(node.target) is not Alias.WRITE:
        return []
    return [operand for argument, operand in _operands(node) if argument.alias_info and argument.alias_info.is_write]


def _operands(node: Node) -> Iterator[tuple[Any, Node]]:
    """Each operand of a node with the schema's argument that it is given for, lists taken apart."""
    for argument, value in bound_arguments(node):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Node):
                yield argument, item


def bound_arguments(node: Node) -> list[tuple[Any, Any]]:
    """Pairs of a schema's argument and the value a node passes for it."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    pairs = list(zip(arguments, node.args, strict=False))
    named = {argument.name: argument for argument in arguments}
    return pairs + [(named[key], value) for key, value in node.kwargs.items() if key in named]


def storages_of(node: Node) -> Collection[int]:
    """The numbers of the memory that a node's results lie in, by the trace."""
    return [tensor.storage for tensor in tensors_of(node)]


def bases_of(node: Node, storages: Callable[[Node], Collection[int]] = storages_of) -> list[Node | None]:
    """For each result of a node the operand whose memory it lies in, by the trace; None for fresh memory."""
    operands = node.all_input_nodes if node.op == "call_function" else []
    return [next((one for one in operands if mine in storages(one)), None) for mine in storages(node)]


def base_of(node: Node, storages: Callable[[Node], Collection[int]] = storages_of) -> Node | None:
    """The operand that a node must lie beside: the first whose memory a result lies in, or that it writes.

    Exact for the traced strides: it compares the storages that the trace saw. An item taken out of several results
    lives where they live, whether or not it shares memory with an input; so does a number that a tensor is asked for,
    and an op that yields nothing lives where it writes.
    """
    if node.op != "call_function":
        return None
    if node.target is operator.getitem or asks(node.target):
        return next((first for first in node.args[:1] if isinstance(first, Node)), None)
    if not storages(node):
        return next(iter(written_by(node)), None)
    return next((base for base in bases_of(node, storages) if base is not None), None)


def readings(program: Program) -> Iterator[tuple[Node, Node, int]]:
    """Each reading of a value that is no weight: who reads, what, and how often its memory had been written by then."""
    written: Counter[int] = Counter()
    for node in program.graph.nodes:
        for operand in node.all_input_nodes:
            if weight_of(operand) is None:
                yield node, operand, max((written[tensor.storage] for tensor in tensors_of(operand)), default=0)
        if node.op == "call_function":
            written.update(writes(node))

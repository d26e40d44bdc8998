"""What ops do to memory. There are three certainties, and every caller names the one that it needs.

- By the schema, of an op, under any strides: `alias_class` says that its result certainly is a view, possibly is one,
  or lies in fresh memory, or that it writes. `reads_no_element` and `computes` follow, and are certain too.
- By the schema, of a graph, under any strides: `possible_memory` joins all values that may share memory. What must stay
  right whatever kernels choose (moving a view over a write, dropping a copy, overwriting an operand) rests on it.
- By the trace: `base_of` compares storages. It is a guess about kernels, good enough to place a node.

An op that asks for a size is no view: it yields no tensor, and reads no element.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from .ops import RESHARD
from .program import Program, tensors_of, value_of, weight_name
from .value import TensorType


class Alias(Enum):
    """What a schema says of an op's output and its inputs' memory, under any strides."""

    COMPUTE = "the output is fresh memory"
    VIEW = "the output aliases an input"
    MAYBE = "the output is the input, a view of it, or a copy"
    WRITE = "an input is written"


_HIDDEN = frozenset(
    ("type_as", "einsum", "meshgrid", "broadcast_tensors", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view")
    + ("lift", "sum_to_size", "to_dense")
)
"""Ops that may return an input, or views of inputs, and have neither an annotation nor a tag that says so."""

_FRESH = frozenset(("batch_norm", "_batch_norm_impl_index"))
"""Ops that have that tag for what they write; their results are memory of their own."""

_ALWAYS_VIEWS = {"chunk", "narrow", "unflatten", "movedim", "swapaxes", "expand_as", "view_as"}
"""Composite ops that call nothing but views."""

_ASKING = {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"}


@cache
def alias_class(target: Any) -> Alias:
    """The class of an op by its schema (torch's alias annotations and its composite kernels).

    Ops that return an input with no annotation (eval dropout, ``conj_physical``, ``type_as``, ``einsum``) are MAYBE.
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
    if _may_be_operand(target, name):
        return Alias.MAYBE
    returned = any(result.alias_info is not None for result in target._schema.returns)
    if not returned or not any(info is not None for info in infos):
        return Alias.COMPUTE
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return Alias.MAYBE if composite and name not in _ALWAYS_VIEWS else Alias.VIEW


def _may_be_operand(op: torch._ops.OpOverload, name: str) -> bool:
    """Whether an op may return an operand though its schema does not say so."""
    is_tagged = torch.Tag.maybe_aliasing_or_mutating in op.tags and name not in _FRESH
    return is_tagged or name in _HIDDEN or name.startswith("_cast_")


@cache
def asks_size(target: Any) -> bool:
    """Whether an op asks a tensor for a number of its layout (``sym_size``): it computes where the tensor is."""
    return isinstance(target, torch._ops.OpOverload) and target.overloadpacket.__name__ in _ASKING


@cache
def reads_no_element(target: Any) -> bool:
    """Whether an op certainly reads no element, whatever the strides: it is a view, or asks for a size."""
    return alias_class(target) is Alias.VIEW or asks_size(target)


@cache
def computes(target: Any) -> bool:
    """Whether an op certainly does more than to name memory: it writes or makes some, and asks for no size."""
    return alias_class(target) in (Alias.COMPUTE, Alias.WRITE) and not asks_size(target)


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
    return twin if twin is not None and _takes(twin) == _takes(target) else None


@cache
def out_of_place(target: Any) -> Any:
    """The elementwise operation that one is the in-place form of, by what both take; None where there is none.

    The two may be named apart: ``pow_.Scalar`` is that of ``pow.Tensor_Scalar``.
    """
    name = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else ""
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    each = (getattr(packet, one) for one in packet.overloads()) if packet is not None else ()
    return next((one for one in each if torch.Tag.pointwise in one.tags and _takes(one) == _takes(target)), None)


def _takes(target: torch._ops.OpOverload) -> list[tuple[str, str, bool]]:
    """The arguments of an operation, but for what it writes of them."""
    return [(one.name, str(one.type), one.kwarg_only) for one in target._schema.arguments]


def overwrites(node: Node) -> bool:
    """Whether a node computes in the memory of its first operand, where strides allow.

    It is how the program says so: an elementwise op with an in-place form whose result has its operand's storage.
    """
    operand = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(operand, Node) or in_place(node.target) is None:
        return False
    mine, theirs = value_of(node), value_of(operand)
    return isinstance(mine, TensorType) and isinstance(theirs, TensorType) and mine.storage == theirs.storage


def possible_memory(nodes: Iterable[Node]) -> dict[Node, Node]:
    """For each node the first one whose memory may be its own, under any strides; ``nodes`` are in graph order.

    Two values with different first nodes never share memory, whatever kernels choose. All results of an op count as
    one piece. What `overwrites` its operand is a piece of its own: its value is another one. An operand that is not
    among the nodes before its reader is left out.
    """
    first: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while first[node] is not node:
            first[node] = node = first[first[node]]
        return node

    known: set[int] = set()
    for node in nodes:
        first[node] = node
        mine = storages_of(node)
        for operand in _aliased(node, known.isdisjoint(mine)):
            if operand in first:
                first[find(node)] = find(operand)  # the older one, for a chain starts where memory is made
        known.update(mine)
    return {node: find(node) for node in first}


def touched_memory(memory: Mapping[Node, Node]) -> set[Node]:
    """The pieces of `possible_memory` that an op writes into, or that are handed out."""
    return written_memory(memory) | {
        memory[one] for node in memory if node.op == "output" for one in node.all_input_nodes
    }


def written_memory(memory: Mapping[Node, Node]) -> set[Node]:
    """The pieces of `possible_memory` that an op writes into."""
    return {memory[operand] for node in memory for operand in written_by(node)}


def writes_by_strides(program: Program) -> bool:
    """Whether it depends on strides which values an op writes: it writes memory that only may be that of another value.

    By the trace such values lie apart, or together. Under other strides a value that was sent to another device could
    be written without the schedule knowing.
    """
    if not any(map(written_by, program.ops())):
        return False
    memory = possible_memory(program.graph.nodes)
    storages: dict[Node, set[int]] = {first: set() for first in written_memory(memory)}
    for node, first in memory.items():
        if first in storages and node.op != "output":
            storages[first].update(storages_of(node))
    return any(len(found) > 1 for found in storages.values())


def _aliased(node: Node, is_new: bool) -> Sequence[Node]:
    """The operands whose memory a node's results may lie in; ``is_new`` if by the trace it is that of none before."""
    if node.op != "call_function":
        return ()
    if node.target is RESHARD:  # which is its operand itself on devices that have it
        return node.all_input_nodes
    kind = alias_class(node.target)
    if kind is Alias.COMPUTE:  # some lie there by the trace, though no schema says so (``unsafe_split``)
        if is_new:
            return ()
        mine = set(storages_of(node))
        shared = (one for one in node.all_input_nodes if not mine.isdisjoint(storages_of(one)))
        return () if not mine or overwrites(node) else list(shared)
    if kind is Alias.WRITE:
        return written_by(node)
    if node.args and isinstance(node.args[0], Node):
        return (node.args[0],)
    return [operand for operand in node.all_input_nodes if storages_of(operand)]


def writes(node: Node) -> set[int]:
    """The storages that a node writes."""
    return {tensor.storage for operand in written_by(node) for tensor in tensors_of(operand)}


def writers_of(program: Program) -> dict[int, list[Node]]:
    """For each storage the nodes that write it, in order."""
    writers: dict[int, list[Node]] = defaultdict(list)
    for node in program.ops():
        for storage in writes(node):
            writers[storage].append(node)
    return writers


def written_by(node: Node) -> list[Node]:
    """The operands that a node writes into."""
    if node.op != "call_function" or alias_class(node.target) is not Alias.WRITE:
        return []
    given = [value for argument, value in bound_arguments(node) if argument.alias_info and argument.alias_info.is_write]
    flat = (item for value in given for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return [item for item in flat if isinstance(item, Node)]


def bound_arguments(node: Node) -> list[tuple[Any, Any]]:
    """Pairs of a schema's argument and the value a node passes for it."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    pairs = list(zip(arguments, node.args, strict=False))
    named = {argument.name: argument for argument in arguments}
    return pairs + [(named[key], value) for key, value in node.kwargs.items() if key in named]


def argument_of(node: Node, name: str) -> Any:
    """What a node passes for an argument of its op, or the argument's default; None for one that it does not have."""
    given = {argument.name: value for argument, value in bound_arguments(node)}
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    default = next((argument.default_value for argument in arguments if argument.name == name), None)
    return given.get(name, default)


def storages_of(node: Node) -> Collection[int]:
    """The numbers of the memory that a node's results lie in, by the trace."""
    value = node.meta["value"]
    if type(value) is TensorType:  # passes ask a third of a million times
        return (value.storage,)
    return [tensor.storage for tensor in tensors_of(node)]


def base_of(node: Node, storages: Callable[[Node], Collection[int]] = storages_of) -> Node | None:
    """The operand that a node must lie beside: the one whose memory its results lie in, or that it writes.

    It compares the storages of the trace. All results of an op lie in the memory of one operand at most: ops of which
    that is not true are taken apart when they are traced (``layout_ops``), and the verifier refuses them. An item
    taken out of several results lives where they live, whether or not it shares memory with an input; so does a number
    that a tensor is asked for, and an op that yields nothing lives where it writes.
    """
    if node.op != "call_function":
        return None
    if node.target is operator.getitem or asks_size(node.target):
        return next((first for first in node.args[:1] if isinstance(first, Node)), None)
    if not storages(node):
        return next(iter(written_by(node)), None)
    mine = set(storages(node))
    return next((one for one in node.all_input_nodes if not mine.isdisjoint(storages(one))), None)


def readings(program: Program) -> Iterator[tuple[Node, Node, int]]:
    """Each reading of a value that is no weight: who reads, what, and how often its memory had been written by then."""
    written: Counter[int] = Counter()
    for node in program.graph.nodes:
        for operand in node.all_input_nodes:
            if not weight_name(operand):
                yield node, operand, max(map(written.__getitem__, storages_of(operand)), default=0) if written else 0
        if node.op == "call_function" and alias_class(node.target) is Alias.WRITE:
            written.update(writes(node))

"""Drops what computes nothing: asserts, eval-mode dropout, casts and copies that do not, dead code, unused weights.

A tenth to a seventh of an exported graph is such nodes. None of them changes a bit of the result, each costs a
dispatch at run time, and their absence makes every later pass and every text shorter.

The strides of a trace are those of the kernels it assumed; where the program runs, others may be chosen. So nothing is
dropped that would change strides if its operand had others: ``contiguous`` and whatever names a memory format stay,
and so does a copy, unless its operand is dense under any strides (the result of an elementwise op, or a weight).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class, argument_of, possible_memory, touched_memory
from ...compiler.ir.program import Program, tensors_of, value_of, weight_name
from ...compiler.ir.value import TensorType
from ..analysis.storages import rename_storages
from ..infra.base import Change, Pass

aten = torch.ops.aten

_CHECKS = {
    aten._assert_tensor_metadata.default,
    aten._assert_async.msg,
    aten._assert_async.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    torch._check,
}
_SAME_STRIDES = frozenset("detach detach_ alias slice narrow permute transpose squeeze expand expand_as".split())
"""Views that have their operand's strides when they have its shape and its order of dimensions."""

_NEW_STRIDES = frozenset("reshape flatten unflatten view view_as".split())
"""Views that have their operand's strides when they have its shape, but for dimensions of size 1."""

_CASTS = frozenset("to type_as".split())
_COPIES = frozenset("clone _to_copy lift_fresh_copy".split())
_DROPOUTS = frozenset("dropout feature_dropout alpha_dropout".split())


@dataclass(frozen=True)
class Simplify(Pass):
    """Drops nodes and weights that do not change the result."""

    name: ClassVar[str] = "simplify"
    keeps_values: ClassVar[bool] = True
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    def run(self, program: Program) -> Change:
        """Drops checks first, for they keep other nodes alive; then identities; then whatever has no reader."""
        before = len(program.graph.nodes)
        _drop_checks(program)
        _drop_identities(program)
        _drop_dead(program)
        return Change(before - len(program.graph.nodes), "nodes dropped")


def _drop_checks(program: Program) -> None:
    for node in reversed(list(program.graph.nodes)):
        if node.target in _CHECKS and not node.users:
            program.graph.erase_node(node)


def _drop_identities(program: Program) -> None:
    """Lets the readers of a node that repeats its operand read the operand."""
    memory = possible_memory(program.graph.nodes)
    touched = touched_memory(memory)
    sizes = _storage_bytes(program)
    merged: dict[int, int] = {}
    for node in list(program.ops()):
        rename_storages(node, merged)
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not _is_alike(node, source):
            continue
        apart = touched.isdisjoint((memory[node], memory[source]))
        if _is_operand(node) or (apart and _is_needless_copy(node, source, sizes)):
            merged[tensors_of(node)[0].storage] = tensors_of(source)[0].storage
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)


def _storage_bytes(program: Program) -> dict[int, int]:
    """Bytes of each piece of memory that a call makes, as far as its largest tensor tells."""
    sizes: dict[int, int] = {}
    for node in program.graph.nodes:
        for tensor in () if weight_name(node) else tensors_of(node):
            sizes[tensor.storage] = max(tensor.nbytes, sizes.get(tensor.storage, 0))
    return sizes


def _is_alike(node: Node, source: Node) -> bool:
    """Whether an ATen op yields one tensor that looks, in the trace, as its operand does."""
    mine, theirs = value_of(node), value_of(source)
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(mine, TensorType):
        return False
    return isinstance(theirs, TensorType) and (mine.shape, mine.dtype, mine.stride) == (
        theirs.shape,
        theirs.dtype,
        theirs.stride,
    )


def _is_operand(node: Node) -> bool:
    """Whether a node that looks like its operand is its operand, elements, memory and strides, under any strides."""
    name = _name(node)
    if name in _DROPOUTS:
        return not argument_of(node, "train")
    if name in _CASTS:
        return not argument_of(node, "copy") and _keeps_format(node)
    if name in _NEW_STRIDES:
        return 1 not in tensors_of(node)[0].shape
    return name in _SAME_STRIDES and _keeps_order(node)


def _keeps_order(node: Node) -> bool:
    """Whether a view takes dimensions in their order, and every element of them."""
    count = len(tensors_of(node)[0].shape)
    match _name(node):
        case "permute":
            return [dim % count for dim in argument_of(node, "dims")] == list(range(count))
        case "transpose":
            return bool((argument_of(node, "dim0") - argument_of(node, "dim1")) % max(count, 1) == 0)
        case "slice":
            return bool(argument_of(node, "step") == 1)
    return True


def _is_needless_copy(node: Node, source: Node, sizes: dict[int, int]) -> bool:
    """Whether nobody could tell a copy from its operand: in strides, for a copy of dense memory keeps them.

    A copy of a part of memory is needed: it lets go of the rest.
    """
    dense = bool(weight_name(source)) or _is_elementwise(source)
    fills = sizes.get(tensors_of(source)[0].storage, 0) <= tensors_of(node)[0].nbytes
    return _name(node) in _COPIES and dense and fills and _keeps_format(node)


def _is_elementwise(node: Node) -> bool:
    """Whether a node makes memory of its own elementwise, which is dense whatever its operands' strides are."""
    target = node.target
    computes = isinstance(target, torch._ops.OpOverload) and alias_class(target) is Alias.COMPUTE
    return computes and torch.Tag.pointwise in target.tags and _name(node) not in _COPIES  # type: ignore[union-attr]


def _keeps_format(node: Node) -> bool:
    return argument_of(node, "memory_format") in (None, torch.preserve_format)


def _name(node: Node) -> str:
    return node.target.overloadpacket.__name__ if isinstance(node.target, torch._ops.OpOverload) else ""


def _drop_dead(program: Program) -> None:
    """Erases nodes without readers, last first, and forgets the weights that nothing reads."""
    for node in reversed(list(program.graph.nodes)):
        if node.users or node.op == "output":
            continue
        name = weight_name(node)
        if name:
            program.weights.pop(name)
            program.constants.pop(name, None)
            program.residency.pop(name, None)
        elif node.op != "call_function" or _has_effect(node):
            continue
        program.graph.erase_node(node)


def _has_effect(node: Node) -> bool:
    seeded = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return seeded or alias_class(node.target) is Alias.WRITE

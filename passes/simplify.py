"""Drops what computes nothing: asserts, eval-mode dropout, casts and copies that do not, dead code, unused weights.

A tenth to a seventh of an exported graph is such nodes. None of them changes a bit of the result, each costs a
dispatch at run time, and their absence makes every later pass and every text shorter. Must run on a fresh trace: the
storages it compares are those of the traced graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from ..compiler.aliasing import Alias, alias_class, writes
from ..compiler.program import Program, TensorType, tensors_of, value_of, weight_of
from .base import Change, Pass
from .storages import rename_storages

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
_IDENTITIES = frozenset(
    "dropout feature_dropout alpha_dropout clone lift_fresh_copy _to_copy to type_as contiguous detach detach_ alias "
    "reshape flatten unflatten view view_as expand expand_as slice narrow permute transpose squeeze".split()
)


@dataclass(frozen=True)
class Simplify(Pass):
    """Drops nodes and weights that do not change the result."""

    name: ClassVar[str] = "simplify"
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
    touched = {storage for node in program.ops() for storage in writes(node)}
    touched |= {tensor.storage for node in program.output.all_input_nodes for tensor in tensors_of(node)}
    merged: dict[int, int] = {}
    sizes = _storage_bytes(program)
    for node in list(program.ops()):
        rename_storages(node, merged)
        source = node.args[0] if node.args else None
        if isinstance(source, Node) and _repeats(node, source, touched, sizes):
            merged[tensors_of(node)[0].storage] = tensors_of(source)[0].storage
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)


def _storage_bytes(program: Program) -> dict[int, int]:
    """Bytes of each piece of memory that a call makes, as far as its largest tensor tells."""
    sizes: dict[int, int] = {}
    for node in program.graph.nodes:
        for tensor in () if weight_of(node) else tensors_of(node):
            sizes[tensor.storage] = max(tensor.nbytes, sizes.get(tensor.storage, 0))
    return sizes


def _repeats(node: Node, source: Node, touched: set[int], sizes: dict[int, int]) -> bool:
    """Whether a node yields its operand's elements in the same layout, and nobody could tell the two apart.

    A copy whose memory, or its operand's, is written or handed out is not a repetition, nor is a copy of a part of
    memory: it lets go of the rest.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket.__name__ not in _IDENTITIES:
        return False
    mine, theirs = value_of(node), value_of(source)
    if not isinstance(mine, TensorType) or not isinstance(theirs, TensorType):
        return False
    if (mine.shape, mine.dtype, mine.stride) != (theirs.shape, theirs.dtype, theirs.stride):
        return False
    if "dropout" in node.target.overloadpacket.__name__:
        return not node.args[2]
    if mine.storage == theirs.storage:
        return True
    return not touched & {mine.storage, theirs.storage} and sizes.get(theirs.storage, 0) <= mine.nbytes


def _drop_dead(program: Program) -> None:
    """Erases nodes without readers, last first, and forgets the weights that nothing reads."""
    for node in reversed(list(program.graph.nodes)):
        if node.users or node.op == "output":
            continue
        weight = weight_of(node)
        if weight is not None:
            program.weights.pop(weight.name)
            program.constants.pop(weight.name, None)
        elif node.op != "call_function" or _has_effect(node):
            continue
        program.graph.erase_node(node)


def _has_effect(node: Node) -> bool:
    seeded = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return seeded or alias_class(node.target) is Alias.WRITE

"""Runs a whole program as a solution of states says: the members of a group in turn, with what each of them has."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils import _pytree as pytree

from dovetail.compiler.ir.aliasing import asks_size
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split, State
from dovetail.compiler.ir.value import filled_stride, ordered_stride
from dovetail.compiler.states.strategy import Strategy, local_sizes, takes_part
from dovetail.compiler.states.table import local_call
from dovetail.passes.states.folding import operands_of

from .parts import cut


class Members:
    """What each member of a group has of each value; nothing is changed behind an operation's back."""

    def __init__(self, strategies: Mapping[Node, Strategy], count: int) -> None:
        self.strategies, self.count = strategies, count
        self.values: dict[Node, list[Any]] = {}
        self.states: dict[Node, tuple[State, ...]] = {}

    def give(self, node: Node, value: Any) -> None:
        """Gives each member a copy of its own of an input or a weight."""
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for _ in range(self.count)]
        self.values[node], self.states[node] = copies, (WHOLE,)

    def compute(self, node: Node) -> None:
        """Has each member compute its part of an operation."""
        if node.target is operator.getitem:
            base, at = node.args
            self.values[node] = [value[at] for value in self.values[base]]  # type: ignore[index]
            self.states[node] = (self.states[base][at],)  # type: ignore[index]
        elif asks_size(node.target):
            operand = torch.empty(tensors_of(node.args[0])[0].sizes, device="meta")  # type: ignore[arg-type]
            self.values[node] = [node.target(operand, *node.args[1:])] * self.count  # type: ignore[operator]
        elif tensors_of(node) or operands_of(node):
            chosen = self.strategies[node]
            self.values[node] = [self._part(node, chosen, member) for member in range(self.count)]
            self.states[node] = chosen.results

    def _part(self, node: Node, chosen: Strategy, member: int) -> Any:
        if not takes_part(chosen, member):
            return self._nothing(node, chosen, member)
        target, args, kwargs = local_call(node, chosen, member)
        read = operands_of(node)

        def value(operand: Node) -> Any:
            is_read = operand in read
            return self.value(operand, chosen.takes(operand), member) if is_read else self.values[operand][member]

        args, kwargs = (map_aggregate(map_arg(given, value), _on_cpu) for given in (args, kwargs))
        made = target(*args, **kwargs)
        for tensor, state, kind in zip(_flat(made), chosen.results, tensors_of(node), strict=True):
            assert list(tensor.shape) == local_sizes(kind.sizes, state, member), (node.name, str(chosen))
        return made

    def _nothing(self, node: Node, chosen: Strategy, member: int) -> Any:
        parts = [
            torch.zeros(local_sizes(kind.sizes, state, member), dtype=kind.dtype)
            for kind, state in zip(tensors_of(node), chosen.results, strict=True)
        ]
        return parts if len(parts) > 1 or isinstance(node.meta["value"], tuple) else parts[0]

    def value(self, operand: Node, need: State, member: int) -> Any:
        """What a member reads of a value in some state: what it has, or what an exchange gives it."""
        if operand not in self.states or self.states[operand] == (need,):
            return self.values[operand][member]
        assert need != PARTIAL
        (kind,) = tensors_of(operand)
        part = cut(self.whole(operand), need, member, self.count)
        return torch.empty_strided(part.shape, ordered_stride(part.shape, kind.stride), dtype=part.dtype).copy_(part)

    def whole(self, node: Node) -> Any:
        """A value as all members have it together; terms of a sum are added in order, in float32 at least."""
        parts, (state,) = self.values[node], self.states[node]
        if isinstance(state, Split):
            (kind,) = tensors_of(node)
            joined = torch.empty_strided(kind.sizes, filled_stride(kind), dtype=kind.dtype)  # type: ignore[arg-type]
            for member, part in enumerate(parts):
                at = 0
                for start, stop in state.ranges(member):
                    joined.narrow(state.axis, start, stop - start).copy_(part.narrow(state.axis, at, stop - start))
                    at += stop - start
            return joined
        if state == PARTIAL:
            wide = torch.promote_types(parts[0].dtype, torch.float32)
            return sum((part.to(wide) for part in parts[1:]), parts[0].to(wide)).to(parts[0].dtype)
        return parts[0]


def run_by_members(
    program: Program,
    module: torch.nn.Module,
    call: Mapping[str, Any],
    strategies: Mapping[Node, Strategy],
    count: int,
) -> list[torch.Tensor]:
    """The tensors that a program of a module yields where so many members compute it together."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return run_with_weights(program, held, program.signature.flatten((), call), strategies, count)


def run_with_weights(
    program: Program,
    weights: Mapping[str, torch.Tensor],
    inputs: Sequence[Any],
    strategies: Mapping[Node, Strategy],
    count: int,
) -> list[torch.Tensor]:
    """The tensors that a program yields where so many members compute it together, by its weights by name."""
    members = Members(strategies, count)
    for node, value in zip(program.inputs(), inputs, strict=True):
        members.give(node, value)
    for node in program.weight_nodes():
        weight = program.weight(node)
        given = next((weights[name].detach() for name in weight.names if name in weights), None)
        members.give(node, program.constants[weight.name] if given is None else given)
    with torch.no_grad():
        for node in program.ops():
            members.compute(node)
    yielded = pytree.tree_leaves(program.output.args)  # some are yielded twice
    return [members.whole(node) for node in yielded if isinstance(node, Node) and tensors_of(node)]


def _flat(value: Any) -> Sequence[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [one for one in value or () if isinstance(one, torch.Tensor)]


def _on_cpu(one: Any) -> Any:
    return torch.device("cpu") if isinstance(one, torch.device) else one

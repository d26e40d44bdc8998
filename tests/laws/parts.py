"""Runs operations part by part, as a strategy of the rules of states says, and puts the parts together again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from dovetail.compiler.ir.program import Program, tensors_of, weight_name
from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.ir.state import PARTIAL, Halo, Parted, Split, State
from dovetail.compiler.states.strategy import Strategy, takes_part
from dovetail.compiler.states.table import local_call


def cut(value: torch.Tensor, state: State, member: int, terms: int) -> torch.Tensor:
    """What a device has of a value: for terms of a sum, numbers of either sign, which add up to the value."""
    if isinstance(state, Parted):
        stretches = [value.narrow(state.axis, start, stop - start) for start, stop in state.ranges(member)]
        before, after = state.zeros[member] if isinstance(state, Halo) else (0, 0)
        nothing = torch.zeros_like(value.narrow(state.axis, 0, 1) if value.shape[state.axis] else value)
        return torch.cat(
            [nothing.narrow(state.axis, 0, 0), *[nothing] * before, *stretches, *[nothing] * after], state.axis
        )
    if state != PARTIAL:
        return value.clone()
    drawn = torch.Generator().manual_seed(7)
    parts = [3 * torch.rand(value.shape, generator=drawn, dtype=torch.float64) - 1 for _ in range(terms - 1)]
    others = [(part * value).to(value.dtype) for part in parts]
    return [*others, value - sum(others)][member] if terms > 1 else value.clone()


def joined(parts: Mapping[int, torch.Tensor], state: State, like: torch.Tensor) -> torch.Tensor:
    """The value of which devices have parts; some may have nothing."""
    if isinstance(state, Split):
        whole = torch.full_like(like, 77 if not like.dtype.is_floating_point else torch.nan)
        for member, part in parts.items():
            at = 0
            assert part.shape[state.axis] == state.length(member)
            for start, stop in state.ranges(member):
                whole.narrow(state.axis, start, stop - start).copy_(part.narrow(state.axis, at, stop - start))
                at += stop - start
        return whole
    found = list(parts.values())
    return sum(found[1:], found[0]) if state == PARTIAL else found[-1]


def run_in_parts(node: Node, chosen: Strategy, members: int, values: Mapping[Node, Any]) -> list[torch.Tensor]:
    """The tensors that an operation yields, each joined of what the devices compute of it."""
    made: list[dict[int, torch.Tensor]] = [{} for _ in chosen.results]
    for member in (one for one in range(members) if takes_part(chosen, one)):

        def value_of(operand: Node, at: int = member) -> Any:
            value = values[operand]
            return cut(value, chosen.takes(operand), at, members) if isinstance(value, torch.Tensor) else value

        target, args, kwargs = local_call(node, chosen, member)
        result = target(*map_arg(_on_cpu(args), value_of), **map_arg(_on_cpu(kwargs), value_of))
        for parts, tensor in zip(made, _flat(result), strict=True):
            parts[member] = tensor
    whole = _flat(values[node])
    return [joined(*given) for given in zip(made, chosen.results, whole, strict=True)]


def _flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [one for one in value if isinstance(one, torch.Tensor)]


def offered(shares: Sequence[float], drawn: random.Random) -> Callable[[Node], list[State]]:
    """States that a value may have: any axis split, in one segment or several, or terms of a sum."""
    known: dict[Node, list[State]] = {}

    def offers(node: Node) -> list[State]:
        if node not in known:
            known[node] = list(_states(node, shares, drawn))
        return known[node]

    return offers


def _states(node: Node, shares: Sequence[float], drawn: random.Random) -> Iterator[State]:
    for tensor in tensors_of(node)[:1]:
        if tensor.dtype.is_floating_point and not weight_name(node):
            yield PARTIAL
        for axis, size in enumerate(tensor.sizes):
            if size < 2:
                continue
            yield Split(axis, (bounds_of(size, shares),))
            middle = drawn.randrange(1, size)
            halves = bounds_of(middle, shares), bounds_of(size - middle, shares)
            yield Split(axis, (halves[0], tuple((a + middle, b + middle) for a, b in halves[1])))
            for parts in (two for two in (2, 3, 4, 6) if size % two == 0 and size > two):
                step = size // parts
                each = [bounds_of(step, shares) for _ in range(parts)]
                yield Split(
                    axis, tuple(tuple((a + at * step, b + at * step) for a, b in one) for at, one in enumerate(each))
                )


def values_in(
    program: Program, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Node, dict[Node, Any]]]:
    """Each operation of a program, with the values of its operands before it runs, and its own.

    A value that is written later is as it was then.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values: dict[Node, Any] = dict(zip(program.inputs(), program.signature.flatten(args, kwargs), strict=True))
    for node in program.weight_nodes():
        weight = program.weight(node)
        given = next((held[name].detach() for name in weight.names if name in held), None)
        values[node] = program.constants[weight.name] if given is None else given
    for node in program.ops():
        before = {one: _copied(values[one]) for one in node.all_input_nodes}
        args_, kwargs_ = (_on_cpu(map_arg(given, values.__getitem__)) for given in (node.args, dict(node.kwargs)))
        values[node] = node.target(*args_, **kwargs_)  # type: ignore[operator]
        yield node, {**before, node: _copied(values[node])}


def _on_cpu(arguments: Any) -> Any:
    return map_aggregate(arguments, lambda one: torch.device("cpu") if isinstance(one, torch.device) else one)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def can_be_terms(chosen: Strategy, values: Mapping[Node, Any]) -> bool:
    """Whether values of which devices are to have terms are such that these are numbers: masks of -inf are not."""
    if PARTIAL not in chosen.operands.values():
        return True
    tensors = (one for one in values.values() if isinstance(one, torch.Tensor) and one.dtype.is_floating_point)
    return all(one.abs().max().item() < 1e30 for one in tensors if one.numel())


def is_near(found: torch.Tensor, whole: torch.Tensor, operands: Iterable[Any]) -> bool:
    """Whether a value that was computed in parts is the whole but for rounding, of its dtype or an operand's."""
    if found.shape != whole.shape or found.dtype != whole.dtype or not torch.equal(found.isnan(), whole.isnan()):
        return False
    if not (whole.dtype.is_floating_point or whole.dtype.is_complex):
        return torch.equal(found, whole)
    tensors = [one for one in (whole, *operands) if isinstance(one, torch.Tensor)]
    error = 1e3 * max(torch.finfo(one.dtype).eps for one in tensors if one.dtype.is_floating_point or one.is_complex())
    largest = whole.abs().nan_to_num(0, 0, 0).max().item() if whole.numel() else 0.0
    return torch.allclose(found, whole, rtol=error, atol=error * max(largest, 1), equal_nan=True)

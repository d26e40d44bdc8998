"""Where bits of a cell of modes are lost: each operation whose parts, joined, are not what it yields on wholes.

The devices of a cell compute its program in turn, operation by operation, and one computes it whole beside them. Where
parts differ it is noted, and they are given the numbers of the whole, so that every cause is found by itself and none
that follows from another. Parts lie in memory as on devices, for kernels round by strides too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg

from dovetail.compiler.devices.device import Device
from dovetail.compiler.ir.ops import SUM_TERMS, TERMS
from dovetail.compiler.ir.program import MOVING, Program, placement_of, states_of, tensors_of
from dovetail.compiler.ir.split import source_of, type_on
from dovetail.compiler.ir.state import PARTIAL, Halo, Parted, Split, State
from dovetail.compiler.ir.value import filled_stride, flat, ordered_stride
from dovetail.compiler.states.parts import call_on, members
from dovetail.compiler.states.strategy import name_of
from dovetail.compiler.states.table import strategy_of

from .mode_cells import Cell, shared, subject_of
from .zoo.tiny import Call

SUMS = frozenset({SUM_TERMS, TERMS})
"""Operations on terms, which have no numbers of a whole to be compared with."""


@dataclass(frozen=True)
class Difference:
    """An operation whose parts are not the whole: its node and name, sizes, how it is computed, and by how much."""

    node: str
    name: str
    operands: tuple[tuple[int, ...], ...]
    parts: tuple[tuple[int, ...], ...]
    chosen: str
    most: float

    def __str__(self) -> str:
        given, had = (" ".join("×".join(map(str, one)) for one in some) for some in (self.operands, self.parts))
        return f"%{self.node} {self.name} of {given} in parts {had}: {self.most:.1e} off; {self.chosen}"


@dataclass
class Sides:
    """What one device has of each value that computes all, and what each device of the program has."""

    whole: dict[Node, Any] = field(default_factory=dict)
    parts: dict[Node, dict[Device, Any]] = field(default_factory=dict)


def differences(cell: Cell) -> list[Difference]:
    """Each operation of a cell whose parts differ from the whole in a call, in order; none if its bits are kept."""
    subject = subject_of(cell.name, cell.dtype, cell.sides)
    program = shared(subject.program, cell)[0]
    return list(differences_of(program, subject.module, subject.calls[0]))


def differences_of(program: Program, module: nn.Module, call: Call) -> Iterator[Difference]:
    """Each operation of a placed program whose parts differ from the whole in a call, in order."""
    sides = _given(program, module, call)
    with torch.no_grad():
        for node in (one for one in program.graph.nodes if one.op == "call_function"):
            _compute(program, node, sides)
            yield from _compared(node, sides)


def _given(program: Program, module: nn.Module, call: Call) -> Sides:
    """Inputs and weights, which are the same everywhere."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    sides, flattened = Sides(), program.signature.flatten((), call)
    whole = dict(zip(program.inputs(), flattened, strict=True))
    for node in program.weight_nodes():
        weight = program.weight(node)
        found = next((held[name] for name in weight.names if name in held), None)
        whole[node] = program.constants[weight.name] if found is None else found
    for node, value in whole.items():
        sides.whole[node] = _copied(value)
        sides.parts[node] = {device: _copied(value) for device in program.devices}
    return sides


def _compute(program: Program, node: Node, sides: Sides) -> None:
    """Computes a node whole, and on each of its devices."""
    if node.target in MOVING:
        sides.whole[node] = sides.whole[source_of(node)].clone()
        sides.parts[node] = {device: _brought(node, device, sides) for device in placement_of(node).group}
        return
    if node.target in SUMS:
        sides.whole[node] = sides.whole[node.args[0]]  # type: ignore[index]
    else:
        sides.whole[node] = _run(_own(node), sides.whole.__getitem__)
    chosen = None if node.target is operator.getitem else strategy_of(node)
    sides.parts[node] = {}
    for device in members(program, node):

        def value_of(operand: Node, at: Device = device) -> Any:
            return _weight_part(node, operand, chosen, at, sides)

        sides.parts[node][device] = _run(call_on(node, device), value_of)


def _own(node: Node) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    assert callable(node.target)
    return node.target, node.args, dict(node.kwargs)


def _run(call: tuple[Callable[..., Any], Sequence[Any], dict[str, Any]], value_of: Callable[[Node], Any]) -> Any:
    target, args, kwargs = call
    args, kwargs = (map_aggregate(map_arg(given, value_of), _on_cpu) for given in (args, kwargs))
    return target(*args, **kwargs)


def _weight_part(node: Node, operand: Node, chosen: Any, device: Device, sides: Sides) -> Any:
    """What a device reads of an operand: what it has of it, or of a weight the part that it is to have."""
    value = sides.parts[operand][device]
    state = chosen.takes(operand) if chosen is not None else None
    if operand.op == "call_function" or not isinstance(state, Parted):
        return value
    return _cut(value, state, placement_of(node).group.index(device)).requires_grad_(value.requires_grad)


def _cut(value: torch.Tensor, state: Parted, member: int) -> torch.Tensor:
    """What a member of a group has of a whole."""
    before, after = state.zeros[member] if isinstance(state, Halo) else (0, 0)
    found = [value.narrow(state.axis, start, stop - start) for start, stop in state.ranges(member)]
    nothing = torch.zeros_like(value.narrow(state.axis, 0, 1))
    found = [nothing] * before + found + [nothing] * after
    return torch.cat(found or [nothing.narrow(state.axis, 0, 0)], state.axis)


def _brought(node: Node, device: Device, sides: Sides) -> Any:
    """What an exchange gives a device, as it lies in memory there."""
    (state,), member = states_of(node), placement_of(node).group.index(device)
    source = source_of(node)
    if source.target in SUMS:
        whole = _joined(source, 0, sides, None)
    else:
        whole = _joined(source, 0, sides, sides.whole[source])
    part = _cut(whole, state, member) if isinstance(state, Parted) else whole
    (kind,) = flat(type_on(node, device))
    strides = ordered_stride(tuple(part.shape), filled_stride(kind))
    return torch.empty_strided(part.shape, strides, dtype=part.dtype).copy_(part)  # type: ignore[arg-type]


def _joined(node: Node, at: int, sides: Sides, like: torch.Tensor | None) -> torch.Tensor:
    """One of the tensors of a node as its devices have it together; terms of a sum are added in order."""
    group, state = placement_of(node).group, _state(node, at)
    parts = {device: _tensors(value)[at] for device, value in sides.parts[node].items()}
    if isinstance(state, Split):
        first = next(iter(parts.values()))
        sizes = [*first.shape]
        sizes[state.axis] = state.size
        found = torch.empty(sizes, dtype=first.dtype) if like is None else torch.empty_like(like)
        for device, part in parts.items():
            start = 0
            for begin, end in state.ranges(group.index(device)):
                found.narrow(state.axis, begin, end - begin).copy_(part.narrow(state.axis, start, end - begin))
                start += end - begin
        return found
    if state == PARTIAL and node.target not in SUMS:
        return torch.stack(list(parts.values())).sum(0)
    return next(iter(parts.values()))


def _state(node: Node, at: int) -> State:
    return states_of(node)[at]


def _compared(node: Node, sides: Sides) -> Iterator[Difference]:
    """What differs of the tensors of a node, which is made good."""
    if node.target is TERMS or node.target in MOVING or not tensors_of(node) or node.target is operator.getitem:
        return
    for at, whole in enumerate(_tensors(sides.whole[node])):
        found = _joined(node, at, sides, whole)
        if torch.equal(found.nan_to_num(), whole.nan_to_num()):
            continue
        if node.target is SUM_TERMS:  # which is told of the operation that made the terms
            _make_good(node, at, whole, sides)
            continue
        off = (found.nan_to_num().double() - whole.nan_to_num().double()).abs().max().item()
        yield _difference(node, off, sides)
        _make_good(node, at, whole, sides)


def _make_good(node: Node, at: int, whole: torch.Tensor, sides: Sides) -> None:
    """Gives devices the numbers of the whole; terms of a sum stay what they are."""
    state, group = _state(node, at), placement_of(node).group
    for device, value in sides.parts[node].items() if state != PARTIAL else ():
        part = _cut(whole, state, group.index(device)) if isinstance(state, Parted) else whole
        _tensors(value)[at].copy_(part)


def _difference(node: Node, off: float, sides: Sides) -> Difference:
    read = [one for one in node.all_input_nodes if isinstance(sides.whole[one], torch.Tensor)]
    first = read[0] if read else node
    parts = tuple(tuple(_tensors(one)[0].shape) for one in sides.parts[first].values())
    sizes = tuple(tuple(sides.whole[one].shape) for one in read)
    return Difference(node.name, name_of(node), sizes, parts, str(strategy_of(node)), off)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [one for one in value if isinstance(one, torch.Tensor)]


def _copied(value: Any) -> Any:
    """A value of its own, which kernels take for what it was: they ask whether a weight wants a gradient."""
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _on_cpu(one: Any) -> Any:
    return torch.device("cpu") if isinstance(one, torch.device) else one

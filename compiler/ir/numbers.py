"""The Python numbers of a schedule: which of them each process computes itself, and which it would have to be sent.

A number is made on one device and read on any (``resting_place``). Within a process that is one list of slots. Between
processes nothing carries numbers, and nearly none has to be carried: what a trace asks of sizes follows from the sizes
of the call's inputs, which every process knows, and so does what is computed of such numbers alone. A process computes
these for itself, before the call, whoever makes them in the schedule. Only what is read out of a tensor (``item``)
cannot be computed elsewhere.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from ..devices.device import Device
from .program import tensors_of
from .schedule import Output, Run, Schedule
from .sizes import evaluate
from .targets import bounded

_ASKING = frozenset({torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default})
"""The operations that ask for sizes. Strides are a kernel's choice, and not known where the tensor is not."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The Python numbers that a place reads and does not make.

    ``computed`` are those that it computes itself of the sizes of a call, with those that they are made of, in an order
    in which that can be done; ``sent`` are those that it would have to be sent.
    """

    computed: tuple[Node, ...] = ()
    sent: tuple[Node, ...] = ()


def numbers_read(schedule: Schedule, place_of: Callable[[Device], K]) -> dict[K, Numbers]:
    """The numbers that each place reads and does not make, for places of devices: each by itself, or a process."""
    made: defaultdict[K, set[Node]] = defaultdict(set)
    read: defaultdict[K, set[Node]] = defaultdict(set)
    for one in schedule:
        if isinstance(one, Run):
            made[place_of(one.device)].update(filter(_is_number, one.nodes))
            read[place_of(one.device)].update(operand for node in one.nodes for operand in _numbers_of(node))
        elif isinstance(one, Output):
            read[place_of(one.device)].update(value.node for value in one.values if _is_number(value.node))
    exact = _following_from_sizes(schedule)
    return {place: _numbers(read[place] - made[place], exact) for place in {**made, **read}}


def numbers_at(computed: Sequence[Node], symbols: Mapping[str, int]) -> dict[Node, Any]:
    """The numbers that follow from sizes, in the order of ``Numbers.computed``, for the symbols of a call.

    Raises TextError for a symbol that is not given, OverflowError for a number of more than 64 bits.
    """
    found: dict[Node, Any] = {}
    for node in computed:
        if isinstance(node.target, OpOverload):
            found[node] = _size(node, symbols)
            continue
        args, kwargs = map_arg((node.args, node.kwargs), found.__getitem__)
        found[node] = bounded(node.target)(*args, **kwargs)
    return found


def _is_number(node: Node) -> bool:
    return node.op == "call_function" and not tensors_of(node)


def _numbers_of(node: Node) -> Iterator[Node]:
    """The numbers that a node reads; those of adapters are weights."""
    return (one for one in node.all_input_nodes if _is_number(one))


def _following_from_sizes(schedule: Schedule) -> set[Node]:
    """The numbers that the sizes of the inputs decide: sizes, and functions of such numbers alone."""
    found: set[Node] = set()
    for node in (node for one in schedule if isinstance(one, Run) for node in one.nodes if _is_number(node)):
        is_function = not isinstance(node.target, OpOverload)
        if node.target in _ASKING or (is_function and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return found


def _numbers(missing: set[Node], exact: set[Node]) -> Numbers:
    computed = _with_operands(exact.intersection(missing))
    return Numbers(tuple(sorted(computed)), tuple(sorted(one for one in missing if one not in exact)))


def _size(node: Node, symbols: Mapping[str, int]) -> int:
    """The size that a node asks for, as the trace has it of the operand."""
    (operand,) = node.all_input_nodes
    sizes = [evaluate(size, symbols) for size in tensors_of(operand)[0].shape]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return math.prod(sizes) if axis is None else sizes[cast("int", axis)]


def _with_operands(nodes: Iterable[Node]) -> set[Node]:
    """Numbers with those that they are made of."""
    found: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += _numbers_of(node)
    return found

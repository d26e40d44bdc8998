"""Finds out, at the first call for the strides of its inputs, which results are computed in their operand's memory.

The pass `reuse` names the candidates; whether one may really be done in place is a fact about strides, and kernels
choose strides while they run. In place, a result has its operand's strides. Computed apart it has strides of its own,
and with other strides the next kernel may round otherwise. So the first call looks: each candidate is computed in place
where its strides cannot be others, else apart, and compared. From then on a listing runs in which exactly the
candidates with equal strides are in place, and nothing is asked any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.aliasing import overwrites
from ..compiler.ir.layouts import decides
from ..compiler.ir.program import Program, tensors_of
from ..compiler.states.parts import members
from ..compiler.switches import read_switches

Op: TypeAlias = Callable[..., Any]
Layouts: TypeAlias = tuple[Any, ...]
"""The strides of the inputs of a call, their sizes where those vary, and which kernels are switched on."""


@dataclass(frozen=True)
class Candidates:
    """The nodes that may be computed in the memory of their first operand, on each device that runs them, by number.

    ``slot`` is where a call that looks keeps its `Look`; ``chosen`` is None as long as every candidate is looked at.
    """

    numbers: Mapping[tuple[Node, Device], int]
    slot: int
    chosen: frozenset[int] | None = None

    @staticmethod
    def of(program: Program, slot: int, without: Collection[int] = ()) -> Candidates:
        """All candidates of a program, none of which has been looked at, but those ``without`` which memory it is."""
        nodes = [node for node in filter(overwrites, program.ops()) if tensors_of(node)[0].storage not in without]
        found = [(node, device) for node in nodes for device in members(program, node)]
        return Candidates({site: number for number, site in enumerate(found)}, slot)

    def among(self, nodes: Sequence[Node], device: Device) -> frozenset[int]:
        """The numbers of the candidates among some nodes on a device."""
        return frozenset(self.numbers[node, device] for node in nodes if (node, device) in self.numbers)

    def choose(self, found: frozenset[int]) -> Candidates:
        """The same after a look."""
        return replace(self, chosen=found)

    def is_looked_at(self, node: Node, device: Device) -> bool:
        """Whether a node is a candidate of which nothing is known yet."""
        return self.chosen is None and (node, device) in self.numbers

    def is_in_place(self, node: Node, device: Device) -> bool:
        """Whether a node is known to be right in place on a device."""
        return self.chosen is not None and self.numbers.get((node, device)) in self.chosen


class Look:
    """What one call finds out: the numbers of the candidates that are right in place."""

    def __init__(self) -> None:
        self.found: set[int] = set()

    def __call__(
        self,
        number: int,
        apart: Callable[..., Any],
        in_place: Callable[..., Any],
        x: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Computes one candidate: in place where that is certain to be right, else apart, to compare."""
        if _decides(x, (*args, *kwargs.values())):
            self.found.add(number)
            return in_place(x, *args, **kwargs)
        result = apart(x, *args, **kwargs)
        if _layout(x) == _layout(result):
            self.found.add(number)
        return result


def _decides(x: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether an elementwise result of a tensor's shape, its first operand, must be laid out as it is."""
    if x.storage_offset() or x.is_conj() or x.is_neg():
        return False
    tensors = [one for one in others if isinstance(one, torch.Tensor) and one.dim()]
    return decides((x.shape, x.stride()), [(one.shape, one.stride()) for one in tensors])


def _layout(x: torch.Tensor) -> Any:
    return x.shape, x.dtype, x.stride(), x.storage_offset(), x.is_conj(), x.is_neg()


@dataclass
class Settled:
    """What was found for each layout of the inputs, and what runs for each finding; both are bounded."""

    by_layout: dict[Layouts, Any] = field(default_factory=dict)
    by_finding: dict[frozenset[int], Any] = field(default_factory=dict)

    def keep(self, layouts: Layouts, found: frozenset[int], make: Callable[[frozenset[int]], Any]) -> None:
        """Notes what a look found; ``make`` makes what runs then."""
        if len(self.by_layout) >= 256:
            self.by_layout.clear()
        if len(self.by_finding) >= 8 and found not in self.by_finding:
            self.by_layout.clear()
            self.by_finding.clear()
        if found not in self.by_finding:
            self.by_finding[found] = make(found)
        self.by_layout[layouts] = self.by_finding[found]


def layouts_of(inputs: Sequence[Any], with_sizes: bool) -> Layouts:
    """What kernels choose strides by, in a program whose weights and static sizes are given."""
    strides = [x.stride() for x in inputs]
    sizes = [x.shape for x in inputs] if with_sizes else ()
    return (*strides, *sizes, *read_switches())

"""What a program takes that is split by rows, in numbers: no graph is changed and nothing is lowered for it.

Each device multiplies its rows of each matrix that is sliced; the main device does all else. What is multiplied crosses
to the others once, however many matrices read it, and their parts of the results come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.devices.speeds import Speeds, speeds_of
from ...compiler.ir.eligibility import marked_weights
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.weight import Weight
from ..analysis.liveness import peak_bytes
from ..placement.rows import first_ratio
from ..simulate.cost import cost_of
from ..states.solution import NotPossible

_LATENCY = 3e-5  # seconds that a crossing takes besides its bytes


@dataclass(frozen=True)
class RowWork:
    """The seconds of a call, and the bytes of weights and of values that each device has at most."""

    seconds: float
    weights: tuple[int, ...]
    alive: tuple[int, ...]


def row_work(program: Program, shares: Sequence[float] = ()) -> RowWork | NotPossible:
    """What a call of a program takes whose blocks were found; why it cannot be split by rows."""
    if program.symbols:
        return NotPossible("row", "its sizes are dynamic")
    marks = marked_weights(program)
    ratio = first_ratio(program, program.rig.free, shares) if marks else ()
    if not any(ratio[1:]):
        return NotPossible("row", "none of its matrices can be sliced, or only one device gets a row")
    walk = _Walk(program, marks, ratio, speeds_of(program.rig))
    seconds = sum(walk.seconds())
    sliced = sum(weight.nbytes for weight in marks.values())
    rest = sum(weight.nbytes for weight in program.weights.values()) - sliced
    weights = [round(sliced * part) for part in ratio]
    weights[0] += rest
    return RowWork(seconds, tuple(weights), (peak_bytes(program), *(round(walk.most(part)) for part in ratio[1:])))


@dataclass(frozen=True)
class _Walk:
    """One look at each operation, with what crossed already."""

    program: Program
    marks: Mapping[Node, Weight]
    ratio: Sequence[float]
    speeds: Speeds
    crossed: set[Node] = field(default_factory=set)

    def seconds(self) -> Iterator[float]:
        """The seconds of each operation, with what crosses for it."""
        main = self.speeds[self.program.main]
        for node in self.program.ops():
            if self.marks.keys().isdisjoint(node.all_input_nodes):
                yield cost_of(node).seconds(main)
            else:
                yield self._multiplied(node)

    def most(self, part: float) -> float:
        """The most bytes of what is multiplied and of a part of the result."""
        users = [user for node in self.marks for user in node.users]
        return max(_nbytes(user.all_input_nodes[0]) + part * _nbytes(user) for user in users)

    def _multiplied(self, node: Node) -> float:
        whole, given = cost_of(node), node.all_input_nodes[0]
        is_new = given not in self.crossed
        self.crossed.add(given)
        each = []
        for device, part in zip(self.program.devices, self.ratio, strict=True):
            took = whole.part(part).seconds(self.speeds[device]) if part else 0.0
            if part and device != self.program.main:
                there = (_nbytes(given) if is_new else 0) / self.speeds.crossing(self.program.main, device)
                back = part * _nbytes(node) / self.speeds.crossing(device, self.program.main)
                took += there + back + (1 + is_new) * _LATENCY
            each.append(took)
        return max(each)


def _nbytes(node: Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(node))

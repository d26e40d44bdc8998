"""How much memory each device needs to run a program whose nodes are on given devices; nothing is changed.

What is counted is what the schedule will hold: a weight once on each device that reads it, wherever its home is; a
weight that comes and goes while its stage runs; a value from the node that makes it to its last reading on each device,
with the copies that arrive there; what an operation takes beside its operands and results while it runs. One pass over
the nodes and one over the readings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from torch.fx import Node

from ...compiler.ir.aliasing import readings
from ...compiler.ir.ops import GATHER, LANDING
from ...compiler.ir.program import Program, TensorType, Weight, tensors_of
from ...compiler.spec.devices import Device
from .scratch import scratch_bytes
from .stages import stages

Places = Mapping[Node, Device]
"""The device of each node."""


@dataclass(frozen=True)
class Need:
    """Bytes that a device must have: weights that stay or are there together, and what is needed beside them.

    ``weights`` is everything that lies there at the fullest moment and is a weight, ``values`` the rest of it.
    """

    weights: int = 0
    values: int = 0

    @property
    def total(self) -> int:
        """Both together, at the fullest moment."""
        return self.weights + self.values


def needs_of(program: Program, places: Places, headroom: int | None = None) -> dict[Device, Need]:
    """What each device of a program needs, given the device of each node.

    ``headroom`` bytes take the place of the values that are alive, on every device that holds a weight.
    """
    count = _Count(program, places)
    return {device: count.need(device, headroom) for device in program.devices}


@dataclass
class _Count:
    """Counts once for all devices; a step is the place of an operation in the graph."""

    program: Program
    places: Places
    steps: dict[Node, int] = field(init=False)
    stage: dict[Node, int] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)  # of each stage the first and the last step
    resident: dict[Device, dict[Weight, None]] = field(default_factory=lambda: defaultdict(dict))
    staged: dict[Device, dict[int, dict[Weight, None]]] = field(default_factory=dict)
    values: dict[Device, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ops = list(self.program.ops())
        self.steps = {node: step for step, node in enumerate(ops)}
        for device, run in groupby(ops, key=self.places.__getitem__):
            for nodes in stages(self.program, list(run), device):
                self.stage.update(dict.fromkeys(nodes, len(self.spans)))
                self.spans.append((self.steps[nodes[0]], self.steps[nodes[-1]]))
        self._count_weights()
        self.values = _alive(len(ops) + 1, self._lives())

    def need(self, device: Device, headroom: int | None) -> Need:
        resident = sum(weight.nbytes for weight in self.resident[device])
        staged = self.staged.get(device, {})
        held = {stage: sum(weight.nbytes for weight in some) for stage, some in staged.items()}
        if self.program.keeps_staged:
            resident, held = resident + sum(w.nbytes for w in {w: None for some in staged.values() for w in some}), {}
        if headroom is not None:
            most = resident + max(held.values(), default=0)
            return Need(most, headroom if most else 0)
        alive = self.values.get(device, [0])
        moments = [Need(resident, max(alive, default=0))]
        for stage, nbytes in held.items():
            first, last = self.spans[stage]
            moments.append(Need(resident + nbytes, max(alive[first : last + 1])))
        return max(moments, key=lambda need: need.total)

    def _count_weights(self) -> None:
        """Each weight on each device that reads it, or with each stage that it comes for."""
        seen = self._seen_outside()
        for node in self.program.weight_nodes():
            weight = self.program.weight(node)
            stays = self.program.output in node.users or any(tensor.storage in seen for tensor in tensors_of(node))
            for user in node.users:
                device = self.places.get(user, self.program.main)
                if stays or not self.program.stages(weight, device):
                    self.resident[device][weight] = None
                else:
                    some = self.staged.setdefault(device, defaultdict(dict))
                    some[self.stage[user]][weight] = None

    def _seen_outside(self) -> set[int]:
        """The storages of values that another stage reads, or the caller."""
        return {
            tensor.storage
            for reader, value, _ in readings(self.program)
            if value in self.stage and self.stage.get(reader) != self.stage[value]
            for tensor in tensors_of(value)
        }

    def _lives(self) -> Iterator[tuple[Device, int, int, int]]:
        """Each piece of memory that holds a value: its device, its bytes, and its first and last step."""
        lives: dict[tuple[Device, object], list[int]] = {}
        of_weights = {tensor.storage for node in self.program.weight_nodes() for tensor in tensors_of(node)}
        for node in self.program.graph.nodes:
            if node.op != "output":
                step, device = self.steps.get(node, 0), self.places.get(node, self.program.main)
                for tensor in tensors_of(node):
                    if tensor.storage not in of_weights:
                        lives.setdefault((device, tensor.storage), [tensor.nbytes, step, step])[2] = step
                scratch = scratch_bytes(self.program, node, device)
                if scratch:
                    lives[device, node] = [scratch, step, step]
        for reader, value, version in readings(self.program):
            if tensors_of(value):
                self._note_reading(lives, reader, value, version)
        return ((device, nbytes, first, last) for (device, _), (nbytes, first, last) in lives.items())

    def _note_reading(
        self, lives: dict[tuple[Device, object], list[int]], reader: Node, value: Node, version: int
    ) -> None:
        home = self.places.get(value, self.program.main)
        there = self.places.get(reader, self.program.main)
        step = self.steps.get(reader, len(self.steps))
        if there == home:
            for tensor in tensors_of(value):
                held = lives.get((home, tensor.storage), [0, 0, 0])
                held[2] = max(held[2], step)
        if there == home or self._lands(reader, value):
            return
        nbytes = sum(arriving(tensor) for tensor in tensors_of(value))
        life = lives.setdefault((there, (value, version)), [nbytes, self.steps.get(value, 0), step])
        life[2] = max(life[2], step)

    def _lands(self, reader: Node, value: Node) -> bool:
        """Whether a part arrives in the memory of the whole that it is gathered into."""
        if reader.target is not GATHER or value not in self.stage:
            return False
        out = reader.args[0]
        return isinstance(out, Node) and out.target is LANDING and self.stage[out] < self.stage[value]


def arriving(tensor: TensorType) -> int:
    """Bytes that a copy of a value takes: it keeps the strides, with the gaps of a view and without what repeats."""
    strides = [step for step in tensor.stride if isinstance(step, int)]
    if len(strides) < len(tensor.stride) or 0 in tensor.sizes:
        return tensor.nbytes
    reach = sum((count - 1) * step for count, step in zip(tensor.sizes, strides, strict=True))
    return (1 + reach) * tensor.dtype.itemsize


def _alive(steps: int, lives: Iterator[tuple[Device, int, int, int]]) -> dict[Device, list[int]]:
    """For each device the bytes alive at each step."""
    changes: dict[Device, list[int]] = {}
    for device, nbytes, first, last in lives:
        change = changes.setdefault(device, [0] * (steps + 1))
        change[first] += nbytes
        change[last + 1] -= nbytes
    for change in changes.values():
        alive = 0
        for step, nbytes in enumerate(change):
            alive += nbytes
            change[step] = alive
    return changes

"""What the rules of the verifier look at, read off a program in one walk over its graph.

Rules compare small ints instead of devices: a device is its position among the program's devices, or UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import Alias, alias_class, base_of, writes
from ...compiler.ir.program import MOVING, Program, tensors_of, weight_name
from ...compiler.ir.value import TensorType
from ...compiler.ir.weight import Weight

UNKNOWN = -1


@dataclass(frozen=True)
class Violation:
    """A broken rule: its name, what is wrong, and the node or the number of the instruction where it shows."""

    rule: str
    problem: str
    node: Node | None = None
    instruction: int | None = None


@dataclass
class Snapshot:
    """The nodes of a program with their operands, memory, bases, weights and devices.

    ``moving`` says where values lie: transfers and replicas; ``ops`` are all others that compute or view something.
    """

    program: Program
    nodes: list[Node]
    ops: list[Node] = field(default_factory=list)
    moving: list[Node] = field(default_factory=list)
    operands: dict[Node, list[Node]] = field(default_factory=dict)
    storages: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    kinds: dict[Node, Alias] = field(default_factory=dict)
    bases: dict[Node, Node] = field(default_factory=dict)
    writes: dict[Node, set[int]] = field(default_factory=dict)
    weights: dict[Node, Weight] = field(default_factory=dict)
    device: dict[Node, int] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Snapshot:
        """Walks the graph once."""
        snapshot = cls(program, list(program.graph.nodes))
        known = {id(device): index for index, device in enumerate(program.devices)}
        for node in snapshot.nodes:
            meta = node.meta
            snapshot.operands[node] = node.all_input_nodes
            snapshot.storages[node] = _storages(node, meta.get("value"))
            placement = meta.get("placement")
            where = placement.device if placement else program.home.get(meta.get("weight", ""))
            place = known.get(id(where))
            snapshot.device[node] = snapshot.place(where) if place is None else place
            if node.target in MOVING:
                snapshot.moving.append(node)
            elif node.op == "call_function":
                snapshot._note_op(node)
            elif (name := weight_name(node)) in program.weights:
                snapshot.weights[node] = program.weights[name]
        return snapshot

    def _note_op(self, node: Node) -> None:
        self.ops.append(node)
        kind = self.kinds[node] = alias_class(node.target)
        if kind is Alias.WRITE:
            self.writes[node] = writes(node)
        base = base_of(node, self._storages_of)
        if base is not None:
            self.bases[node] = base

    def _storages_of(self, node: Node) -> tuple[int, ...]:
        return self.storages.get(node, ())

    def place(self, device: Device | None) -> int:
        """The position of a device among the program's."""
        devices: Sequence[Any] = self.program.devices
        return devices.index(device) if device in devices else UNKNOWN

    def homes(self) -> dict[str, int]:
        """The place of each weight's home."""
        places = {device: self.place(device) for device in set(self.program.home.values())}
        return {name: places[device] for name, device in self.program.home.items()}

    def name(self, place: int) -> str:
        """The name of the device at a position."""
        return "no device of the program" if place == UNKNOWN else self.program.devices[place].name


def _storages(node: Node, value: object) -> tuple[int, ...]:
    if isinstance(value, TensorType):
        return (value.storage,)
    return () if value is None else tuple(tensor.storage for tensor in tensors_of(node))

"""The program: a torch.fx graph of ATen ops in which every node is annotated.

A node carries four facts, each under one key of ``node.meta`` and read through the functions at the end of this file:
its *value* (what it yields), its *placement* (where it runs), its *origin* (the module and source line it came from)
and, on a placeholder that stands for one, the name of its *weight*. What a weight is stands in ``Program.weights``, and
where it is placed in ``Program.home``: nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, Node

from ..devices.device import Device
from ..devices.rig import Rig
from ..spec.residency import ALIKE, Amounts, Residency
from ..units import counted
from .ops import RESHARD, TRANSFER
from .signature import Signature
from .slices import Bounds
from .state import WHOLE, State, States
from .value import TensorType, Value, flat
from .weight import Adapter, Weight

if TYPE_CHECKING:
    from .schedule import Schedule

HERE = torch.device("meta")
"""Stands in the arguments of a node for "the device this node is placed on"."""

MOVING = frozenset({TRANSFER, RESHARD})
"""The operations that change where a value lies, and compute nothing; they are in no segment."""

IN_PARTS = "in parts"
"""The fact of a program that it computes the pictures of a call in several parts, one after another on each device."""

LOWERED = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtypes to which autocast lowers ops, by name."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node came from: module path and class, and the model's source line."""

    module: str = ""
    cls: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node that is no weight runs, the names of the weights that it takes there, and what each device yields.

    ``group`` are the devices that run it, the first of which is its main one; most nodes have one. ``states`` says of
    each of its results what the devices have; if empty, each of them has all results whole.
    ``part`` is the number of the micro-batch that it computes, None of what is computed for all of them.
    """

    group: tuple[Device, ...] = ()
    segment: int | None = None
    weights: tuple[str, ...] = ()
    states: tuple[States, ...] = ()
    part: int | None = None

    @property
    def device(self) -> Device | None:
        """The main device of the group, or the one that runs it; None before any pass said so."""
        return self.group[0] if self.group else None


@dataclass(frozen=True, slots=True)
class Block:
    """One repeated unit: its name, and the names of the weights that are placed with it."""

    name: str
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A maximal run of consecutive nodes on one device, or of nodes that a group of devices shares.

    ``device`` is the main one of the nodes' group; ``group`` has every device that runs them, in their turn.
    """

    index: int
    device: Device
    nodes: tuple[Node, ...]
    group: tuple[Device, ...]

    @property
    def part(self) -> int:
        """The number of the micro-batch that it is of; what is computed for all of them goes with the first."""
        return part_of(self.nodes[0]) or 0 if self.nodes else 0

    @property
    def title(self) -> str:
        """What a run of it is called in lanes and traces."""
        has_part = self.nodes and part_of(self.nodes[0]) is not None
        return f"segment {self.index}" + (f" of part {self.part}" if has_part else "")


@dataclass(eq=False)
class Program:
    """A traced component: its graph, how it is called, its weights by name, and what the passes said of it."""

    name: str
    graph: Graph
    signature: Signature
    weights: dict[str, Weight]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    autocast: torch.dtype | None = None  # under which it was traced; its casts are in the graph
    rig: Rig = field(default_factory=Rig)  # its devices, main first, with what may be used of each
    blocks: tuple[Block, ...] = ()
    adapters: tuple[Adapter, ...] = ()  # branches that the graph does not have yet
    home: dict[str, Device] = field(default_factory=dict)  # weight name → device
    residency: dict[str, Residency] = field(default_factory=dict)  # of weights that do not stay where they are read
    keeps_staged: bool = False  # what was brought for one run stays until the caller lets go of it, at a phase's end
    given: frozenset[int] = frozenset()  # numbers of inputs that are the caller's, on the main device before a call
    bounds: dict[str, Bounds] = field(default_factory=dict)  # of weights that are split by rows, one range a device
    segments: tuple[Segment, ...] = ()
    schedule: Schedule | None = None
    history: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        where = f" on {' & '.join(map(str, self.devices))}" if self.devices else ""
        ops, segments = counted(len(list(self.ops())), "operation"), counted(len(self.segments), "segment")
        return f"<Program {self.name}{where}: {ops}, {segments if self.segments else 'not cut'}>"

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices it is compiled for, main device first."""
        return self.rig.devices

    @property
    def main(self) -> Device:
        """The main device: it holds the inputs, the outputs and the weights outside blocks."""
        return self.devices[0]

    def stages(self, weight: Weight, device: Device) -> bool:
        """Whether a weight rests elsewhere than on a device that reads it, and is brought there for each reading."""
        return self.residency.get(weight.whole, Residency.DEVICE).stages_on(device)

    def keep(self, residency: Residency, amounts: Amounts = ALIKE) -> None:
        """Has all parameters kept in one place while nobody computes with them, and some bytes of them elsewhere."""
        kept = [weight for weight in self.weights.values() if weight.kind == "parameter"]
        places = zip(kept, amounts.of([weight.nbytes for weight in kept], residency), strict=True)
        self.residency = {weight.name: rests for weight, rests in places if rests is not Residency.DEVICE}

    @property
    def is_sliced(self) -> bool:
        """Whether rows of some weight are on several devices."""
        return bool(self.bounds)

    @property
    def is_grouped(self) -> bool:
        """Whether a group of devices computes some of it together, as by rows and in other states."""
        if len(self.devices) < 2:
            return False
        if self.segments:
            return any(len(segment.group) > 1 for segment in self.segments)
        return any(len(placement_of(node).group) > 1 for node in self.ops())

    @property
    def works_at_once(self) -> bool:
        """Whether devices work at the same time in a call, each issued to from a thread of its own.

        They do where several run half of the operations, or more, or micro-batches go through a layer split; not where
        sizes are not known. The main device of a row split computes all but products: to hand each of these over takes
        longer than to launch it.
        """
        if self.symbols:
            return False
        if IN_PARTS in self.facts:
            return True
        groups = [placement_of(node).group for node in self.ops() if node.target not in MOVING]
        return 2 * sum(len(group) > 1 for group in groups) >= max(1, len(groups))

    @property
    def kept(self) -> Residency:
        """Where most parameters are kept."""
        places = (self.residency.get(one.name) for one in self.weights.values() if one.kind == "parameter")
        return next(iter(Counter(places).most_common(1)), (None, 0))[0] or Residency.DEVICE

    def inputs(self) -> Iterator[Node]:
        """The placeholders that stand for inputs, in order."""
        return (node for node in self.graph.find_nodes(op="placeholder") if not weight_name(node))

    def weight_nodes(self) -> Iterator[Node]:
        """The placeholders that stand for weights, in order."""
        return (node for node in self.graph.find_nodes(op="placeholder") if weight_name(node))

    def weights_read(self) -> set[str]:
        """The names of the weights that some operation reads, or that are returned."""
        return {node.meta["weight"] for node in self.weight_nodes() if node.users}

    @property
    def given_storages(self) -> set[int]:
        """The memory of the inputs that are the caller's."""
        inputs = (node for number, node in enumerate(self.inputs()) if number in self.given)
        return {tensor.storage for node in inputs for tensor in tensors_of(node)}

    def weight(self, node: Node) -> Weight:
        """The weight that a placeholder stands for, whole; raises KeyError for another node."""
        return self.weights[node.meta["weight"]]

    def block_of(self) -> dict[str, str]:
        """The block of each weight that lies in one, by their names; made anew from all blocks."""
        return {name: block.name for block in self.blocks for name in block.weights}

    def nbytes_of(self, weights: Iterable[str]) -> int:
        """The bytes of some weights by their names."""
        return sum(self.weights[name].nbytes for name in weights)

    def places(self) -> dict[Node, Device]:
        """The device of each node of a pinned program; that of a weight is where it is at home."""
        names = {node: weight_name(node) for node in self.graph.nodes}
        return {node: self.home[name] if name else device_of(node) for node, name in names.items()}

    def fresh_storages(self) -> Iterator[int]:
        """Numbers of memory in which no value lies yet, one after another."""
        taken = (tensor.storage for node in self.graph.nodes for tensor in tensors_of(node))
        return count(max(taken, default=-1) + 1)

    def ops(self) -> Iterator[Node]:
        """The nodes that compute or view something, in order; not those that bring values to devices."""
        return (one for one in self.graph.nodes if one.op == "call_function" and not _moves(one))

    def transfers(self) -> Iterator[Node]:
        """The nodes that change where a value lies, in order."""
        return filter(_moves, self.graph.nodes)

    @property
    def output(self) -> Node:
        """The one output node."""
        return self.graph.output_node()

    def results(self) -> tuple[Any, ...]:
        """What it returns, in order: the tensors of each value, flat in a tuple, or a constant as it is."""
        returned = self.output.args[0]
        assert isinstance(returned, (list, tuple))
        return tuple(tensors_of(one) if isinstance(one, Node) else one for one in returned)

    def copy(self) -> Program:
        """Another program over the same weights, for other devices or passes; it must not have been cut yet."""
        if self.segments:
            raise ValueError(f"{self.name} was cut into {len(self.segments)} segments: copy a program before it is cut")
        graph, copies = Graph(), dict[Node, Node]()
        output = graph.output(graph.graph_copy(self.graph, copies))
        for node, copied in copies.items():
            copied.name = node.name  # which fx changes where it is a word of Python's own, such as input
        output.meta = dict(self.output.meta)
        return replace(
            self,
            graph=graph,
            weights=dict(self.weights),
            constants=dict(self.constants),
            home=dict(self.home),
            residency=dict(self.residency),
            bounds=dict(self.bounds),
        )


def _moves(node: Node) -> bool:
    target = node.target  # operations have a hash in Python: looking one up in a set takes several times as long
    return target is TRANSFER or target is RESHARD


_NO_ORIGIN, _NOWHERE = Origin(), Placement()


def value_of(node: Node) -> Value:
    """What a node yields."""
    return node.meta["value"]  # type: ignore[no-any-return]


def tensors_of(node: Node) -> tuple[TensorType, ...]:
    """The tensors among what a node yields, flat."""
    value = node.meta["value"]
    if type(value) is TensorType:  # passes ask half a million times
        return (value,)
    return tuple(flat(value)) if value else ()


def weight_name(node: Node) -> str | None:
    """The name of the weight that a placeholder stands for, if it does."""
    return node.meta.get("weight")


def origin_of(node: Node) -> Origin:
    """Where a node came from."""
    return node.meta.get("origin", _NO_ORIGIN)  # type: ignore[no-any-return]


def placement_of(node: Node) -> Placement:
    """Where a node runs; an empty placement before any pass said so."""
    return node.meta.get("placement", _NOWHERE)  # type: ignore[no-any-return]


def states_of(node: Node) -> tuple[State, ...]:
    """What each device of a node's group has of each tensor that it yields."""
    states = placement_of(node).states
    return tuple(one[0] for one in states) if states else (WHOLE,) * len(tensors_of(node))


def state_of(node: Node) -> State:
    """What each device of a node's group has of its result, or of the first of several."""
    states = placement_of(node).states
    return states[0][0] if states else WHOLE


def device_of(node: Node) -> Device:
    """The device of a placed node; raises LookupError when no pass has placed it."""
    device = placement_of(node).device
    if device is None:
        raise LookupError(f"node {node.name} has no device yet: run the pin pass first")
    return device


def part_of(node: Node) -> int | None:
    """The number of the micro-batch that a node computes; None for what is computed for all of them."""
    return placement_of(node).part


def place_node(node: Node, **changes: Any) -> None:
    """Replaces fields of a node's placement."""
    node.meta["placement"] = replace(placement_of(node), **changes)

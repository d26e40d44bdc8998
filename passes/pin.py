"""Gives every node a device: that of the weight consumed last, in graph order.

A node runs where its weights are, and what has no weights stays where the data already is, so a device changes only
where the weights do. A table (a buffer or constant in no block, such as rotary angles that every block reads) draws
nobody: it is loaded wherever it is read. A view never moves: it lives where its base lives, and so does whatever
writes into memory that exists already, which keeps a storage that is written on one device with all its views. Where
parts of a value are gathered, the program is on the main device again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ..compiler.aliasing import Alias, alias_class, asks, base_of
from ..compiler.devices import Device
from ..compiler.ops import GATHER, LANDING
from ..compiler.program import Placement, Program, Weight, tensors_of, weight_of
from .base import Change, Pass


@dataclass(frozen=True)
class Pin(Pass):
    """Places every node of a program whose weights are placed."""

    name: ClassVar[str] = "pin"
    requires: ClassVar[frozenset[str]] = frozenset({"placed"})
    ensures: ClassVar[frozenset[str]] = frozenset({"pinned"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})

    def run(self, program: Program) -> Change:
        """Walks the graph once; inputs, outputs and whatever precedes the first weight lie on the main device."""
        for node, (device, weights) in pinned(program, program.home).items():
            node.meta["placement"] = _placement(node, device, weights)
        return Change(len(program.graph.nodes), "nodes pinned")


def pinned(program: Program, home: Mapping[str, Device]) -> dict[Node, tuple[Device, tuple[Weight, ...]]]:
    """The device of each node, and the weights that an operation reads, for weights of such homes."""
    current, tables = program.main, program.tables
    roots: dict[Node, tuple[Weight, ...]] = {}
    found: dict[Node, tuple[Device, tuple[Weight, ...]]] = {}
    for node in program.graph.nodes:
        weight = weight_of(node)
        if node.op != "call_function":
            roots[node] = (weight,) if weight else ()
            found[node] = (home[weight.name] if weight else program.main), ()
            continue
        base, weights = base_of(node), consumed_weights(node, roots)
        roots[node] = weights_through(node, roots)
        drawing = [weight.name for weight in weights if weight.name not in tables]
        if drawing and not (base and names_memory(node)):
            current = home[drawing[-1]]
        if returns(node):
            current = program.main
        found[node] = (found[base][0] if base else current), weights
    return found


def consumed_weights(node: Node, roots: dict[Node, tuple[Weight, ...]]) -> tuple[Weight, ...]:
    """The weights that a node reads, each once, in argument order, through chains of views, casts and transposes."""
    return tuple(dict.fromkeys(weight for operand in node.all_input_nodes for weight in roots[operand]))


def weights_through(node: Node, roots: dict[Node, tuple[Weight, ...]]) -> tuple[Weight, ...]:
    """The weights that reading a node amounts to reading: those behind what it views, casts or transposes."""
    viewed = node.args[0] if node.args else None
    if not isinstance(viewed, Node) or not names_memory(node) or not tensors_of(node):
        return ()
    return roots[viewed]


def names_memory(node: Node) -> bool:
    """Whether a node computes nothing: it is a view, or may be one (a cast, a ``reshape``), or asks for a size."""
    return alias_class(node.target) in (Alias.VIEW, Alias.MAYBE) or asks(node.target)


def returns(node: Node) -> bool:
    """Whether a node makes a whole of what was split: the program goes on where it is whole, on the main device."""
    return node.target in (LANDING, GATHER)


def _placement(node: Node, device: Device, weights: tuple[Weight, ...] = ()) -> Placement:
    nbytes = 0 if node.op == "output" else sum(tensor.nbytes for tensor in tensors_of(node))
    return Placement(device=device, weights=weights, nbytes=nbytes)

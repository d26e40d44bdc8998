"""Gives every node a device: that of the weight consumed last, in graph order.

A node runs where its weights are, and what has no weights stays where the data already is, so a device changes only
where the weights do. Replicated weights (``analysis/replicated.py``: rotary angles, small parameters that every block
reads) do not count: they are loaded wherever they are read. A view never moves: it lives where its base lives, and so
does whatever writes into memory that exists already, which keeps a storage that is written on one device with all its
views. What is split over devices stays so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import base_of, computes
from ...compiler.ir.program import MOVING, Program, place_node, placement_of, weight_name
from ...compiler.ir.split import is_shared
from ..analysis.replicated import replicated_weights
from ..analysis.weight_chains import consumed_weights, weights_through
from ..infra.base import Change, Pass


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
            if not weight_name(node):
                group = placement_of(node).group if is_shared(node) else (device,)
                place_node(node, group=group, weights=weights)
        return Change(len(program.graph.nodes), "nodes pinned")


def pinned(program: Program, home: Mapping[str, Device]) -> dict[Node, tuple[Device, tuple[str, ...]]]:
    """The device of each node, and the names of the weights that an operation reads, for weights of such homes."""
    current, free = program.main, replicated_weights(program, home)
    roots: dict[Node, tuple[str, ...]] = {}
    found: dict[Node, tuple[Device, tuple[str, ...]]] = {}
    for node in program.graph.nodes:
        name = weight_name(node)
        if node.op != "call_function":
            roots[node] = (name,) if name else ()
            found[node] = (home[name] if name else program.main), ()
            continue
        if node.target in MOVING:
            roots[node] = weights_through(node, roots)
            found[node] = current, ()
            continue
        base, weights = base_of(node), consumed_weights(node, roots)
        roots[node] = weights_through(node, roots)
        pinning = [name for name in weights if name not in free]
        if pinning and (base is None or computes(node.target)):
            current = home[pinning[-1]]
        found[node] = (found[base][0] if base else current), weights
    return found

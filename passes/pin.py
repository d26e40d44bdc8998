"""Gives every node a device: that of the weight consumed last, in graph order.

A node runs where its weights are, and what has no weights stays where the data already is, so a device changes only
where the weights do. A view never moves: it lives where its base lives, and so does whatever writes into memory that
exists already, which keeps a storage that is written on one device with all its views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ..compiler.aliasing import Alias, alias_class, base_of
from ..compiler.program import Placement, Program, Weight, device_of, tensors_of, weight_of
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
        current = program.main
        roots: dict[Node, tuple[Weight, ...]] = {}
        for node in program.graph.nodes:
            weight = weight_of(node)
            if node.op != "call_function":
                device = program.home[weight.name] if weight else program.main
                roots[node] = (weight,) if weight else ()
                node.meta["placement"] = _placement(node, device)
                continue
            weights = tuple(consumed_weights(node, roots))
            base = base_of(node)
            roots[node] = weights if is_weight_chain(node) else ()
            if weights and not (base and is_weight_chain(node)):
                current = program.home[weights[-1].name]
            node.meta["placement"] = _placement(node, device_of(base) if base else current, weights)
        return Change(len(program.graph.nodes), "nodes pinned")


def consumed_weights(node: Node, roots: dict[Node, tuple[Weight, ...]]) -> Iterator[Weight]:
    """The weights that a node reads, in argument order, through chains of views, casts and transposes."""
    for operand in node.all_input_nodes:
        yield from roots.get(operand, ())


def is_weight_chain(node: Node) -> bool:
    """Whether a node only views, casts or transposes its one operand."""
    return len(node.all_input_nodes) == 1 and alias_class(node.target) in (Alias.VIEW, Alias.MAYBE)


def _placement(node: Node, device: object, weights: tuple[Weight, ...] = ()) -> Placement:
    nbytes = 0 if node.op == "output" else sum(tensor.nbytes for tensor in tensors_of(node))
    return Placement(device=device, weights=weights, nbytes=nbytes)  # type: ignore[arg-type]

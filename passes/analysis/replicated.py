"""Finds the weights that do not pin their readers: each is copied to every device that reads it.

These are the numbers of adapters, buffers and constants that lie in no block (rotary angles), and small parameters in
no block that are read between two blocks (a vector that every block adds). If a small one pinned its readers, the
program would go to the main device and back at each of them, with everything that is alive; a copy on each device costs
``SMALL`` bytes at most, once. A parameter that is read only before or behind the blocks (an embedding, a head) pins its
readers, and so does one that a device map puts on another device than the main one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import base_of, computes
from ...compiler.ir.program import MOVING, Program, part_of, weight_name
from .weight_chains import consumed_weights, weights_through

SMALL = 2**20
"""The most bytes of a parameter that is copied to every reader: next to nothing on a device that holds a block."""


def replicated_weights(program: Program, home: Mapping[str, Device]) -> frozenset[str]:
    """The names of weights that are read wherever an operation is; ``home`` is where they rest, as far as decided."""
    inside = {name for block in program.blocks for name in block.weights if not program.weights[name].is_number}
    loose = [weight for weight in program.weights.values() if weight.name not in inside]
    found = {weight.name for weight in loose if weight.kind != "parameter"}
    small = {
        weight.name
        for weight in loose
        if weight.kind == "parameter" and weight.nbytes <= SMALL and home.get(weight.name, program.main) == program.main
    }
    if small and not program.is_sliced:  # split by rows, everything in no block is on the main device anyway
        found |= small & _read_between(program, inside)
    return frozenset(found)


def _read_between(program: Program, inside: set[str]) -> set[str]:
    """The weights in no block that are read behind the first reading of a block's weight, and before the last one."""
    read = list(_readings(program))
    of_blocks = [step for step, names in enumerate(read) if not inside.isdisjoint(names)]
    if not of_blocks:
        return set()
    between = read[of_blocks[0] : of_blocks[-1]]
    return {name for names in between for name in names if name not in inside}


def _readings(program: Program) -> Iterator[tuple[str, ...]]:
    """The weights that each operation reads that is more than a view or cast, in order; of parts the first's."""
    roots: dict[Node, tuple[str, ...]] = {}
    for node in program.graph.nodes:
        name = weight_name(node)
        roots[node] = (name,) if name else ()
        if node.op != "call_function":
            continue
        weights = consumed_weights(node, roots)
        roots[node] = weights_through(node, roots)
        if (
            weights
            and not part_of(node)
            and node.target not in MOVING
            and (computes(node.target) or base_of(node) is None)
        ):
            yield weights

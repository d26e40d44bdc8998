"""The rule of the verifier that says on which device each operation is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ...compiler.ir.aliasing import Alias, computes, overwrites
from ...compiler.ir.program import MOVING, part_of, placement_of
from ..analysis.replicated import SMALL
from ..analysis.weight_chains import weights_through
from .snapshot import UNKNOWN, Snapshot, Violation


def pin(snapshot: Snapshot) -> Iterator[Violation]:
    """Every other op names its weights and is where the last is that pins, or has none and is with its readers."""
    beside = {node: base for node, base in snapshot.bases.items() if not overwrites(node)}
    homes, free = snapshot.homes(), _free(snapshot, beside)
    roots: dict[Node, tuple[str, ...]] = {node: (weight.name,) for node, weight in snapshot.weights.items()}
    following: set[Node] = set()
    places: dict[int, int] = {}  # of each micro-batch, which goes its own way through the devices
    for node in snapshot.nodes:
        if node.target in MOVING and snapshot.operands[node][0] in roots:
            roots[node] = weights_through(node, roots)
        if node not in snapshot.kinds:
            continue
        part = part_of(node) or 0
        consumed: tuple[str, ...] = ()
        for operand in snapshot.operands[node]:
            if operand in roots:
                consumed += roots[operand]
        if consumed:
            consumed = tuple(dict.fromkeys(consumed))
            roots[node] = weights_through(node, roots)
            pinning = [name for name in consumed if name not in free]
            if pinning and (node not in beside or computes(node.target)):
                places[part] = homes.get(pinning[-1], UNKNOWN)
        if placement_of(node).weights != consumed:
            names, said = list(consumed), list(placement_of(node).weights)
            yield Violation("pin", f"%{node.name} consumes the weights {names}, its placement says {said}", node)
        current = places.get(part, 0)
        if snapshot.device[node] == current or node in beside or _is_of_mesh(snapshot, node):
            continue
        if consumed or not (following := following or _following(snapshot, beside)) or node not in following:
            here, there = snapshot.name(snapshot.device[node]), snapshot.name(current)
            yield Violation("pin", f"%{node.name} is on {here}, the weight consumed last on {there}", node)


def _is_of_mesh(snapshot: Snapshot, node: Node) -> bool:
    """Whether an op is of one of several groups of as many devices, which have weights of their own."""
    group, devices = placement_of(node).group, snapshot.program.devices
    first, size = snapshot.device[node], len(group)
    is_one = 1 < size < len(devices) and len(devices) % size == 0 == first % size
    return is_one and not snapshot.program.is_sliced and group == devices[first : first + size]


def _following(snapshot: Snapshot, beside: Mapping[Node, Node]) -> set[Node]:
    """The ops that may run where their only readers are: pure ones, all of whose readers are on their device.

    A reader through views counts where it is, so an op that views another one is among them if its readers are there.
    """
    found: set[Node] = set()
    for node in reversed(snapshot.ops):
        tags = node.target.tags if isinstance(node.target, OpOverload) else ()
        if snapshot.kinds[node] is Alias.WRITE or torch.Tag.nondeterministic_seeded in tags:
            continue
        there = [user for user in node.users if snapshot.device.get(user) == snapshot.device[node]]
        away = len(there) < len(node.users) or any(user.op == "output" for user in there)
        if there and not away and all(user in found for user in there if beside.get(user) is node):
            found.add(node)
    return found


def _free(snapshot: Snapshot, beside: Mapping[Node, Node]) -> set[str]:
    """The weights that pin no operation: numbers, what is no parameter and in no block, small ones read in between."""
    program = snapshot.program
    inside = {name for block in program.blocks for name in block.weights}
    weights = snapshot.weights.values()
    free = {one.name for one in weights if one.kind != "parameter" and (one.is_number or one.name not in inside)}
    small = {one.name for one in weights if one.kind == "parameter" and one.nbytes <= SMALL} - inside
    small = {name for name in small if program.home.get(name) == program.main}
    if not small or program.is_sliced:
        return free
    steps: dict[str, list[int]] = {}
    roots: dict[Node, tuple[str, ...]] = {node: (weight.name,) for node, weight in snapshot.weights.items()}
    for step, node in enumerate(snapshot.nodes):
        read = {name for operand in snapshot.operands[node] for name in roots.get(operand, ())}
        roots.setdefault(node, weights_through(node, roots) if read else ())
        if node in snapshot.kinds and not part_of(node) and (node not in beside or computes(node.target)):
            for name in read:
                steps.setdefault("" if name in inside and name not in free else name, []).append(step)
    of_blocks = steps.get("", [])
    first, last = (of_blocks[0], of_blocks[-1]) if of_blocks else (0, 0)
    return free | {name for name in small if any(first <= step < last for step in steps.get(name, ()))}

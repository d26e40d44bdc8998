"""Views a value where its views are read, so that it crosses in their place, where that is no more bytes.

A model that cuts one value into several (``chunk`` of a modulation) reads its parts on another device. Where they have
together at least as many bytes as what they are parts of, that crosses, once, and is viewed there: fewer copies, and
never more bytes. Views that nobody reads any more where they were are dropped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import Alias, alias_class, base_of, reshapes, storages_of, writes
from ...compiler.ir.program import Program, device_of, place_node, tensors_of, weight_name
from ..analysis.storages import rename_storages

Key = tuple[Node, Device, int]
"""A value, a device on which it is read, and how often its memory was written by then."""

_BY_PLACE = frozenset({torch.ops.aten.as_strided.default})


def share_bases(program: Program) -> dict[Key, int]:
    """Views values where that is better, and gives for each the memory in which its views lie there.

    The program is pinned, and not cut yet; one of dynamic sizes, or of which devices compute something together, stays
    as it is. Takes time linear in the readings and the views.
    """
    if program.is_grouped or program.is_sliced or program.symbols:
        return {}
    roots = _roots(program)
    wanted: defaultdict[Key, set[Node]] = defaultdict(set)
    for _, value, key in _crossing(program, roots):
        wanted[key].add(value)
    found = [key for key, values in wanted.items() if values != {key[0]} and _bytes(key[0]) <= sum(map(_bytes, values))]
    memory = dict(zip(found, program.fresh_storages(), strict=False))
    if memory:
        _view_there(program, memory, roots)
    return memory


def _crossing(program: Program, roots: Mapping[Node, Node]) -> Iterator[tuple[Node, Node, Key]]:
    """Each reader, and a value that it reads on another device, with what that is a view of; results are left out."""
    written: Counter[int] = Counter()
    for node in list(program.ops()):
        for value in node.all_input_nodes:
            if tensors_of(value) and not weight_name(value) and device_of(value) != device_of(node):
                root = roots.get(value, value)
                yield node, value, (root, device_of(node), times_written(root, written))
        written.update(writes(node))


def times_written(node: Node, written: Counter[int]) -> int:
    """How often the memory of a value has been written, given that of each piece of memory."""
    return max((written[storage] for storage in storages_of(node)), default=0) if written else 0


def _roots(program: Program) -> dict[Node, Node]:
    """What each view is a view of, through views that are certain and take nothing else but numbers.

    Not through one that names memory by its place in a storage (``as_strided``), for a copy has a storage of its own;
    nor of what an operation gives another shape in place.
    """
    reshaped = {storage for node in program.ops() if reshapes(node.target) for storage in writes(node)}
    found: dict[Node, Node] = {}
    for node in program.ops():
        base = base_of(node) if alias_class(node.target) is Alias.VIEW and node.target not in _BY_PLACE else None
        if base is None or weight_name(base) or device_of(base) != device_of(node):
            continue
        if reshaped.isdisjoint(storages_of(base)) and not any(
            tensors_of(o) for o in node.all_input_nodes if o is not base
        ):
            found[node] = found.get(base, base)
    return found


def _view_there(program: Program, memory: Mapping[Key, int], roots: Mapping[Node, Node]) -> None:
    """Has readers read views on their device, which stand in front of the first of them."""
    views: dict[tuple[Key, Node], Node] = {}
    for reader, value, key in _crossing(program, roots):
        if key not in memory:
            continue
        chain = [value]
        while chain[-1] is not key[0] and (key, chain[-1]) not in views:
            chain.append(next(one for one in chain[-1].all_input_nodes if tensors_of(one)))
        there = views.get((key, chain[-1]), chain[-1])
        for below, node in pairwise(reversed(chain)):
            there = _copied(program, node, {below: there}, key[1], memory[key], reader)
            views[key, node] = there
        reader.replace_input_with(value, there)
    for node in reversed(list(program.ops())):
        if not node.users and node in roots:
            program.graph.erase_node(node)


def _copied(
    program: Program, node: Node, operands: Mapping[Node, Node], device: Device, storage: int, reader: Node
) -> Node:
    """The same view of other operands, on another device, in front of a reader."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda one: operands.get(one, one))
    name = re.sub(r"\W", "_", f"{node.name}_on_{device}")
    with program.graph.inserting_before(reader):
        made = program.graph.create_node("call_function", node.target, args, kwargs, name)
    made.meta = dict(node.meta)
    rename_storages(made, dict.fromkeys(storages_of(node), storage))
    place_node(made, group=(device,))
    return made


def _bytes(node: Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(node))

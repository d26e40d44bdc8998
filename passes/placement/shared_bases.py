"""Views a value where its views are read, so that it crosses in their place, where that is no more bytes.

A model that cuts one value into several (``chunk`` of a modulation) reads its parts on another device. Where they have
together at least as many bytes as what they are parts of, that crosses, once, and is viewed there: fewer copies, and
never more bytes. Views that nobody reads any more where they were are dropped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.ir.aliasing import Alias, alias_class, base_of, storages_of, writes
from ...compiler.ir.program import Program, device_of, place_node, tensors_of, value_of, weight_name
from ...compiler.ir.value import TensorType, Value
from ...compiler.spec.devices import Device

Key = tuple[Node, Device, int]
"""A value, a device on which it is read, and how often its memory was written by then."""


def share_bases(program: Program) -> dict[Key, int]:
    """Views values where that is better, and gives for each the memory in which its views lie there.

    The program is pinned, and not cut yet. Takes time linear in the readings and the chains of views.
    """
    wanted: defaultdict[Key, set[Node]] = defaultdict(set)
    for _, value, key in _crossing(program) if not program.is_sliced else ():
        wanted[key].add(value)
    found = [key for key, values in wanted.items() if values != {key[0]} and _bytes(key[0]) <= sum(map(_bytes, values))]
    memory = dict(zip(found, program.fresh_storages(), strict=False))
    if memory:
        _view_there(program, memory)
    return memory


def _crossing(program: Program) -> Iterator[tuple[Node, Node, Key]]:
    """Each reader, and a value that it reads on another device, with what that is a view of; results are left out."""
    written: Counter[int] = Counter()
    for node in list(program.ops()):
        for value in node.all_input_nodes:
            if tensors_of(value) and not weight_name(value) and device_of(value) != device_of(node):
                root = _root(value)
                yield node, value, (root, device_of(node), times_written(root, written))
        written.update(writes(node))


def times_written(node: Node, written: Counter[int]) -> int:
    """How often the memory of a value has been written, given that of each piece of memory."""
    return max((written[storage] for storage in storages_of(node)), default=0) if written else 0


def _root(value: Node) -> Node:
    """What a value is a view of, through views that are certain and take nothing else but numbers."""
    root = at = value
    while alias_class(at.target) is Alias.VIEW and (base := base_of(at)) is not None:
        others = (one for one in at.all_input_nodes if one is not base)
        if weight_name(base) or any(map(tensors_of, others)) or device_of(base) != device_of(value):
            break
        at = base
        root = at if isinstance(value_of(at), TensorType) else root
    return root


def _view_there(program: Program, memory: dict[Key, int]) -> None:
    """Has readers read views on their device, which stand in front of the first of them."""
    views: dict[tuple[Key, Node], Node] = {}

    def view(value: Node, key: Key, reader: Node) -> Node:
        if value is key[0] or not tensors_of(value):
            return value
        if (key, value) not in views:
            operands = {one: view(one, key, reader) for one in value.all_input_nodes}
            views[key, value] = _copied(program, value, operands, key[1], memory[key], reader)
        return views[key, value]

    for reader, value, key in _crossing(program):
        if key in memory:
            reader.replace_input_with(value, view(value, key, reader))
    for node in reversed(list(program.ops())):
        if not node.users and alias_class(node.target) is Alias.VIEW:
            program.graph.erase_node(node)


def _copied(
    program: Program, node: Node, operands: dict[Node, Node], device: Device, storage: int, reader: Node
) -> Node:
    """The same view of other operands, on another device, in front of a reader."""
    args, kwargs = map_arg((node.args, node.kwargs), operands.__getitem__)
    name = re.sub(r"\W", "_", f"{node.name}_on_{device}")
    with program.graph.inserting_before(reader):
        made = program.graph.create_node("call_function", node.target, args, kwargs, name)
    made.meta = {**node.meta, "value": _within(value_of(node), storage)}
    place_node(made, device=device)
    return made


def _within(value: Value, storage: int) -> Value:
    """The same in another piece of memory."""
    if isinstance(value, TensorType):
        return replace(value, storage=storage)
    return tuple(_within(one, storage) for one in value) if value is not None else None


def _bytes(node: Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(node))

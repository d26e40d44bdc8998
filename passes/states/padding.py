"""Has devices pad what they got of their neighbours, and not get of them what was padded.

A convolution that needs a border of the neighbours' parts may read what was padded before, along the axis that is split
and along others: a causal one in time has three frames where there was one. Devices would have that twice, as it was
padded and with the border. The border is brought to what is padded instead, with zeros beyond the ends of the axis, and
each device pads that along the other axes: fewer bytes are sent, and less lies in memory. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch.fx import Node

from ...compiler.ir.ops import RESHARD
from ...compiler.ir.program import MOVING, Program, place_node, placement_of, state_of, states_of, tensors_of
from ...compiler.ir.state import Halo, Split
from ...compiler.ir.value import filled_stride
from ...compiler.states.resampling import before_padding


def pad_borders(program: Program) -> int:
    """Brings borders to what is padded where only that is read with a border; returns how often."""
    found, storages = list(filter(_is_of_padded, program.graph.nodes)), program.fresh_storages()
    for node in found:
        _bring_before(program, node, storages)
    return len(found)


def _is_of_padded(node: Node) -> bool:
    """Whether a node brings a border to what was padded with zeros, of which nothing else is read."""
    if node.target is not RESHARD or not isinstance(state := state_of(node), Halo):
        return False
    (padded,) = node.all_input_nodes
    if len(padded.users) > 1 or before_padding(padded, state) is None:
        return False
    (x,) = padded.all_input_nodes
    given = state_of(x)
    return x.target not in MOVING and isinstance(given, Split) and given.axis == state.axis


def _bring_before(program: Program, node: Node, storages: Iterator[int]) -> None:
    (padded,) = node.all_input_nodes
    (x,), place, state = padded.all_input_nodes, placement_of(node), state_of(node)
    assert isinstance(state, Halo)
    within = before_padding(padded, state)
    assert within is not None
    known = (one for one in x.users if one.target is RESHARD and state_of(one) == within)
    brought = next(known, None) or _brought(program, x, node, within, next(storages))
    padded.replace_input_with(x, brought)
    place_node(padded, group=place.group, states=(states_of(node),))
    node.replace_all_uses_with(padded)
    program.graph.erase_node(node)


def _brought(program: Program, x: Node, like: Node, state: Halo, storage: int) -> Node:
    """What is padded, with a border, directly behind what makes it."""
    with program.graph.inserting_after(x):
        found = program.graph.create_node("call_function", RESHARD, (x,), like.kwargs, f"{x.name}_resharded")
    (kind,) = tensors_of(x)
    found.meta = {**like.meta, "value": replace(kind, stride=filled_stride(kind), storage=storage)}
    place_node(found, group=placement_of(like).group, states=((state,),))
    return found

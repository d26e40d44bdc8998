"""Has a group of devices compute a program together: each operation as a strategy says, with reshards in between.

Each operation runs on all devices of the program, on what its strategy has them take of its operands; one of which none
is chosen takes wholes. Where an operand is in another state a reshard is put behind what makes it, once for each state
that is read. Terms of a sum are brought together as a value of their own, so that each is sent to whoever needs it,
and added in the order of the devices; those of float32 sums may cross in bfloat16. What is written in place, or drawn
at random, is computed on the main device, on wholes. Afterwards the graph says in which state each value is; what each
device computes follows from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import base_of, writes
from ...compiler.ir.ops import RESHARD, SUM_TERMS, TERMS
from ...compiler.ir.program import HERE, Program, place_node, placement_of, state_of, tensors_of, value_of, weight_name
from ...compiler.ir.slices import bounds_of
from ...compiler.ir.split import is_shared
from ...compiler.ir.state import PARTIAL, WHOLE, Split, State, Whole
from ...compiler.ir.value import TensorType, Value, filled_stride, flat, ordered_stride, relocated
from ...compiler.states.parts import members, terms_meet
from ...compiler.states.strategy import Strategy, strategy
from ...compiler.states.table import is_drawn, tells_all
from .padding import pad_borders
from .shares import parts_of_sum, state_of_sum
from .short_terms import SHORT, can_be_short
from .solution import Groups

Choose = Callable[[Node], Strategy | None]
"""The strategy of an operation whose operands are in their states; without one, and if it cannot be, it is whole."""


def share(program: Program, choose: Choose, has_short_terms: bool = False, groups: Groups | None = None) -> int:
    """Has all devices of a pinned program compute it as chosen, operation by operation; returns how many reshards.

    An operation of ``groups`` is for the devices that it has there alone, of which its states say what each has.
    """
    sharing = _Sharing(program, has_short_terms, groups or {})
    for node in list(program.ops()):
        sharing.take(node, choose)
    for value in program.output.all_input_nodes:
        sharing.give(program.output, value, WHOLE)
    pad_borders(program)
    return sharing.count


@dataclass
class _Sharing:
    """What was put in so far: of each value what it is in another state, and where the memory of each lies now."""

    program: Program
    has_short_terms: bool = False
    groups: Groups = field(default_factory=dict)
    count: int = 0
    made: dict[tuple[Node, State, tuple[Device, ...]], Node] = field(default_factory=dict)
    sums: dict[Node, Node] = field(default_factory=dict)
    ends: dict[Node, Node] = field(default_factory=dict)  # what was put behind a node last
    before: dict[Node, Value] = field(default_factory=dict)  # what a node was said to yield

    def __post_init__(self) -> None:
        program = self.program
        self.main = program.devices[:1]
        self.storages = program.fresh_storages()
        self.written = {storage for node in program.ops() for storage in writes(node)}
        self.inputs = next((one for one in reversed(program.graph.nodes) if one.op == "placeholder"), None)

    def take(self, node: Node, choose: Choose) -> None:
        """Places an operation, and has it read its operands in the states that it takes."""
        self.before[node] = value_of(node)
        chosen = strategy([WHOLE] * len(tensors_of(node)), {})
        if self._is_alone(node):
            place_node(node, group=self.main)
        elif _is_item(node):
            self._place_item(node)
            return
        else:
            given = choose(node)
            chosen = given if given and self._is_possible(node, given) else chosen
            states = () if set(chosen.results) <= {WHOLE} else tuple((one,) for one in chosen.results)
            base = base_of(node)
            is_beside = base is not None and not is_shared(base) and not states  # a view is where it is
            place_node(node, group=self.main if is_beside else self._group_of(node), states=states)
        for value in node.all_input_nodes:
            self.give(node, value, chosen.takes(value))
        self._lay(node)

    def _group_of(self, reader: Node) -> tuple[Device, ...]:
        """The devices that compute an operation, or all of them."""
        return self.groups.get(reader, self.program.devices)

    def _is_alone(self, node: Node) -> bool:
        """Whether an operation is for the main device: it writes, draws, or yields no tensor."""
        memory = {tensor.storage for one in (node, *node.all_input_nodes) for tensor in tensors_of(one)}
        return is_drawn(node) or not tensors_of(node) or not memory.isdisjoint(self.written)

    def _is_possible(self, node: Node, chosen: Strategy) -> bool:
        """Whether states say how an operation is computed, and the terms that it takes are there, all of them."""
        sums = [one for one, state in chosen.operands.items() if state == PARTIAL]
        are_there = all(state_of(one) == PARTIAL for one in sums)
        if PARTIAL in chosen.results and not all(one.shape for one in tensors_of(node)):
            return False  # of a sum without axes no device could add a part
        return are_there and terms_meet(self.program, chosen) and tells_all(node, chosen)

    def _place_item(self, node: Node) -> None:
        """One of several results is where these are, in the state that it has there."""
        operand, at = node.args
        assert isinstance(operand, Node)
        assert isinstance(at, int)
        place = operand.meta["placement"]
        place_node(node, group=place.group, states=place.states[at : at + 1] if place.states else ())
        self._lay(node)

    def give(self, reader: Node, value: Node, wanted: State) -> None:
        """Has a reader take a value in a state."""
        if weight_name(value) or not tensors_of(value) or isinstance(value_of(value), tuple):
            return
        has = state_of(value)
        if has == wanted:
            return
        assert wanted != PARTIAL, f"%{value.name} is no sum of terms"
        own, group = placement_of(value).group, self._group_of(reader)
        if wanted == WHOLE and set(group) <= set(own):
            group = own  # all of it is put together once: cutting the program says on which of its devices
        reader.replace_input_with(value, self._in_state(value, wanted, group))

    def _in_state(self, value: Node, wanted: State, group: tuple[Device, ...]) -> Node:
        """What stands for a value in another state, on the devices that read it."""
        key = value, wanted, group
        if key not in self.made:
            source = self._summed(value, wanted) if state_of(value) == PARTIAL else value
            self.made[key] = source if state_of(source) == wanted else self._reshard(source, wanted, value, group)
        return self.made[key]

    def _reshard(self, value: Node, wanted: State, origin: Node, group: tuple[Device, ...], name: str = "") -> Node:
        found = self._put(origin, RESHARD, (value,), {"device": HERE}, name or f"{origin.name}_resharded")
        (tensor,) = tensors_of(value)
        found.meta["value"] = replace(tensor, stride=filled_stride(tensor), storage=next(self.storages))
        place_node(found, group=group, states=() if wanted == WHOLE else ((wanted,),))
        self.before[found] = self.before.get(origin, value_of(origin))
        self.count += 1
        return found

    def _summed(self, value: Node, wanted: State) -> Node:
        """The sum of the terms of a value, of which each device has a part; that which is wanted, if it is one.

        A small one each device adds up itself, where all want it.
        """
        known = self.sums.get(value)
        if known is not None and (state_of(known) in (WHOLE, wanted) or not isinstance(wanted, Split)):
            return known
        (tensor,), group = tensors_of(value), placement_of(value).group
        into = _of_sum(tensor, wanted, len(group))
        has = [int(device in members(self.program, value)) for device in group]
        of_terms = Split(0, (bounds_of(sum(has), has),))
        terms = self._put(value, TERMS, (value, sum(has)), {}, f"{value.name}_terms")
        terms.meta["value"] = replace(tensor, shape=(sum(has), *tensor.shape), stride=(0, *tensor.stride), hint=())
        place_node(terms, group=group, states=((of_terms,),))
        is_short = self.has_short_terms and can_be_short(tensor.sizes, tensor.dtype)
        if is_short:
            terms = self._shortened(terms, value)
        of_together = Split(into.axis + 1, into.segments) if isinstance(into, Split) else WHOLE
        together = self._reshard(terms, of_together, value, group, f"{value.name}_together")
        wide = {"dtype": tensor.dtype} if is_short else {}
        found = self._put(value, SUM_TERMS, (together,), wide, f"{value.name}_sum")
        found.meta["value"] = replace(tensor, stride=filled_stride(tensor), storage=next(self.storages))
        place_node(found, group=group, states=((into,),) if isinstance(into, Split) else ())
        self.sums[value], self.before[found] = found, self.before[value]
        return found

    def _shortened(self, terms: Node, value: Node) -> Node:
        """Terms of a value as they cross in fewer bytes."""
        found = self._put(value, torch.ops.aten._to_copy.default, (terms,), {"dtype": SHORT}, f"{value.name}_short")
        (tensor,) = tensors_of(terms)
        stride = ordered_stride(tensor.shape, tensor.stride)
        found.meta["value"] = replace(tensor, dtype=SHORT, stride=stride, storage=next(self.storages))
        found.meta["placement"] = terms.meta["placement"]
        return found

    def _put(self, behind: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Node:
        """A node behind what was put behind another last."""
        place = self.inputs if behind.op == "placeholder" and self.inputs is not None else behind
        with self.program.graph.inserting_after(self.ends.get(place, place)):
            made = self.program.graph.create_node("call_function", target, args, kwargs, name)
        self.ends[place] = made
        if "origin" in behind.meta:
            made.meta["origin"] = behind.meta["origin"]
        return made

    def _lay(self, node: Node) -> None:
        """Notes in which memory a result lies now that lay in that of an operand, which may be another one."""
        base = base_of(node, lambda one: {tensor.storage for tensor in flat(self.before.get(one, value_of(one)))})
        if base is None:
            return
        old = [tensor.storage for tensor in flat(self.before.get(base, value_of(base)))]
        moved = dict(zip(old, [tensor.storage for tensor in tensors_of(base)], strict=True))
        node.meta["value"] = relocated(value_of(node), moved)


def _of_sum(tensor: TensorType, wanted: State, count: int) -> Split | Whole:
    """What of a sum each of so many devices adds up."""
    if isinstance(wanted, Split):
        return wanted
    if wanted == WHOLE:
        return state_of_sum(tensor.sizes, tensor.dtype.itemsize, count)
    return parts_of_sum(tensor.sizes, count)


def _is_item(node: Node) -> bool:
    return not isinstance(node.target, torch._ops.OpOverload) and bool(tensors_of(node))

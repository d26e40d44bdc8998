"""Which devices run a node of a program, and what each of them has of weights and computes, by the rules of states.

A node stands once, and runs on its own device, or on those of its group that have something of what it yields. What it
takes there of a weight, and arguments that differ, follow from what it yields and from what its operands are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import torch
from torch.fx import Node

from ..devices.device import Device
from ..ir.program import MOVING, Program, device_of, placement_of, state_of, states_of, tensors_of, weight_name
from ..ir.schedule import Lifetime, Load, Schedule
from ..ir.split import assembles, bytes_sent, is_shared, landings_of, source_of, type_on
from ..ir.staging import offsets
from ..ir.state import PARTIAL, WHOLE, Parted, Split, State, States
from ..ir.value import flat
from ..ir.weight import Weight
from .strategy import Local, Strategy, name_of, own_call, takes_part
from .table import local_call, strategy_of


def members(program: Program, node: Node) -> tuple[Device, ...]:
    """The devices that run a node, in their turn: its own, or those of its group that have something of its results.

    The main device comes after the others, which it keeps busy meanwhile; the host, which launches them all, last.
    """
    placement = placement_of(node)
    if len(placement.group) < 2:
        return (device_of(node),)
    if not _is_term(node):
        return _in_turn(placement.states, placement.group, program.main)
    return _sorted(_having(node, {}), program.main)


@lru_cache
def _in_turn(states: tuple[States, ...], group: tuple[Device, ...], main: Device) -> tuple[Device, ...]:
    return _sorted(_having_parts([one[0] for one in states], group), main)


def _sorted(devices: Sequence[Device], main: Device) -> tuple[Device, ...]:
    return tuple(sorted(devices, key=lambda device: (device.is_host, device == main)))


def terms_meet(program: Program, chosen: Strategy) -> bool:
    """Whether all values of which an operation takes terms have theirs on the same devices: none must be left out."""
    sums = [one for one, state in chosen.operands.items() if state == PARTIAL]
    return len({frozenset(members(program, one)) for one in sums}) <= 1


def _having(node: Node, known: dict[Node, tuple[Device, ...]]) -> tuple[Device, ...]:
    """The devices of a group that have something of a node's results; of a sum, a term. Each node is looked at once."""
    if node not in known:
        parts = states_of(node), placement_of(node).group
        known[node] = _having_terms(node, known) if _is_term(node) else _having_parts(*parts)
    return known[node]


def _is_term(node: Node) -> bool:
    """Whether devices compute terms of what a node yields."""
    return PARTIAL in states_of(node) and node.target not in MOVING


def _having_parts(states: Sequence[State], group: Sequence[Device]) -> tuple[Device, ...]:
    """Those that have an element of some result; all of them where none is split."""
    splits = [one for one in states if isinstance(one, Parted)]
    return tuple(one for at, one in enumerate(group) if not splits or any(state.length(at) for state in splits))


def _having_terms(node: Node, known: dict[Node, tuple[Device, ...]]) -> tuple[Device, ...]:
    """Those that compute a term, and have one of each sum that it is made of."""
    chosen, group = strategy_of(node), placement_of(node).group
    sums = [one for one in node.all_input_nodes if not weight_name(one) and state_of(one) == PARTIAL]
    there = [set(_having(one, known)) for one in sums]
    taking = [one for at, one in enumerate(group) if chosen is None or takes_part(chosen, at)]
    return tuple(one for one in taking if all(one in some for some in there))


def call_on(node: Node, device: Device) -> Local:
    """What a device computes of a node: an operation and its arguments, in which nodes stand for what is there of them.

    It is the node's own, but where sizes are said that differ between the devices of a group.
    """
    chosen = strategy_of(node) if is_shared(node) else None
    if chosen is None:
        return own_call(node)
    call = local_call(node, chosen, placement_of(node).group.index(device))
    return _copying(node, device, call) if _is_copy(node) else call


def _is_copy(node: Node) -> bool:
    """Whether an operation that views its operand where strides allow has copied it when it was traced."""
    given = {tensor.storage for one in node.all_input_nodes for tensor in tensors_of(one)}
    return name_of(node) in _VIEWS_OR_COPIES and given.isdisjoint(one.storage for one in tensors_of(node))


def _copying(node: Node, device: Device, call: Local) -> Local:
    """The same, which copies whatever the strides of a part are, so that it takes what was planned for it."""
    target, args, kwargs = call
    (found,) = flat(type_on(node, device))
    if name_of(node) == "contiguous":
        return torch.ops.aten.clone.default, args[:1], {"memory_format": torch.contiguous_format, **kwargs}
    if not all(isinstance(size, int) for size in found.shape):
        return target, args, kwargs
    return torch.ops.aten._reshape_copy.default, (args[0], list(found.shape)), {}


_VIEWS_OR_COPIES = frozenset({"contiguous", "reshape", "flatten", "unflatten"})


def weight_on(program: Program, reader: Node, node: Node, device: Device) -> Weight:
    """What an operation reads of a weight on a device: the weight, or the part of the device."""
    weight = program.weight(node)
    chosen = strategy_of(reader) if is_shared(reader) else None
    state = WHOLE if chosen is None else chosen.takes(node)
    if not isinstance(state, Split):
        return weight
    return weight.stored_as(state.axis, state.ranges(placement_of(reader).group.index(device)))


def pieces(program: Program) -> dict[str, tuple[Weight, Device]]:
    """What devices hold of the weights of a placed program, by name: a weight at its home, or parts on their devices.

    Of a weight that is split by rows, but that some operation reads whole, it has both. One that a group of devices
    reads whole is at home with the first that does where its home does not.
    """
    found: dict[str, tuple[Weight, Device]] = {}
    for node in program.weight_nodes():
        weight = program.weight(node)
        shared = [user for user in node.users if is_shared(user)]
        parts = [(weight_on(program, user, node, one), one) for user in shared for one in members(program, user)]
        found |= {piece.name: (piece, device) for piece, device in parts if piece.which}
        if not parts or len(shared) < len(node.users) or not all(piece.which for piece, _ in parts):
            whole_on = [device for piece, device in parts if not piece.which]
            found[weight.name] = weight, _keeper(program, node, whole_on)
    return found


def _keeper(program: Program, node: Node, shared_by: Sequence[Device]) -> Device:
    """The device that keeps a weight: its home, unless only others read it whole, which compute together."""
    home = program.home.get(program.weight(node).name, program.main)
    if not shared_by or home in shared_by:
        return home
    alone = (device_of(user) for user in node.users if user.op == "call_function" and not is_shared(user))
    return home if home in alone else shared_by[0]


def bytes_held(program: Program) -> dict[Device, int]:
    """The bytes of weights on each device of a placed program."""
    held = dict.fromkeys(program.devices, 0)
    for weight, devices in held_on(program):
        for device in devices:
            held[device] += weight.nbytes
    return held


def held_on(program: Program) -> Iterator[tuple[Weight, tuple[Device, ...]]]:
    """What devices hold of the weights of a placed program, each with its devices.

    A weight that is read whole by operations of several devices is on all of these; else it is at its home.
    """
    readers = {} if program.is_sliced else _readers(program)
    for weight, home in pieces(program).values():
        yield weight, tuple(readers.get(weight.name, ())) or (home,)


def _readers(program: Program) -> dict[str, dict[Device, None]]:
    """The devices of the groups that read each weight, or part of one, by name."""
    found: dict[str, dict[Device, None]] = defaultdict(dict)
    for node in program.weight_nodes():
        for user in filter(is_shared, node.users):
            found_on = ((weight_on(program, user, node, one).name, one) for one in members(program, user))
            for name, device in found_on:
                found[name][device] = None
        alone = [device_of(user) for user in node.users if user.op == "call_function" and not is_shared(user)]
        if node.meta["weight"] in found:
            found[node.meta["weight"]].update(dict.fromkeys(alone))
    return found


def senders(program: Program, transfer: Node, target: Device) -> tuple[Device, ...]:
    """The devices from which something comes to one of those of a transfer or a reshard, itself if it has a part."""
    value = source_of(transfer)
    if assembles(transfer):
        return tuple(one for one in members(program, value) if landings_of(transfer, one, target))
    return () if target in placement_of(value).group else (device_of(value),)


def sent(program: Program, transfer: Node) -> Iterator[tuple[Device, Device, int]]:
    """Each device that sends something to another for a transfer, that device, and how many bytes."""
    for target in placement_of(transfer).group:
        for device in senders(program, transfer, target):
            if device != target:
                yield device, target, round(bytes_sent(transfer, device, target))


def crossing_bytes(program: Program) -> int:
    """The bytes that cross between devices in one call."""
    return sum(nbytes for transfer in program.transfers() for _, _, nbytes in sent(program, transfer))


def slot_bytes(
    program: Program, schedule: Schedule | None = None, known: Mapping[str, tuple[Weight, Device]] | None = None
) -> dict[Device, list[int]]:
    """The bytes of each slot of each device that is filled again and again: those of the largest load that lands there.

    The schedule is that of the program, or another one over its weights; ``known`` are its pieces, where they are.
    """
    loads = [one for one in schedule or program.schedule or () if isinstance(one, Load)]
    coming = [one for one in loads if one.lifetime is Lifetime.STAGE]
    known = pieces(program) if known is None and coming else known or {}
    found: dict[Device, dict[int, int]] = defaultdict(dict)
    for one in coming:
        slots = found[one.device]
        nbytes = offsets([known[name][0] for name in one.weights])[1]
        slots[one.slot] = max(slots.get(one.slot, 0), nbytes)
    return {device: [slots[number] for number in sorted(slots)] for device, slots in found.items()}

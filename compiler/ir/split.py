"""Which devices run a node of a program, and what each of them has of a value that is split.

A node stands once, and runs on its own device, or on the devices of its group that have a part of what it yields. It
reads on each of them what that device has of its operands; where it needs something else, a node stands in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import Node

from ..devices.device import Device
from .ops import RESHARD
from .program import MOVING, Program, device_of, placement_of, value_of
from .state import WHOLE, Range, Split, State
from .value import TensorType, Value, flat
from .weight import Weight


def state_of(node: Node) -> State:
    """What each device of a node's group has of its result, or of the first of several."""
    states = placement_of(node).states
    return states[0][0] if states else WHOLE


def split_of(node: Node) -> Split | None:
    """How a node's result is split over its group; None where each device has the whole of it."""
    state = state_of(node)
    return state if isinstance(state, Split) else None


def members(program: Program, node: Node) -> tuple[Device, ...]:
    """The devices that run a node, in their turn: its own, or those that have a part of a split one.

    The main device comes after the others, which it keeps busy meanwhile; the host, which launches them all, last.
    """
    split, group = split_of(node), placement_of(node).group
    if len(group) < 2:
        return (device_of(node),)
    having = [one for at, one in enumerate(group) if split is None or split.length(at)]
    return tuple(sorted(having, key=lambda device: (device.is_host, device == program.main)))


def part_of(node: Node, device: Device) -> Range:
    """The stretch of the axis of a split node's result that a device has."""
    split = split_of(node)
    assert split is not None, "the result of a split node is asked for"
    assert len(split.segments) == 1, "what devices have lies together"
    return split.segments[0][placement_of(node).group.index(device)]


def share_of(node: Node, device: Device) -> float:
    """The share of a node's result that a device has: all of it where it is not split."""
    split = split_of(node)
    return split.length(placement_of(node).group.index(device)) / max(1, split.size) if split else 1.0


def type_on(node: Node, device: Device) -> Value:
    """What a node yields on a device: its value, or the part of it that the device has."""
    value, split = value_of(node), split_of(node)
    if split is None or not isinstance(value, TensorType):
        return value
    length, axis = split.length(placement_of(node).group.index(device)), split.axis
    shape = (*value.shape[:axis], length, *value.shape[axis + 1 :])
    hint = (*value.hint[:axis], length, *value.hint[axis + 1 :]) if value.hint else ()
    return TensorType.dense(shape, value.dtype, value.storage, hint)


def weight_on(program: Program, reader: Node, node: Node, device: Device) -> Weight:
    """What an operation reads of a weight on a device: the weight, or the part of the device."""
    weight = program.weight(node)
    if not split_of(reader) or weight.name not in program.bounds:
        return weight
    return weight.part(0, (part_of(reader, device),))


def pieces(program: Program) -> dict[str, tuple[Weight, Device]]:
    """What devices hold of the weights of a placed program, by name: a weight at its home, or parts on their devices.

    Of a weight that is split by rows, but that some operation reads whole, it has both.
    """
    found: dict[str, tuple[Weight, Device]] = {}
    for node in program.weight_nodes():
        weight = program.weight(node)
        bounds = program.bounds.get(weight.name, ())
        if bounds and any(map(split_of, node.users)):
            for device, (start, stop) in zip(program.devices, bounds, strict=True):
                if start < stop:
                    piece = weight.part(0, ((start, stop),))
                    found[piece.name] = piece, device
        if not bounds or not all(map(split_of, node.users)):
            found[weight.name] = weight, program.home.get(weight.name, program.main)
    return found


def bytes_held(program: Program) -> dict[Device, int]:
    """The bytes of weights on each device of a placed program."""
    held = dict.fromkeys(program.devices, 0)
    for weight, device in pieces(program).values():
        held[device] += weight.nbytes
    return held


def lying_on(value: Node, device: Device) -> Node:
    """What stands for a value on a device: what is brought to others is there itself, where it comes from."""
    while value.target is RESHARD and not split_of(source_of(value)) and device in placement_of(source_of(value)).group:
        value = source_of(value)
    return value


def original(value: Node) -> Node:
    """The value of which a node is a copy on some device, or that whose parts it gathers; any other is itself."""
    while value.target in MOVING:
        value = value.all_input_nodes[0]
    return value


def source_of(transfer: Node) -> Node:
    """The value that a transfer or a reshard brings to its devices."""
    value = transfer.args[0]
    assert isinstance(value, Node)
    return value


def maker_of(transfer: Node) -> Node:
    """The node that makes the value of a transfer what it is there: by computing it, or by writing its memory last."""
    before = transfer.prev
    while before.target in MOVING:
        before = before.prev
    return original(transfer) if before.op == "placeholder" else before


def first_reader(transfer: Node) -> Node:
    """The first operation that reads what a transfer brings, or what is brought on of that; or the output."""
    readers = list(transfer.users)
    while moving := [one for one in readers if one.target in MOVING]:
        readers = [*(one for one in readers if one not in moving), *(user for one in moving for user in one.users)]
    return min(readers)


def gathers(node: Node) -> bool:
    """Whether a node makes the whole of a value of which devices have parts."""
    return node.target is RESHARD and split_of(source_of(node)) is not None


def is_late(program: Program, whole: Node) -> bool:
    """Whether a whole is allocated when all its parts are made, not before: where not the main device alone has it."""
    return placement_of(whole).group != (program.main,)


def senders(program: Program, transfer: Node, target: Device) -> tuple[Device, ...]:
    """The devices from which something comes to one of those of a transfer or a reshard, itself if it has a part."""
    value = source_of(transfer)
    if split_of(value):
        return members(program, value)
    return () if target in placement_of(value).group else (device_of(value),)


def sent(program: Program, transfer: Node) -> Iterator[tuple[Device, Device, int]]:
    """Each device that sends something to another for a transfer, that device, and how many bytes."""
    for target in placement_of(transfer).group:
        for device in senders(program, transfer, target):
            if device != target:
                yield device, target, sum(tensor.nbytes for tensor in flat(type_on(source_of(transfer), device)))


def rounds(nodes: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """The nodes of a segment, up to where the whole is read of what devices have parts of, and so on.

    The devices of a group run what stands between, one after the other, before any of them goes on.
    """
    current: list[Node] = []
    made: set[Node] = set()
    for node in nodes:
        if any(gathers(whole) and source_of(whole) in made for whole in map(gathered, node.all_input_nodes)):
            yield tuple(current)
            current, made = [], set()
        current.append(node)
        made.add(node)
    yield tuple(current)


def gathered(value: Node) -> Node:
    """What a value is a copy of that was not brought from elsewhere: a whole that was gathered, or what made it."""
    while value.target in MOVING and not gathers(value):
        value = source_of(value)
    return value


def crossing_bytes(program: Program) -> int:
    """The bytes that cross between devices in one call."""
    return sum(nbytes for transfer in program.transfers() for _, _, nbytes in sent(program, transfer))

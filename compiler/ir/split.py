"""Which devices run a node of a program, and what each of them has of a value that is split.

A node stands once, and runs on its own device, or on a group of them where its placement says which columns of the
result each device of the program has, on the last axis. The whole of a split value is what a transfer gathers on the
node's own device; it goes on to others from there.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..spec.devices import Device
from .ops import LINEAR, REPLICATE, TRANSFER
from .program import MOVING, Program, device_of, placement_of, value_of
from .slices import Bounds
from .value import TensorType, Value, flat
from .weight import Weight


def split_of(node: Node) -> Bounds:
    """Which columns of a node's result each device of its program has; nothing where devices have it whole."""
    return placement_of(node).split


def reads_part(reader: Node, value: Node) -> bool:
    """Whether an operation takes of a split value the part of its device; a matmul takes the whole of it."""
    return bool(split_of(value) and split_of(reader)) and reader.target not in LINEAR


def members(program: Program, node: Node) -> tuple[Device, ...]:
    """The devices that run a node, in their turn: its own, or those that have a part of a split one.

    The main device comes after the others, which it keeps busy meanwhile; the host, which launches them all, last.
    """
    split = split_of(node)
    if not split:
        return (device_of(node),)
    having = [device for device, (start, stop) in zip(program.devices, split, strict=True) if start < stop]
    return tuple(sorted(having, key=lambda device: (device.is_host, device == program.main)))


def part_of(program: Program, node: Node, device: Device) -> tuple[int, int]:
    """The columns of a split node's result that a device has."""
    return split_of(node)[program.devices.index(device)]


def type_on(program: Program, node: Node, device: Device) -> Value:
    """What a node yields on a device: its value, or the columns of it that the device has."""
    value = value_of(node)
    if not split_of(node) or not isinstance(value, TensorType):
        return value
    start, stop = part_of(program, node, device)
    hint = (*value.hint[:-1], stop - start) if value.hint else ()
    return TensorType.dense((*value.shape[:-1], stop - start), value.dtype, value.storage, hint)


def weight_on(program: Program, reader: Node, node: Node, device: Device) -> Weight:
    """What an operation reads of a weight on a device: the weight, or the rows of the device."""
    weight = program.weight(node)
    if not split_of(reader) or weight.name not in program.bounds:
        return weight
    return weight.slice(*part_of(program, reader, device))


def pieces(program: Program) -> dict[str, tuple[Weight, Device]]:
    """What devices hold of the weights of a placed program, by name: a weight at its home, or slices on their devices.

    Of a weight that is split by rows, but that some operation reads whole, it has both.
    """
    found: dict[str, tuple[Weight, Device]] = {}
    for node in program.weight_nodes():
        weight = program.weight(node)
        bounds = program.bounds.get(weight.name, ())
        if bounds and any(map(split_of, node.users)):
            for device, (start, stop) in zip(program.devices, bounds, strict=True):
                if start < stop:
                    piece = weight.slice(start, stop)
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
    """What stands for a value on a device: the copy that lies there of one that lies on several, or the value."""
    if value.target is not REPLICATE:
        return value
    return next(one for one in value.all_input_nodes if device_of(one) == device)


def original(value: Node) -> Node:
    """The value of which a node is a copy on some device, or that whose parts it gathers; any other is itself."""
    while value.target in MOVING:
        value = value.all_input_nodes[0]
    return value


def source_of(transfer: Node) -> Node:
    """The value that a transfer brings to its device."""
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
    """Whether a node is a transfer of the parts of a value, to the device on which it is whole."""
    return node.target is TRANSFER and bool(split_of(source_of(node)))


def sent(program: Program, transfer: Node) -> Iterator[tuple[Device, int]]:
    """Each device that sends something to another for a transfer, and how many bytes."""
    value, target = source_of(transfer), device_of(transfer)
    for device in members(program, value):
        if device != target:
            yield device, sum(tensor.nbytes for tensor in flat(type_on(program, value, device)))


def crossing_bytes(program: Program) -> int:
    """The bytes that cross between devices in one call."""
    return sum(nbytes for transfer in program.transfers() for _, nbytes in sent(program, transfer))

"""What each device of a group has of a value, and what moves it: copies to other devices, and what parts become.

A node stands once, and runs on its own device, or on the devices of its group that have a part of what it yields. It
reads on each of them what that device has of its operands; where it needs something else, a node stands in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from torch.fx import Node

from ..devices.device import Device
from .boxes import Box, Landing, landings, zeros
from .ops import RESHARD
from .program import MOVING, Program, placement_of, state_of, tensors_of, value_of
from .state import PARTIAL, Halo, Parted, State, States
from .value import TensorType, Value, dense_stride, filled_stride, flat, lies_together, ordered_stride

_MANY = 2**15

EARLY = "exchanges early"
"""The fact of a program that devices send parts as soon as these are made, and wait as late as they can."""


def split_of(node: Node) -> Parted | None:
    """How a node's result is split over its group; None where each device has the whole of it."""
    state = state_of(node)
    return state if isinstance(state, Parted) else None


def is_shared(node: Node) -> bool:
    """Whether a node is of a group of devices."""
    return len(placement_of(node).group) > 1


def share_of(node: Node, device: Device) -> float:
    """The share of a node's work that a device has: all of it where each device has the whole result."""
    state, group = state_of(node), placement_of(node).group
    if isinstance(state, Parted):
        return state.share(group.index(device))
    return 1 / len(group) if state == PARTIAL else 1.0


def type_on(node: Node, device: Device) -> Value:
    """What a node yields on a device: its value, or the part of it that the device has."""
    value, placement = value_of(node), placement_of(node)
    if not placement.states or not any(isinstance(one[0], Parted) for one in placement.states):
        return value
    return _part_on(value, placement.states, placement.group.index(device))


@lru_cache(_MANY)
def _part_on(value: Value, states: tuple[States, ...], member: int) -> Value:
    """The part of a value that a device of a group has, by its number: passes ask for that of a node many times."""
    return _part_of(value, (one[0] for one in states), member)


def _part_of(value: Value, states: Iterator[State], member: int) -> Value:
    """The part of each tensor that a device has, with the states of all of them in order."""
    if isinstance(value, tuple):
        return tuple(_part_of(one, states, member) for one in value)
    if not isinstance(value, TensorType) or not isinstance(split := next(states), Parted):
        return value
    length, axis = split.length(member), split.axis
    shape = (*value.shape[:axis], length, *value.shape[axis + 1 :])
    hint = (*value.hint[:axis], length, *value.hint[axis + 1 :]) if value.hint else ()
    return TensorType(shape, value.dtype, ordered_stride(shape, value.stride), value.storage, hint)


def fills_on_each(node: Node, operand: Node, maker: Node, storage: int) -> bool:
    """Whether, on each device, what a node yields fills the memory of an operand that ``maker`` made, part for part.

    The same devices have the same parts of both, none of which is a term of a sum, and the memory is no larger there.
    """
    group = placement_of(node).group
    if len(group) < 2:
        return True
    if placement_of(operand).group != group or not state_of(operand) == state_of(node) != PARTIAL:
        return False
    if operand is maker:
        return True
    return placement_of(maker).group == group and all(
        _bytes_of(maker, device, storage) == _bytes_of(node, device, None) for device in group
    )


def _bytes_of(node: Node, device: Device, storage: int | None) -> int:
    """The most bytes that a tensor of a node, of some storage or of any, has on a device."""
    found = [one.nbytes for one in flat(type_on(node, device)) if storage is None or one.storage == storage]
    return max(found, default=0)


def lying_on(value: Node, device: Device) -> Node:
    """What stands for a value on a device: what is brought to others is there itself, where it comes from."""
    while value.target is RESHARD and not assembles(value) and device in placement_of(source_of(value)).group:
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


def assembles(node: Node) -> bool:
    """Whether a node puts together what devices have of its result, of what they have of its operand."""
    if node.target is not RESHARD:
        return False
    return isinstance(state_of(node), Parted) or isinstance(state_of(source_of(node)), Parted)


def is_late(program: Program, made: Node) -> bool:
    """Whether memory for what is put together is set aside when all its parts are made, not before.

    It is where not the main device alone has it, and where it is nothing but a result of all devices together, of which
    the main one makes its part last.
    """
    if placement_of(made).group != (program.main,):
        return True
    return program.is_grouped and not program.is_sliced and all(one.op == "output" for one in made.users)


def own_part(program: Program, transfer: Node, device: Device) -> Node | None:
    """The value of which a device has a part that says in which strides it sets memory aside for the whole, if any.

    The strides of a trace are a guess about kernels, and kernels that follow may round otherwise for other strides.
    """
    sent = source_of(transfer)
    has_own = is_late(program, transfer) and bool(landings_of(transfer, device, device))
    return sent if has_own and 0 not in tensors_of(sent)[0].stride else None


def landings_of(transfer: Node, source: Device, target: Device) -> tuple[Landing, ...]:
    """The boxes that a device sends to another, or to itself, of what a reshard puts together."""
    value = source_of(transfer)
    senders_of, group = placement_of(value).group, placement_of(transfer).group
    if source not in senders_of or target not in group:
        return ()
    given = state_of(value)
    if isinstance(given, Halo):
        return ()
    if not isinstance(given, Parted) and source != (target if target in senders_of else senders_of[0]):
        return ()
    return landings(given, state_of(transfer), senders_of.index(source), group.index(target))


def zeros_on(node: Node, device: Device) -> tuple[Box, ...]:
    """The boxes of what a device has of a value that are zeros, which nobody sends."""
    return tuple(zeros(state_of(node), placement_of(node).group.index(device)))


def is_packed(transfer: Node, source: Device, target: Device, landing: Landing) -> bool:
    """Whether a box that one device sends another of what is put together is packed first.

    It is not where it lies together: contiguous, or, as a view of other axes does, in the order in which its place
    lies together too, so that it is copied as it lies. That is known of a view of what a contiguous tensor was made in;
    other orders of axes are those that a caller's tensors have, and may be others in the next call. It is packed, where
    the value had gaps when it was traced: what devices have of it lies as their memory does.
    """
    sent = source_of(transfer)
    (whole,), (part,), (made,) = flat(value_of(sent)), flat(type_on(sent, source)), flat(type_on(transfer, target))
    if whole.stride != filled_stride(whole):
        return True
    sizes = list(part.sizes)
    for axis, _, length in landing.taken.ranges:
        sizes[axis] = length
    lying = _numbers(part.stride, part.sizes)
    if lies_together(sizes, lying, _numbers(dense_stride(sizes), sizes)):
        return False
    return not (_views_contiguous(sent) and lies_together(sizes, lying, _numbers(made.stride, made.sizes)))


def _views_contiguous(node: Node) -> bool:
    """Whether a value is, or views, what an operation has made, and made contiguous when it was traced."""
    (made,) = tensors_of(node)
    while viewed := _operands_in(made.storage, node):
        node, made = viewed[0]
    return node.op != "placeholder" and made.stride == dense_stride(made.shape)


def _operands_in(storage: int, node: Node) -> list[tuple[Node, TensorType]]:
    """The operands of a node that lie in some memory, with a tensor of each that does."""
    return [(one, had) for one in node.all_input_nodes for had in tensors_of(one) if had.storage == storage]


def _numbers(stride: Sequence[int | str], sizes: Sequence[int]) -> list[int]:
    """The strides of a tensor as numbers: those of a contiguous one where one of its own is an expression."""
    has_all = all(isinstance(one, int) for one in stride)
    return [one for one in (stride if has_all else dense_stride(sizes)) if isinstance(one, int)]


def packed_bytes(transfer: Node, source: Device, target: Device, boxes: Iterable[Landing]) -> int:
    """The most bytes of a box that is packed to be sent, of some that one device sends another."""
    (tensor,) = flat(type_on(source_of(transfer), source))
    packed = (one.taken for one in boxes if is_packed(transfer, source, target, one))
    return round(max((box.part(tensor.sizes) * tensor.nbytes for box in packed), default=0))


def bytes_sent(transfer: Node, source: Device, target: Device) -> float:
    """The bytes that a device sends to another, or writes in its own memory, for a transfer or a reshard."""
    if not assembles(transfer):
        return sum(tensor.sent_bytes for tensor in flat(type_on(source_of(transfer), source)))
    boxes = [one.taken for one in landings_of(transfer, source, target)]
    tensors = list(flat(type_on(source_of(transfer), source))) if boxes else []
    return sum(box.part(tensor.sizes) * tensor.nbytes for tensor in tensors for box in boxes)


def rounds(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """The nodes of a segment, up to where the whole is read of what devices have parts of, and so on.

    The devices of a group run what stands between, one after the other, before any of them goes on. Where exchanges
    are early a round ends behind each part that is sent too, and before the first that reads what was put together.
    """
    is_early = EARLY in program.facts
    current: list[Node] = []
    made: set[Node] = set()
    known: set[Node] = set()  # what was put together and read
    for node in nodes:
        wholes = [whole for whole in map(gathered, node.all_input_nodes) if assembles(whole)]
        if any(source_of(whole) in made or (is_early and whole not in known) for whole in wholes) and current:
            yield tuple(current)
            current, made = [], set()
        known.update(wholes)
        current.append(node)
        made.add(node)
        if is_early and any(map(assembles, node.users)):
            yield tuple(current)
            current, made = [], set()
    if current:
        yield tuple(current)


def gathered(value: Node) -> Node:
    """What a value is a copy of that was not brought from elsewhere: what was put together, or what made it."""
    while value.target in MOVING and not assembles(value):
        value = source_of(value)
    return value

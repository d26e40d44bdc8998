"""How much memory each device needs to run a program whose nodes are on given devices; nothing is changed.

What is counted is what the schedule will hold at least: a weight once on each device that reads it, wherever its home
is; for weights that come and go one slot, as large as the largest stage needs; a value from the node that makes it to
its last reading on each device, with the copies that arrive there; what an operation takes beside its operands and
results while it runs. One pass over the nodes and one over the readings of a program that was cut, or is on one device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import MOVING, Program, device_of, placement_of, tensors_of, weight_name
from ...compiler.ir.split import (
    assembles,
    first_reader,
    is_late,
    is_shared,
    landings_of,
    lying_on,
    packed_bytes,
    rounds,
    source_of,
    type_on,
)
from ...compiler.ir.staging import offsets
from ...compiler.ir.value import TensorType, flat
from ...compiler.ir.weight import Weight
from ...compiler.states.parts import members, senders, weight_on
from .scratch import apart_bytes, scratch_bytes
from .segments import runs
from .stages import Stages, most_together

Places = Mapping[Node, Device]
"""The device of each node."""


@dataclass(frozen=True)
class Need:
    """The least bytes that a device must have: for weights, and for what is needed beside them.

    ``weights`` stay, or are a slot for those that come and go; ``values`` is what else there is at the fullest moment.
    ``reader`` is an operation for which most weights come, ``node`` the one that runs at the fullest moment.
    ``others`` is what must be free for other programs beside the ``stays`` bytes of weights that stay, at other times.
    """

    weights: int = 0
    values: int = 0
    stays: int = 0
    others: int = 0
    reader: Node | None = field(default=None, compare=False)
    node: Node | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        """The bytes at the fullest moment: of this program, or of others."""
        return max(self.weights + self.values, self.stays + self.others)

    @property
    def beside(self) -> int:
        """The bytes that must be free beside the weights."""
        return self.total - self.weights

    @property
    def is_for_others(self) -> bool:
        """Whether the fullest moment is one of other programs."""
        return self.stays + self.others > self.weights + self.values


def needs_of(
    program: Program, places: Places, headroom: int | None = None, *, finest: bool = False
) -> dict[Device, Need]:
    """What each device of a program needs, given the device of each node.

    ``headroom`` bytes take the place of the values that are alive, on every device that holds a weight. With stages
    that are the ``finest``, it is the least with which the program is lowered at all.
    """
    count = Count(program, places)
    count.refine(headroom, program.devices if finest else ())
    return {device: count.need(device, headroom) for device in program.devices}


@dataclass
class Count:
    """Counts once for all devices; a step is the place of an operation in the graph.

    What several devices gather has a step behind the operations that make its parts. ``staged`` has the weights that
    come and go on each device, by the number of the stage that reads them.
    """

    program: Program
    places: Places
    steps: dict[Node, int] = field(default_factory=dict)
    handing: dict[Node, int] = field(default_factory=dict)  # of a value that several devices gather its step
    end: int = 0
    begins: dict[Node, int] = field(default_factory=dict)  # of each node the first step of its round
    stage: dict[tuple[Node, Device], int] = field(default_factory=dict)
    resident: dict[Device, dict[Weight, None]] = field(default_factory=lambda: defaultdict(dict))
    staged: dict[Device, dict[int, dict[Weight, None]]] = field(default_factory=dict)
    values: dict[Device, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number()
        self._cut({})
        self.values = _alive(self.end + 1, self._lives())

    def _number(self) -> None:
        """Gives each operation its step."""
        wholes = filter(assembles, self.program.transfers())
        late = {source_of(one) for one in wholes if is_late(self.program, one)}
        steps = count()
        for nodes in (one for _, shared in self._runs() for one in rounds(self.program, shared)):
            self.steps.update(zip(nodes, steps, strict=False))
            self.handing.update(zip((node for node in nodes if node in late), steps, strict=False))
        self.end = next(steps)

    def refine(self, headroom: int | None = None, devices: Collection[Device] = ()) -> None:
        """Cuts the stages finer of devices that have no room for a slot as large as a block needs.

        Those of ``devices`` are cut as fine as can be.
        """
        free = self.program.rig.free
        coarse = {device: self.need(device, headroom).total for device in self.staged}
        wanted = [device for device, total in coarse.items() if total > free[device] or device in devices]
        if not wanted:
            return
        self._cut(dict.fromkeys(wanted, 0))
        needs = {device: self.need(device, headroom).total for device in wanted}
        slots = {device: self.slot(device) for device in wanted}
        rooms = {device: free[device] - needs[device] + slots[device] for device in wanted}
        most = {device: 0 if device in devices else most_together(rooms[device], slots[device]) for device in wanted}
        self._cut({device: nbytes for device, nbytes in most.items() if needs[device] < coarse[device]})

    def _cut(self, most: dict[Device, int]) -> None:
        """Finds the stages, of so many bytes where that is said, and what comes for each."""
        self.stage, self.resident, self.staged = {}, defaultdict(dict), {}
        numbers, stages = count(), Stages(self.program, most)
        for group, shared in ((group, one) for group, nodes in self._runs() for one in rounds(self.program, nodes)):
            self.begins.update(dict.fromkeys(shared, self.steps[shared[0]]))
            for device in group:
                for nodes in stages.of(shared, device):
                    self.stage.update(dict.fromkeys(((node, device) for node in nodes), next(numbers)))
        self._count_weights()

    def _runs(self) -> Iterator[tuple[tuple[Device, ...], Sequence[Node]]]:
        """The segments, each with the devices that run it; a program that was not cut is on one device."""
        if self.program.segments:
            yield from ((segment.group, segment.nodes) for segment in self.program.segments)
        else:
            yield from ((group, nodes) for _, group, nodes in runs(self.program, self.places.__getitem__))

    def resident_bytes(self, device: Device) -> int:
        """The bytes of the weights that stay on a device."""
        return sum(weight.device_bytes for weight in self.resident[device])

    def need(self, device: Device, headroom: int | None) -> Need:
        """The least that a device needs; ``headroom`` takes the place of values."""
        weights = self.resident_bytes(device) + self.slot(device)
        if headroom is not None:
            return Need(weights, headroom if weights else 0, reader=self._reader(device))
        alive = self.values.get(device, [0])
        fullest = max(range(len(alive)), key=alive.__getitem__)
        at = (*self.steps.items(), *self.handing.items())
        node = next((node for node, step in at if step == fullest), None)
        return Need(weights, alive[fullest], reader=self._reader(device), node=node)

    def _reader(self, device: Device) -> Node | None:
        """The first operation of the stage with the largest slot that computes with a weight which comes for it."""
        coming = self.staged.get(device, {})
        if not coming:
            return None
        number = max(coming, key=lambda one: offsets(list(coming[one]))[1])
        names = {weight.whole for weight in coming[number]}
        memory = _memory_of(one for one in self.program.weight_nodes() if weight_name(one) in names)
        stage = (node for (node, there), one in self.stage.items() if there == device and one == number)
        reading = (node for node in stage if not memory.isdisjoint(_memory_of(node.all_input_nodes)))
        return next((node for node in reading if memory.isdisjoint(_memory_of([node]))), None)

    def slot(self, device: Device) -> int:
        """The bytes of a slot that takes the weights of any stage."""
        return max((offsets(list(some))[1] for some in self.staged.get(device, {}).values()), default=0)

    def _devices(self, node: Node) -> tuple[Device, ...]:
        """The devices that run a node."""
        return members(self.program, node) if is_shared(node) else (self.places.get(node, self.program.main),)

    def _count_weights(self) -> None:
        """Each weight on each device that reads it, or with each stage that it comes for."""
        seen = self._seen_outside()
        for node in self.program.weight_nodes():
            stays = self.program.output in node.users or any(tensor.storage in seen for tensor in tensors_of(node))
            for user in node.users:
                for device in self._devices(user):
                    weight = weight_on(self.program, user, node, device)
                    if stays or not self.program.stages(weight, device):
                        self.resident[device][weight] = None
                    else:
                        some = self.staged.setdefault(device, defaultdict(dict))
                        some[self.stage[user, device]][weight] = None

    def _seen_outside(self) -> set[int]:
        """The storages of values that another stage reads, or the caller, or that are sent."""
        sent = _memory_of(map(source_of, self.program.transfers()))
        return sent | {
            tensor.storage
            for reader, value, device in self._readings()
            if (value, device) in self.stage and self.stage.get((reader, device)) != self.stage[value, device]
            for tensor in tensors_of(value)
        }

    def _readings(self) -> Iterator[tuple[Node, Node, Device]]:
        """Each reading of a value on a device, with what stands for the value there."""
        for reader in (*self.program.ops(), self.program.output):
            for device in self._devices(reader):
                for value in reader.all_input_nodes:
                    if not weight_name(value):
                        yield reader, lying_on(value, device), device

    def _lives(self) -> Iterator[tuple[Device, int, int, int]]:
        """Each piece of memory that holds a value: its device, its bytes, and its first and last step."""
        lives: dict[tuple[Device, object], list[int]] = {}
        of_weights = _memory_of(self.program.weight_nodes()) | self.program.given_storages
        for node in self.program.graph.nodes:
            if node.target in MOVING:
                self._note_transfer(lives, node)
            for device in self._devices(node) if node.target not in MOVING and node.op != "output" else ():
                step = self.steps.get(node, 0)
                for tensor in flat(type_on(node, device)):
                    if tensor.storage not in of_weights:
                        lives.setdefault((device, tensor.storage), [held_bytes(node, tensor), step, step])[2] = step
                scratch = scratch_bytes(self.program, node, device) + apart_bytes(self.program, node, device)
                if scratch:
                    lives[device, node] = [scratch, step, step]
        for reader, value, device in self._readings():
            _touch(lives, device, value, self.steps.get(reader, self.end))
        return ((device, nbytes, first, last) for (device, _), (nbytes, first, last) in lives.items())

    def _note_transfer(self, lives: dict[tuple[Device, object], list[int]], node: Node) -> None:
        """What arrives, from when it is sent; a whole from when its parts are made, or before, as it is allocated."""
        value = source_of(node)
        (tensor,) = tensors_of(node)
        if assembles(node):
            made = self.handing.get(value, self.begins.get(value, 0))  # inputs are there before the first step
        else:
            is_sent_on = value.target in MOVING
            made = self.begins.get(first_reader(node), self.end) if is_sent_on else self.steps.get(value, 0)
            _touch(lives, device_of(value), value, made)
        for device in placement_of(node).group:
            if senders(self.program, node, device):
                (held,) = flat(type_on(node, device))
                lives[device, tensor.storage] = [held.nbytes if assembles(node) else arriving(held), made, made]
        for device in members(self.program, value) if assembles(node) and value in self.handing else ():
            _touch(lives, device, value, made)
        if assembles(node):
            self._note_packed(lives, node, value)

    def _note_packed(self, lives: dict[tuple[Device, object], list[int]], node: Node, value: Node) -> None:
        """What a box takes that is packed to be sent, of which a device has one at a time."""
        step = self.handing.get(value, self.steps.get(value, 0))
        for source in members(self.program, value):
            targets = [one for one in placement_of(node).group if one != source]
            sent = (packed_bytes(node, source, one, landings_of(node, source, one)) for one in targets)
            if packed := max(sent, default=0):
                lives[source, node] = [packed, step, step]


def _touch(lives: dict[tuple[Device, object], list[int]], device: Device, value: Node, step: int) -> None:
    """Has the memory of a value live until a step at least, if it is counted."""
    for tensor in tensors_of(value):
        life = lives.get((device, tensor.storage), [0, 0, 0])
        life[2] = max(life[2], step)


def _memory_of(nodes: Iterable[Node]) -> set[int]:
    """The memory that the values of nodes lie in, by the trace."""
    return {tensor.storage for node in nodes for tensor in tensors_of(node)}


def held_bytes(node: Node, tensor: TensorType) -> int:
    """Bytes of the memory that a tensor of a node lies in: an input is a copy of what the caller has."""
    return arriving(tensor) if node.op == "placeholder" else tensor.nbytes


def arriving(tensor: TensorType) -> int:
    """Bytes that a copy of a value takes: it keeps the strides, with the gaps of a view and without what repeats."""
    strides = [step for step in tensor.stride if isinstance(step, int)]
    if len(strides) < len(tensor.stride) or 0 in tensor.sizes:
        return tensor.nbytes
    reach = sum((count - 1) * step for count, step in zip(tensor.sizes, strides, strict=True))
    return (1 + reach) * tensor.dtype.itemsize


def _alive(steps: int, lives: Iterator[tuple[Device, int, int, int]]) -> dict[Device, list[int]]:
    """For each device the bytes alive at each step."""
    changes: dict[Device, list[int]] = {}
    for device, nbytes, first, last in lives:
        change = changes.setdefault(device, [0] * (steps + 1))
        change[first] += nbytes
        change[last + 1] -= nbytes
    for change in changes.values():
        alive = 0
        for step, nbytes in enumerate(change):
            alive += nbytes
            change[step] = alive
    return changes

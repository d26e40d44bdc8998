"""A traced program as a chain of parts: what the search knows of it, in numbers that fit in a small file.

A part is a block, or several consecutive ones. What lies outside of blocks is the rest, which the main device has.
Nodes follow the weight consumed last before or at them, as they do when they are pinned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.devices.rig import Rig
from ...compiler.devices.speeds import Speed
from ...compiler.ir.program import Program, tensors_of, weight_name
from ...compiler.ir.staging import aligned
from ...compiler.spec.residency import Residency
from ..analysis.memory_needs import Count
from ..placement.assignment import arranged
from ..placement.place import blocks_of_nodes
from ..simulate.cost import OpCost, cost_of

REST = -1
Work = tuple[tuple[OpCost, float], ...]
_ANY = Rig.of(cpu=1)
CARD = Device("cuda", 0)
"""The device whose kernels count where none is named."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive blocks, in bytes: weights, the largest block, values alive, and what crosses behind it.

    ``work`` are the costs of its operations, each with how often it occurs. ``boundary`` is what a device behind this
    part needs of what was made by its end. ``finest`` are the weights that a device must have room for where they come
    and go in stages that are as fine as they can be; None where that is not known, and they come block by block.
    """

    name: str
    nbytes: int
    largest: int
    live: int
    boundary: int
    work: Work
    finest: int | None = None

    @property
    def least(self) -> int:
        """The bytes of weights that a device must have room for where they come and go."""
        return self.largest if self.finest is None else self.finest

    def seconds(self, speed: Speed) -> float:
        """The time of its operations on a device, one after another."""
        return sum(count * cost.seconds(speed) for cost, count in self.work)


@dataclass(frozen=True, slots=True)
class Chain:
    """A program: its parts in order, and the rest, which is on the main device; what comes back at the end crosses."""

    name: str
    rest: Part
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all weights."""
        return self.rest.nbytes + sum(part.nbytes for part in self.parts)

    @property
    def live(self) -> int:
        """The most bytes of values alive at once, on one device."""
        return max(part.live for part in (self.rest, *self.parts))

    @property
    def least(self) -> int:
        """The bytes of weights that one device must have room for where they all come and go."""
        return max(part.least for part in (self.rest, *self.parts))

    def seconds(self, speed: Speed) -> float:
        """The time of one call on one device that holds all weights."""
        return sum(part.seconds(speed) for part in (self.rest, *self.parts))

    def coarsened(self, most: int) -> Chain:
        """The same in at most so many parts, each with about as many bytes of weights."""
        return replace(self, parts=tuple(map(_joined, self.groups(most))))

    def groups(self, most: int) -> list[tuple[Part, ...]]:
        """The parts in at most so many consecutive groups, each with about as many bytes of weights."""
        if len(self.parts) <= most:
            return [(part,) for part in self.parts]
        total = sum(part.nbytes for part in self.parts) or 1
        ends = accumulate(part.nbytes for part in self.parts)
        groups: dict[int, list[Part]] = defaultdict(list)
        for part, end in zip(self.parts, ends, strict=True):
            groups[min(most - 1, (end - part.nbytes // 2) * most // total)].append(part)
        return [tuple(group) for _, group in sorted(groups.items())]


def _joined(parts: Sequence[Part]) -> Part:
    work: defaultdict[OpCost, float] = defaultdict(float)
    for cost, count in (item for part in parts for item in part.work):
        work[cost] += count
    return Part(
        parts[0].name if len(parts) == 1 else f"{parts[0].name} … {parts[-1].name}",
        sum(part.nbytes for part in parts),
        max(part.largest for part in parts),
        max(part.live for part in parts),
        parts[-1].boundary,
        tuple(work.items()),
        max(part.least for part in parts),
    )


def chain_of(program: Program, device: Device = CARD) -> Chain:
    """The chain of a program whose blocks were found, wherever its weights are; a few passes over its nodes.

    Values count with what kernels of the device take beside them, which differs by kind.
    """
    program = replace(program, home={}, rig=program.rig if program.devices else _ANY)
    of_block = {name: index for index, block in enumerate(program.blocks) for name in block.weights}
    block = blocks_of_nodes(program, of_block)
    count = len(program.blocks)
    work: dict[int, Counter[OpCost]] = defaultdict(Counter)
    for node in program.graph.nodes:
        cost = cost_of(node)
        if cost.flops or cost.read or cost.written:
            work[block[node]][cost] += 1
    weights: Counter[int] = Counter()
    for weight in program.weights.values():
        weights[of_block.get(weight.name, REST)] += weight.nbytes
    boundary, finest = _boundaries(program, block, count), _finest(program, block)
    live = _live(program, of_block, device)

    def part(index: int, name: str) -> Part:
        nbytes = weights[index]
        return Part(name, nbytes, nbytes, live[index], boundary[index], tuple(work[index].items()), finest[index])

    parts = tuple(part(index, one.name) for index, one in enumerate(program.blocks))
    return Chain(program.name, part(REST, "outside blocks"), parts)


def _live(program: Program, of_block: Mapping[str, int], device: Device) -> Counter[int]:
    """For each block, and for the rest, the bytes of values alive at most on a device that has the whole program.

    As lowering has it there: with memory that is shared, and in the order in which least is alive.
    """
    whole = replace(program, rig=Rig.of(**{str(device): 1}))
    copy = arranged(replace(whole, home=dict.fromkeys(program.weights, whole.main)))
    block, counted = blocks_of_nodes(replace(copy, home={}), of_block), Count(copy, copy.places())
    alive = counted.values.get(copy.main, [0])
    found: Counter[int] = Counter({REST: alive[-1]})
    for node, step in counted.steps.items():
        found[block[node]] = max(found[block[node]], alive[step])
    return found


def _finest(program: Program, block: dict[Node, int]) -> dict[int, int]:
    """For each block, and for the rest, the bytes of its largest stage where all are as fine as can be on one device.

    With those of the weights that stay whatever is streamed, which are next to nothing.
    """
    device, copy = program.main, replace(program)
    copy.keep(Residency.DISK)
    counted = Count(copy, dict.fromkeys(program.ops(), device))
    counted.refine(devices=[device])
    stays = counted.resident_bytes(device)
    sizes = {number: sum(map(aligned, some)) for number, some in counted.staged.get(device, {}).items()}
    found: dict[int, int] = defaultdict(lambda: stays)
    for (node, _), number in counted.stage.items():
        found[block[node]] = max(found[block[node]], stays + sizes.get(number, 0))
    return found


def _boundaries(program: Program, block: dict[Node, int], count: int) -> dict[int, int]:
    """For each block the bytes that were made by its end and are read behind it; the last one has what comes back.

    A value of the rest that blocks read crosses to each device behind the first. For the rest itself it is what is
    read from it by any block.
    """
    changes = [0] * (count + 2)
    back = outward = 0
    for storage_bytes, made, readers in _lifetimes(program, block):
        inside = [reader for reader in readers if reader != REST]
        if made == REST:
            outward += storage_bytes if inside else 0
        elif REST in readers:
            back += storage_bytes
        last = max(inside, default=made)
        first = max(made, 0)
        if last > first:
            changes[first] += storage_bytes
            changes[last] -= storage_bytes
    found = dict(enumerate(accumulate(changes[:count])))
    if count:
        found[count - 1] += back
    found[REST] = outward
    return found


def _lifetimes(program: Program, block: dict[Node, int]) -> Iterator[tuple[int, int, set[int]]]:
    """Of each piece of memory that holds a value: its bytes, the block that makes it, and those that read it."""
    made: dict[int, tuple[int, int]] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    for node in program.graph.nodes:
        if weight_name(node):
            continue
        for tensor in tensors_of(node):
            made.setdefault(tensor.storage, (tensor.nbytes, block[node]))
        for operand in node.all_input_nodes:
            for tensor in tensors_of(operand):
                readers[tensor.storage].add(REST if node.op == "output" else block[node])
    for storage, (nbytes, index) in made.items():
        yield nbytes, index, readers[storage]

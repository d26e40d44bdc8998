"""Layer split: gives each block's weights a device, in contiguous ranges, and all other weights the main device.

``layer_split`` is a pure function that makes an assignment; ``assignment.py`` checks and commits it.

The ranges are chosen so that the fullest device, relative to what it offers, is as empty as it can be: each device
offers its free memory less what is alive while it works, or the share that it was given. As long as all fits, every
device that has room for a block gets one. Must run on a program whose blocks were found.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import base_of, computes
from ...compiler.ir.program import Program, weight_name
from ...compiler.units import format_bytes
from ..analysis.liveness import live_bytes
from ..analysis.memory_needs import Need
from ..analysis.replicated import replicated_weights
from ..analysis.weight_chains import consumed_weights, weights_through
from ..infra.base import Change, Pass
from .assignment import Assignment, assigned, check_needs, commit, excess, needs_under

logger = logging.getLogger(__name__)

_TRIES = 4  # of a decision, each with what the one before turned out to need


@dataclass(frozen=True)
class Place(Pass):
    """Places weights over the program's devices.

    ``shares`` weighs the devices instead of their free memory; ``headroom`` is kept free on each device, in bytes, and
    is what the device holds alive while it works when left out. A weight that has a home already keeps it.
    """

    name: ClassVar[str] = "place"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"pinned"})

    shares: tuple[float, ...] = ()
    headroom: int | None = None

    def run(self, program: Program) -> Change:
        """Splits the blocks into one range a device; raises DoesNotFitError when a device cannot hold its part."""
        given = program.weights.keys() <= program.home.keys()
        decision = decide(program, program.rig.free, self.shares, self.headroom)
        check_needs(program, decision.needs)
        commit(program, decision.assignment)
        if given:
            return Change(0, "weights placed")
        _tell_if_alone(program, self.shares)
        return Change(len(program.home), f"weights placed, blocks {':'.join(map(str, decision.counts))}")


@dataclass(frozen=True)
class Decision:
    """An assignment, how many blocks are each device's under it, and what each device then needs."""

    assignment: Assignment
    counts: tuple[int, ...]
    needs: Mapping[Device, Need]


@dataclass(frozen=True)
class Part:
    """What is placed as one: the bytes of its weights, and of the values alive at most while it is computed."""

    nbytes: int
    live: int = 0


def layer_split(
    program: Program,
    free: Mapping[Device, int],
    shares: Sequence[float] = (),
    headroom: int | None = None,
) -> Assignment:
    """The assignment of a layer split of a program whose blocks were found; it may exceed what is free."""
    return decide(program, free, shares, headroom).assignment


def decide(
    program: Program, free: Mapping[Device, int], shares: Sequence[float] = (), headroom: int | None = None
) -> Decision:
    """The best decision found for the weights that have no home; changes nothing, and may exceed what is free.

    What is alive on a device is bounded first by what is alive anywhere meanwhile. Where that promises too little, the
    decision is made again with what each device turned out to need.
    """
    rest, blocks = _parts(program, headroom)
    fixed = _bytes_at_home(program)
    known: dict[Device, int] = {}
    best: Decision | None = None
    for _ in range(_TRIES):
        rooms = [
            Room(free[device] - fixed[device], known.get(device), program.rig[device].beside)
            for device in program.devices
        ]
        counts = split_parts(blocks, rooms, rest, _weighed(shares, len(rooms)))
        home = {name: program.home.get(name, device) for name, device in _homes(program, counts).items()}
        assignment = assigned(program, home)
        found = Decision(assignment, tuple(counts), needs_under(program, assignment, headroom))
        if best is None or excess(found.needs, free) < excess(best.needs, free):
            best = found
        if excess(best.needs, free) <= 0 or shares or not blocks:
            break
        known = {device: need.beside for device, need in found.needs.items()}
    assert best is not None
    return best


@dataclass(frozen=True)
class Room:
    """What a device has free, and what it must keep for values if that is known (else its parts say), or for others."""

    free: int
    live: int | None = None
    beside: int = 0

    def kept(self, live: int) -> int:
        """What is kept for values, where parts have so much alive."""
        return max(live if self.live is None else self.live, self.beside)


def split_parts(parts: Sequence[Part], rooms: Sequence[Room], rest: Part, shares: Sequence[float] = ()) -> list[int]:
    """How many consecutive parts each device takes, so that the largest load relative to its offer is smallest.

    ``rest`` lies on the first device besides. Every device that has room for a part gets one if all fits so. With
    ``shares`` these are the offers, and each device of a share gets a part while there are enough.
    """
    offers = shares or [room.free for room in rooms]
    least = [_takes_one(parts, room, offer, bool(shares)) for room, offer in zip(rooms, offers, strict=True)]
    if sum(least) > len(parts):
        least = [False] * len(rooms)
    if not any(offer > 0 for offer in offers):
        return [len(parts), *[0] * (len(rooms) - 1)]
    for demanded in (least, [False] * len(rooms)):
        found = _balanced(parts, _Offers(tuple(rooms), tuple(shares), tuple(demanded)), rest)
        if found and (shares or found[1] <= 1):
            return found[0]
    return found[0] if found else [len(parts), *[0] * (len(rooms) - 1)]


def split_blocks(sizes: Sequence[int], offers: Sequence[float], rest: int = 0) -> list[int]:
    """How many consecutive blocks of such sizes each device takes in proportion to what it offers.

    >>> split_blocks([10] * 6, [2.0, 1.0])
    [4, 2]
    """
    return split_parts([Part(size) for size in sizes], [Room(0)] * len(offers), Part(rest), offers)


def _takes_one(parts: Sequence[Part], room: Room, offer: float, shared: bool) -> bool:
    """Whether a device is to get a part if all fits: it has a share, or room for the smallest."""
    if shared:
        return offer > 0
    least = min((part.nbytes + room.kept(part.live) for part in parts), default=0)
    return offer > 0 and least <= room.free


@dataclass(frozen=True)
class _Offers:
    """What each device offers: its share, or what is free there less what is alive while it computes."""

    rooms: tuple[Room, ...]
    shares: tuple[float, ...]
    demanded: tuple[bool, ...]

    def fill(self, parts: Sequence[Part], rest: Part, load: float) -> list[int]:
        """Parts a device when each is filled up to ``load`` times its offer; nothing if some part finds no room."""
        counts = [0] * len(self.rooms)
        start = 0
        for index in range(len(self.rooms)):
            later = sum(self.demanded[index + 1 :])
            end, nbytes, live = start, (0 if index else rest.nbytes), (0 if index else rest.live)
            while end < len(parts) - later:
                nbytes, live = nbytes + parts[end].nbytes, max(live, parts[end].live)
                if not self._takes(index, nbytes, live, load):
                    break
                end += 1
            if end == start and self.demanded[index]:
                return []
            counts[index] = end - start
            start = end
        fits = self._takes(0, rest.nbytes, rest.live, load) or bool(self.shares)
        return counts if start == len(parts) and fits else []

    def _takes(self, index: int, nbytes: int, live: int, load: float) -> bool:
        room = self.rooms[index]
        offer = self.shares[index] if self.shares else room.free - room.kept(live)
        return offer >= 0 and nbytes <= load * offer


def _balanced(parts: Sequence[Part], offers: _Offers, rest: Part) -> tuple[list[int], float] | None:
    """The parts of each device and the largest load; bisects over the load, for each of which filling is optimal."""
    total = sum(part.nbytes for part in parts) + rest.nbytes + 1
    least = min((share for share in offers.shares if share > 0), default=1.0)
    low, high = 0.0, total / least
    if not offers.fill(parts, rest, high):
        return None
    if not offers.shares and offers.fill(parts, rest, 1.0):
        high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if offers.fill(parts, rest, middle) else (middle, high)
    return offers.fill(parts, rest, high), high


def _weighed(shares: Sequence[float], count: int) -> Sequence[float]:
    return [*shares, *[0.0] * count][:count] if shares else ()


def _parts(program: Program, headroom: int | None) -> tuple[Part, list[Part]]:
    """What lies outside blocks and each block, without weights that have a home; alive is what is so anywhere."""
    of_block = {name: index for index, block in enumerate(program.blocks) for name in block.weights}
    live = _live_by_block(program, of_block) if headroom is None else {}
    nbytes = [0] * (len(program.blocks) + 1)
    for weight in program.weights.values():
        if weight.name not in program.home:
            nbytes[of_block.get(weight.name, -1)] += weight.nbytes
    parts = [Part(size, live.get(index, headroom or 0)) for index, size in enumerate(nbytes[:-1])]
    return Part(nbytes[-1], live.get(-1, headroom or 0)), parts


def _live_by_block(program: Program, of_block: Mapping[str, int]) -> dict[int, int]:
    """The most bytes alive while the nodes of each block run, and (-1) those outside; nodes follow their weights."""
    block = blocks_of_nodes(program, of_block)
    most = {-1: 0}
    for node, live in live_bytes(program):
        most[block[node]] = max(most.get(block[node], 0), live)
    return most


def blocks_of_nodes(program: Program, of_block: Mapping[str, int]) -> dict[Node, int]:
    """The block of each node, that of the weight consumed last before or at it; -1 outside of blocks.

    ``of_block`` has the block of each weight that lies in one, by name.
    """
    free = replicated_weights(program, program.home)
    roots: dict[Node, tuple[str, ...]] = {}
    found: dict[Node, int] = {}
    block = -1
    for node in program.graph.nodes:
        name = weight_name(node)
        roots[node] = (name,) if name else ()
        if node.op == "call_function":
            block = _block_of(node, roots, free, of_block, block)
        found[node] = block
    return found


def _block_of(
    node: Node, roots: dict[Node, tuple[str, ...]], free: frozenset[str], of_block: Mapping[str, int], block: int
) -> int:
    """The block of the weight consumed last, before or at a node."""
    pinning = [name for name in consumed_weights(node, roots) if name not in free]
    roots[node] = weights_through(node, roots)
    if not pinning or (base_of(node) and not computes(node.target)):
        return block
    return of_block.get(pinning[-1], -1)


def _homes(program: Program, counts: Sequence[int]) -> dict[str, Device]:
    homes = dict.fromkeys(program.weights, program.main)
    blocks = iter(program.blocks)
    for device, count in zip(program.devices, counts, strict=True):
        for block in islice(blocks, count):
            homes.update(dict.fromkeys(block.weights, device))
    return homes


def _bytes_at_home(program: Program) -> dict[Device, int]:
    """The bytes of weights that have a home already."""
    found = dict.fromkeys(program.devices, 0)
    for name, device in program.home.items():
        if name in program.weights and device in found:
            found[device] += program.weights[name].nbytes
    return found


def _tell_if_alone(program: Program, shares: Sequence[float]) -> None:
    """Says why a split that was asked over several devices leaves all weights on one."""
    devices = set(program.home.values())
    if len(program.devices) == 1 or len(devices) > 1 or not program.weights:
        return
    (alone,) = devices
    logger.warning(
        "%s was to be split over %s, but lies whole on %s: %s",
        program.name, " & ".join(map(str, program.devices)), alone, _why_alone(program, alone, shares),
    )  # fmt: skip


def _why_alone(program: Program, alone: Device, shares: Sequence[float]) -> str:
    if len(program.blocks) < 2:
        return "it has no two blocks, and no place between its weights where it could be cut once"
    if shares:
        return f"the shares {':'.join(f'{share:g}' for share in shares)} leave nothing for the others"
    _, parts = _parts(replace(program, home={}), None)  # with the weights that lie whole now
    least = min(parts, key=_size)
    others = ", ".join(f"{one} has {format_bytes(free)}" for one, free in program.rig.free.items() if one != alone)
    return f"a block needs {format_bytes(_size(least))} at least with what is alive meanwhile, and {others} free"


def _size(part: Part) -> int:
    return part.nbytes + part.live

"""Layer split: gives each block's weights a device, in contiguous ranges, and all other weights the main device.

The ranges are chosen so that the fullest device, relative to what it offers, is as empty as it can be: each device
offers its free memory less headroom, or the share that it was given. Every device that offers something gets at least
one block while there are enough. Must run on a program whose blocks were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from ..compiler.devices import Device
from ..compiler.errors import DoesNotFitError
from ..compiler.program import Program
from ..compiler.units import format_bytes
from .base import Change, Pass
from .liveness import peak_bytes


@dataclass(frozen=True)
class Place(Pass):
    """Places weights over the program's devices.

    ``shares`` weighs the devices instead of their free memory; ``headroom`` is kept free on each device, in bytes, and
    is the program's largest live set when left out. A weight that has a home already keeps it.
    """

    name: ClassVar[str] = "place"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"pinned"})

    shares: tuple[float, ...] = ()
    headroom: int | None = None

    def run(self, program: Program) -> Change:
        """Splits the blocks into one range a device; raises DoesNotFitError when a device cannot hold its weights."""
        if program.weights.keys() <= program.home.keys():
            return Change(0, "weights placed")
        headroom = peak_bytes(program) if self.headroom is None else self.headroom
        offers = offers_of(program.devices, self.shares, headroom)
        rest = _bytes_outside_blocks(program)
        counts = split_blocks([block.nbytes for block in program.blocks], offers, rest)
        program.home = {name: program.home.get(name, home) for name, home in _homes(program, counts).items()}
        check_fit(program, headroom)
        return Change(len(program.home), f"weights placed, blocks {':'.join(map(str, counts))}")


def offers_of(devices: Sequence[Device], shares: Sequence[float], headroom: int) -> list[float]:
    """What each device offers: its share if shares were given, or else its free memory less headroom."""
    if shares:
        return [*shares, *[0.0] * len(devices)][: len(devices)]
    return [float(max(device.free - headroom, 0)) for device in devices]


def split_blocks(sizes: Sequence[int], offers: Sequence[float], rest: int = 0) -> list[int]:
    """How many consecutive blocks each device takes, so that the largest load relative to its offer is smallest.

    ``rest`` bytes lie on the first device besides. Bisects over that load; for a given one, filling device after device
    is optimal. Runs in time linear in blocks.

    >>> split_blocks([10] * 6, [2.0, 1.0])
    [4, 2]
    """
    if not any(offers):
        return [len(sizes), *[0] * (len(offers) - 1)]
    low, high = 0.0, (sum(sizes) + rest + 1) / min(offer for offer in offers if offer)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _fill(sizes, offers, rest, middle) else (middle, high)
    return _fill(sizes, offers, rest, high)


def _fill(sizes: Sequence[int], offers: Sequence[float], rest: int, load: float) -> list[int]:
    """Blocks a device when each is filled up to ``load`` times its offer; nothing if some block finds no room."""
    takers = [index for index, offer in enumerate(offers) if offer > 0]
    least = 1 if len(sizes) >= len(takers) else 0
    counts = [0] * len(offers)
    start = 0
    for later, index in zip(reversed(range(len(takers))), takers, strict=True):
        room = offers[index] * load - (0 if index else rest)
        end = start
        while end < len(sizes) - least * later and sizes[end] <= room:
            room -= sizes[end]
            end += 1
        if end - start < least:
            return []
        counts[index] = end - start
        start = end
    return counts if start == len(sizes) else []


def _homes(program: Program, counts: Sequence[int]) -> dict[str, Device]:
    homes = dict.fromkeys(program.weights, program.main)
    blocks = iter(program.blocks)
    for device, count in zip(program.devices, counts, strict=True):
        for block in islice(blocks, count):
            homes.update((weight.name, device) for weight in block.weights)
    return homes


def _bytes_outside_blocks(program: Program) -> int:
    inside = {weight.name for block in program.blocks for weight in block.weights}
    return sum(weight.nbytes for weight in program.weights.values() if weight.name not in inside)


def check_fit(program: Program, headroom: int) -> None:
    """Raises DoesNotFitError, with both numbers, for a device that cannot hold the weights at home on it."""
    load = dict.fromkeys(program.devices, 0)
    for name, device in program.home.items():
        load[device] += program.weights[name].nbytes
    for device, nbytes in load.items():
        if nbytes and nbytes + headroom > device.free:
            raise DoesNotFitError(
                f"{program.name} needs {format_bytes(nbytes)} of weights and {format_bytes(headroom)} of headroom on "
                f"{device}, which has {format_bytes(device.free)} free of {format_bytes(device.total)}: "
                f"list more devices, give {device} a smaller share (--tensor-split), or use a smaller dtype"
            )

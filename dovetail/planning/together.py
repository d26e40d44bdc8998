"""The programs of a component that runs by its parts, in one entry of the table: a line each device, not each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.ir.schedule import Lifetime
from ..compiler.spec.residency import Residency
from ..compiler.units import counted
from .parts import Part, Row

if TYPE_CHECKING:
    from .generation import Generation, Piece


def together(parts: Sequence[Part], generation: Generation, speeds: Speeds) -> Iterator[Part]:
    """The entries of a table, those of programs of one component that runs by its parts as one.

    It stands where the first of them does. Its weights are all of the component's, for numbers may decide which parts
    are called, and its seconds are those of its own Python too.
    """
    groups: dict[Hashable, list[Part]] = {}
    for place, part in enumerate(parts):
        groups.setdefault(part.call.component if part.call.part_of else place, []).append(part)
    for some in groups.values():
        call = some[0].call
        yield _joined(call.component, some, generation, speeds) if call.part_of else some[0]


def own_seconds(component: str, generation: Generation, speeds: Speeds) -> float:
    """The seconds of what the own Python of a component computes that runs by its parts."""
    speed = speeds[generation.main_of(component)]
    return sum(count * cost.seconds(speed) for cost, count in generation.own.get(component, {}).items())


def _joined(component: str, parts: Sequence[Part], generation: Generation, speeds: Speeds) -> Part:
    of_programs = sum(part.seconds for part in parts)
    seconds = own_seconds(component, generation, speeds) + of_programs
    return Part(
        component,
        max(parts, key=lambda part: part.seconds).call,
        tuple(_rows(component, parts, generation)),
        parts[0].tile,
        seconds,
        sum(part.bringing for part in parts),
        max(part.chunks for part in parts),
        sum(part.seconds * part.spread for part in parts) / of_programs if of_programs else 0.0,
        len(parts),
        max(part.micro_batches for part in parts),
    )


def _rows(component: str, parts: Sequence[Part], generation: Generation) -> Iterator[Row]:
    devices = [device for device in generation.rig if any(_row(part, device) for part in parts)]
    main = parts[0].rows[0].device if parts[0].rows else None
    for device in sorted(devices, key=lambda one: one != main):
        own = [row for part in parts if (row := _row(part, device)) is not None]
        stays = generation.resident.get(device, Counter())[component]
        comes, rests = _brought(parts, device)
        parameters = _staying_parameters(parts, device)
        yield Row(
            device,
            counted(len(own), "part"),
            stays + comes[Lifetime.PHASE],
            comes[Lifetime.STAGE],
            max(row.activations for row in own),
            {Residency.DEVICE: parameters, **rests} if rests and parameters else rests,
        )


def _row(part: Part, device: Device) -> Row | None:
    return next((row for row in part.rows if row.device == device), None)


def _staying_parameters(parts: Iterable[Part], device: Device) -> int:
    """The bytes of the parameters that stay on a device, each once."""
    found: dict[Hashable, int] = {}
    for part in parts:
        weights = part.call.program.weights
        for piece in part.call.pieces:
            if piece.device == device and piece.lasts is Lifetime.PROGRAM and weights[piece.name].kind == "parameter":
                found[piece.key] = piece.nbytes
    return sum(found.values())


def _brought(parts: Iterable[Part], device: Device) -> tuple[Counter[Lifetime], dict[Residency, int]]:
    """The bytes that come to a device for a phase or a stage, and where these rest, each weight once."""
    found: dict[Hashable, tuple[Piece, Residency]] = {}
    for part in parts:
        kept = part.call.program.residency
        for piece in part.call.pieces:
            if piece.device == device and piece.lasts is not Lifetime.PROGRAM:
                found.setdefault(piece.key, (piece, kept.get(piece.name, Residency.DEVICE)))
    comes, rests = Counter[Lifetime](), Counter[Residency]()
    for piece, place in found.values():
        comes[piece.lasts] += piece.nbytes
        rests[place] += piece.nbytes
    return comes, dict(rests)

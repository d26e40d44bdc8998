"""The plan of a generation as a table and as data: what is where, in which phase, and how full each device gets.

One row for each program and each device that it is on, in the order of the calls; then one row for each device. What
``generate --dry-run`` prints is this; ``dovetail plan`` has a table of its own (`fitting/table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Lifetime
from ..compiler.spec.devices import Device
from ..compiler.spec.units import format_bytes
from .generation import Generation, PlannedCall, numbered

HEAD = ("component", "phase", "calls", "device", "what of it", "weights", "staged", "values")
RIGHT = (2, 5, 6, 7)
HEAD_OF_DEVICES = ("device", "peak", "of", "weights", "staged", "values", "fullest at")
RIGHT_OF_DEVICES = (1, 2, 3, 4, 5)


def rows(generation: Generation) -> list[tuple[str, ...]]:
    """A row of text for each program and device, under HEAD."""
    return [
        (fact["component"], fact["phase"], str(fact["calls"]), fact["device"], fact["what"], *map(_size, _sizes(fact)))
        for fact in facts(generation)
    ]


def rows_of_devices(generation: Generation) -> list[tuple[str, ...]]:
    """A row of text for each device that something is on, under HEAD_OF_DEVICES."""
    return [
        (name, *(_size(fact[key]) for key in ("peak", "free", "weights", "staged", "values")), fact["at"])
        for name, fact in facts_of_devices(generation).items()
    ]


def document(generation: Generation) -> dict[str, Any]:
    """All of it as data; sizes are in bytes."""
    tiles = {name: str(tile) for name, tile in generation.tiles.items()}
    return {"components": list(facts(generation)), "devices": facts_of_devices(generation), "tiles": tiles}


def facts(generation: Generation) -> Iterator[dict[str, Any]]:
    """What is said of each program and device; sizes are in bytes."""
    titles = numbered(call.title for call in generation.calls)
    for title, call in zip(titles, generation.calls, strict=True):
        for device in _devices_of(call):
            lasting = _bytes_by_lifetime(call, device)
            yield {
                "component": title,
                "class": call.program.name,
                "phase": call.phase,
                "calls": call.times,
                "device": device.name,
                "what": what_of(call.program, device),
                "weights": lasting.get(Lifetime.PROGRAM, 0),
                "staged": lasting.get(Lifetime.PHASE, 0) + lasting.get(Lifetime.STAGE, 0),
                "values": call.values.get(device, 0),
            }


def facts_of_devices(generation: Generation) -> dict[str, dict[str, Any]]:
    """The fullest moment of each device, by name; sizes are in bytes."""
    return {
        device.name: {
            "peak": peak.total,
            "free": generation.rig[device].free,
            "weights": peak.resident,
            "staged": peak.staged,
            "values": peak.values,
            "at": peak.call.title,
        }
        for device, peak in generation.peaks().items()
    }


def what_of(program: Program, device: Device) -> str:
    """What of a program is on a device: all of it, some blocks, or rows."""
    if program.bounds:
        return "rows"
    if len(set(program.home.values()) | {program.main}) == 1:
        return "all"
    homes = [{program.home.get(name) for name in block.weights} for block in program.blocks]
    here = [index for index, devices in enumerate(homes) if device in devices]
    rest = ["the rest"] if device == program.main else []
    blocks = [f"blocks {here[0] + 1}-{here[-1] + 1} of {len(homes)}"] if here else []
    return " and ".join([*blocks, *rest]) or "values"


def _devices_of(call: PlannedCall) -> list[Device]:
    held = {piece.device for piece in call.pieces} | {device for device, nbytes in call.values.items() if nbytes}
    return [device for device in call.program.devices if device in held]


def _bytes_by_lifetime(call: PlannedCall, device: Device) -> Mapping[Lifetime, int]:
    found: dict[Lifetime, int] = {}
    for piece in {piece.key: piece for piece in call.pieces if piece.device == device}.values():
        found[piece.lasts] = found.get(piece.lasts, 0) + piece.nbytes
    return found


def _sizes(fact: Mapping[str, Any]) -> tuple[int, int, int]:
    return fact["weights"], fact["staged"], fact["values"]


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes else "-"

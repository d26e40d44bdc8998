"""What runs where on one screen: a row for each segment, or for blocks that are alike, and a row for each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.states.parts import bytes_held
from ...compiler.units import format_bytes
from ...passes.simulate.memory import Usage, simulate
from ..outline.outline import Outline, Part, outline

HEAD = ("component", "device", "part", "operations", "weights", "sends")
RIGHT = (3, 4)
HEAD_OF_DEVICES = ("device", "weights", "fullest call", "at", "may use", "has")
RIGHT_OF_DEVICES = (1, 2, 4, 5)
_MOST = 10
"""Of more rows of a component than so many, those in the middle are one row."""


def rows_of(programs: Mapping[str, Program]) -> list[tuple[str, ...]]:
    """A row of text for each segment of each program, under HEAD; the name of a component stands in its first row."""
    found: list[tuple[str, ...]] = []
    for name, program in programs.items():
        drawn = outline(program, name)
        rows = _short([_row(drawn, part) for part in drawn.parts])
        found += [(name if index == 0 else "", *row) for index, row in enumerate(rows)]
    return found


def rows_of_devices(programs: Mapping[str, Program]) -> list[tuple[str, ...]]:
    """A row of text for each device, under HEAD_OF_DEVICES: weights of all programs, and the fullest of their calls."""
    weights: Counter[Device] = Counter()
    fullest: dict[Device, tuple[int, str]] = {}
    memory = {device: one.rig[device] for one in programs.values() for device in one.devices}
    for name, program in programs.items():
        weights.update(bytes_held(program))
        for device, usage in _usage(program).items():
            fullest[device] = max(fullest.get(device, (0, "")), (usage.total, name))
    return [
        (device.name, _size(weights[device]), _size(fullest.get(device, (0, ""))[0]), fullest.get(device, (0, ""))[1],
         _size(memory[device].free), _size(memory[device].total))
        for device in memory
    ]  # fmt: skip


def _usage(program: Program) -> Mapping[Device, Usage]:
    return simulate(program) if program.schedule is not None else {}


def _row(drawn: Outline, part: Part) -> tuple[str, ...]:
    return part.where, part.title, str(part.ops), _size(part.nbytes), ", ".join(_sends(drawn, part)) or "-"


def _sends(drawn: Outline, part: Part) -> Iterator[str]:
    yield from (f"{format_bytes(part.inside)} inside",) if part.inside else ()
    sent: Counter[str] = Counter()
    for edge in drawn.edges:
        if edge.source == part.index and edge.crosses:
            sent[drawn.parts[edge.target].where if edge.target is not None else "the results"] += edge.nbytes
    yield from (f"{format_bytes(nbytes)} to {where}" for where, nbytes in sent.items())


def _short(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    if len(rows) <= _MOST:
        return [*rows]
    hidden = len(rows) - _MOST + 1
    return [*rows[: _MOST // 2], ("…", f"{hidden} more (--full)", "", "", ""), *rows[-(_MOST - _MOST // 2 - 1) :]]


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes else "-"

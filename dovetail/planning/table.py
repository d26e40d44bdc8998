"""The plan of a pipeline's call as a table for people, and as JSON takes it: `dovetail plan`, `generate --dry-run`.

Bytes are those of the lowered schedules. Seconds are those of their time lines on the speeds of the devices.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import SPREAD, Speeds
from ..compiler.durations import seconds_facts, seconds_text
from ..compiler.ir.program import IN_PARTS, Program
from ..compiler.ir.schedule import Lifetime
from ..compiler.spec.residency import Residency
from ..compiler.states.parts import held_on, slot_bytes
from ..compiler.units import format_bytes, format_bytes_beside
from ..fitting.whole_copies import Copy, whole_copies
from ..passes.batches.divide import micro_batches_of
from ..passes.rewrites.chunk import chunks_of
from ..passes.simulate.timeline import Timeline
from ..passes.states.states import split_mode_of
from .choice import facts_of_choices, rows_of_choices
from .generation import Generation, PlannedCall, numbered, told_apart
from .guidance import Together, together_in
from .notes import card_notes
from .on_host import told_of_host
from .packed import InType, told_of_types, types_of
from .parts import Part, Row
from .replicas import facts_of_replicas, told_of_replicas
from .shared_work import facts_of_group, is_shared_out, rows_of_blocks, rows_of_groups
from .skipped import Skipped, facts_of_skipped, told_of_skipped
from .together import together
from .usage import timeline_of
from .warnings import warnings_of

if TYPE_CHECKING:
    from ..fitting.chosen import Quicker
    from ..fitting.decide import Decision

HEAD = ("component", "device", "part", "weights", "values", "streamed", "kept in", "seconds")
RIGHT = (3, 4, 5, 7)
HEAD_OF_DEVICES = (
    "device",
    "peak",
    "weights",
    "loaded per phase",
    "values",
    "fullest at",
    "has",
    "reserved",
    "may use",
)
RIGHT_OF_DEVICES = (1, 2, 3, 4, 6, 7, 8)

_LESS = 1.02
"""How many times as many seconds a row has that is told of."""


class Told(TypedDict):
    """All that is said of a plan, as JSON has it.

    ``warnings`` come before all else; ``rows`` stand under HEAD, ``groups`` under HEAD_OF_GROUPS, ``blocks`` under
    HEAD_OF_BLOCKS and ``choices`` under HEAD_OF_CHOICES, if there are any, and ``devices`` under HEAD_OF_DEVICES;
    ``remarks`` are lines; ``settings`` are the options that ask for the same, and ``document`` is all of it as data.
    """

    warnings: list[str]
    rows: list[list[str]]
    groups: list[list[str]]
    blocks: list[list[str]]
    choices: list[list[str]]
    devices: list[list[str]]
    remarks: list[str]
    settings: dict[str, str]
    document: dict[str, object]


class Fullest(TypedDict):
    """The fullest moment of a device in bytes, what it has, and the call in which it is that full.

    ``peak`` is the sum of ``weights`` that stay, of those ``staged`` for the phase, and of ``values``; ``free`` is what
    may be used of the ``total``, of which ``reserved`` is kept for kernels or the process, and ``at`` names the call.
    """

    peak: int
    free: int
    total: int
    reserved: int
    weights: int
    staged: int
    values: int
    at: str


@dataclass(frozen=True)
class Account:
    """The plan of a call with all that is said of it.

    ``settings`` are the options that ask for the same, ``searched`` the seconds of the search if there was one, and
    ``notes`` say why devices are used or not. ``decision`` is what the search found, and ``planned`` are the seconds
    from the first look at the pipeline to this, where that is known: most of them are tracing and lowering. ``modes``
    are those that were asked for of components on several devices, other than ``layer``. ``skipped`` is what a cache of
    steps may leave out, which the seconds have in them.
    """

    generation: Generation
    speeds: Speeds
    settings: Mapping[str, str] = field(default_factory=dict)
    searched: float | None = None
    notes: Sequence[str] = ()
    decision: Decision | None = None
    planned: float | None = None
    modes: Mapping[str, str] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()

    def __repr__(self) -> str:
        return f"<Account of {self.generation!r}: {seconds_text(self.seconds)} s; {self.line or 'no options'}>"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The programs in the order of their first calls."""
        calls = self.generation.calls
        kinds = Counter(call.component for call in calls)
        titles = numbered(call.title if kinds[call.component] > 1 else call.component for call in calls)
        return tuple(map(self._part, titles, calls))

    @cached_property
    def shown(self) -> tuple[Part, ...]:
        """The same as a table has them: one entry for a component that runs by its parts."""
        return tuple(together(self.parts, self.generation, self.speeds))

    def _part(self, title: str, call: PlannedCall) -> Part:
        line = timeline_of(call.program, self.speeds)
        tile = self.generation.tiles.get(call.component)
        seconds = call.times * line.seconds + line.bringing
        return Part(
            title, call, tuple(_rows(call)), str(tile) if tile else "", seconds, line.bringing, chunks_of(call.program),
            max(self.speeds.spread(call.program.devices), SPREAD if _reads_disk(call.program) else 0.0),
            micro_batches=micro_batches_of(call.program), busy=_busy(call.program, line),
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """The predicted seconds of a picture after all was loaded; the middle where they are a range."""
        return self._busy - sum(one.saved for one in self.together)

    @property
    def _busy(self) -> float:
        """The seconds of all programs, one after another."""
        return sum(part.seconds for part in self.shown)

    @cached_property
    def together(self) -> tuple[Together, ...]:
        """The calls that go on at the same time."""
        each = {part.call: (part.seconds - part.bringing) / part.call.times for part in self.parts}
        return tuple(together_in(self.generation.turns, each, self.speeds))

    @property
    def once(self) -> str:
        """When a picture takes these seconds, in words."""
        reads = any(_reads_disk(part.call.program) for part in self.parts)
        return "once loaded, reading what is kept on disk again" if reads else "once loaded"

    @property
    def spread(self) -> float:
        """The part of these seconds that they may be off by; 0 where all devices were measured."""
        return sum(part.seconds * part.spread for part in self.shown) / self._busy if self._busy else 0.0

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What makes the plan slow and what would not, each with both times; to be said before all else."""
        picture = seconds_text(self.seconds, self.spread)
        on_host = told_of_host(self.parts, self.speeds, self.generation.rig.host, picture, self.decision)
        return (*on_host, *warnings_of(self.parts, self.speeds))

    @property
    def line(self) -> str:
        """The options that ask for this plan, for a shell."""
        return " ".join(
            f"{option} {shlex.quote(value)}" if value else option for option, value in self.settings.items()
        )

    @property
    def _names(self) -> list[str]:
        """What the programs are called in tables."""
        return list(told_apart(part.title for part in self.shown))

    def rows(self) -> list[tuple[str, ...]]:
        """A row of text for each device of each program, under HEAD; all sizes are in one unit."""
        rows = [row for part in self.shown for row in part.rows]
        largest = max((max(row.weights, row.activations, row.streamed) for row in rows), default=0)
        named = zip(self._names, self.shown, strict=True)
        return [_text(name, part, row, largest) for name, part in named for row in part.rows]

    def rows_of_groups(self) -> list[tuple[str, ...]]:
        """A row of text for each device of each program that devices compute together, under HEAD_OF_GROUPS."""
        return list(rows_of_groups(self._names, self.shown, self.speeds))

    def rows_of_blocks(self) -> list[tuple[str, ...]]:
        """A row of text for each class of blocks of each such program, under HEAD_OF_BLOCKS."""
        return list(rows_of_blocks(self._names, self.shown))

    def rows_of_devices(self) -> list[tuple[str, ...]]:
        """A row of text for each device that something is on, under HEAD_OF_DEVICES.

        All sizes of what is there are in one unit, and all sizes of what devices have.
        """
        facts = self.devices()
        most = max((fact["peak"] for fact in facts.values()), default=0)
        has = max((fact["total"] for fact in facts.values()), default=0)
        return [
            (name, *(_size(fact[key], most) for key in ("peak", "weights", "staged", "values")), fact["at"],
             *(_size(fact[key], has) for key in ("total", "reserved", "free")))
            for name, fact in facts.items()
        ]  # fmt: skip

    def remarks(self, *, warned: bool = False) -> list[str]:
        """What warns of the plan, how long a picture takes, and why devices are used or not, a line each.

        The warnings are left out where somebody has ``warned`` before.
        """
        known = self.generation.picture.words()
        what = f"a picture ({', '.join(known)})" if known else "a picture"
        takes = f"{what} takes {seconds_text(self.seconds, self.spread)} s {self.once}{self._than_row()}{self._took()}"
        warnings = () if warned else (f"warning: {one}" for one in self.warnings)
        quicker = [] if self.quicker is None else [str(self.quicker)]
        cards = sum(not one.is_host for one in self.generation.peaks())
        replicas = told_of_replicas(self.copies, self.seconds, self.spread, cards)
        unnamed = card_notes(self.generation.rig, self.speeds)
        rest = (*replicas, *self.types, *self.turns, *self._rehearsed(), *unnamed, *self._withheld(), *self.notes)
        return [*warnings, takes, *told_of_skipped(self), *quicker, *rest]

    @property
    def types(self) -> tuple[str, ...]:
        """What of weights that are streamed would not be in a packed type, and how long a picture takes then."""
        if self.decision is None:
            return ()
        machine = self.decision.machine
        return tuple(told_of_types(self.packed, machine.speeds.spread(machine.devices)))

    @cached_property
    def packed(self) -> tuple[InType, ...]:
        """The packed types in which nothing would be streamed of what is."""
        return tuple(types_of(self.generation, self.decision))

    @property
    def quicker(self) -> Quicker | None:
        """How much quicker a picture is under `--split-mode auto`, where no mode was asked for and it is."""
        found = self.decision.quicker if self.decision is not None else None
        return None if found is None else found.beside(self.seconds, self.spread)

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """The whole copies of the pipeline that cards hold, where a search was free to place it."""
        return tuple(whole_copies(self.decision)) if self.decision is not None else ()

    def rows_of_choices(self) -> list[tuple[str, ...]]:
        """A row of text for each mode that was chosen from, under HEAD_OF_CHOICES."""
        return rows_of_choices(self.decision.choices if self.decision is not None else (), self.spread)

    @property
    def turns(self) -> list[str]:
        """A line for calls that go on at the same time, with their seconds, or why they do not."""
        apart = (
            f"guidance parts of {name} run one after another, for {why}" for name, why in self.generation.apart.items()
        )
        return [*(one.told(self.spread) for one in self.together), *apart]

    def _than_row(self) -> str:
        """Why this is less than stands beside the mode that was taken, if it is."""
        rows = self.decision.choices if self.decision is not None else ()
        is_more = any(one.is_taken and (one.seconds or 0.0) > _LESS * self.seconds for one in rows)
        return ", less than its mode's row, which adds exchanges to computing" if is_more else ""

    def _took(self) -> str:
        """How long the search took if there was one, and planning in all."""
        if self.searched is None:
            return ""
        whole = "" if self.planned is None else f" of the {seconds_text(self.planned)} s that planning took"
        return f"; the search took {self.searched:.2f} s{whole}"

    def _rehearsed(self) -> Iterator[str]:
        """What of the plan cannot run as it is timed: devices of several processes, and simulated ones."""
        used = list(self.generation.peaks())
        if any(not one.is_of_here for one in used):
            yield "devices of several processes can be planned for, and not run yet"
        labels = {self.speeds[one].label for one in used if one.is_simulated}
        if labels:
            yield f"seconds are those of cards {' and '.join(sorted(labels))} in the place of simulated devices"

    def _withheld(self) -> Iterator[str]:
        """Of each device what is neither reserved of it nor may be used, where that is a hundredth of it or more.

        Of a GPU that shares the host's memory, what the host keeps is told elsewhere.
        """
        for device in self.generation.peaks():
            memory = self.generation.rig[device]
            rest = memory.total - memory.reserve - memory.free
            if rest >= memory.total / 100 and not memory.integrated:
                why = "in use, or kept back by a budget" if self.generation.rig.present else "kept back by a budget"
                yield f"{format_bytes(rest)} of {device} are {why}"

    def told(self) -> Told:
        """All that is said of the plan."""
        return {
            "warnings": list(self.warnings),
            "rows": list(map(list, self.rows())),
            "groups": list(map(list, self.rows_of_groups())),
            "blocks": list(map(list, self.rows_of_blocks())),
            "choices": list(map(list, self.rows_of_choices())),
            "devices": list(map(list, self.rows_of_devices())),
            "remarks": self.remarks(warned=True),
            "settings": dict(self.settings),
            "document": self.document(),
        }

    def document(self) -> dict[str, object]:
        """All of it as data; sizes are in bytes."""
        devices = self.devices()
        return {
            **seconds_facts(self.seconds, self.spread),
            "search_seconds": None if self.searched is None else round(self.searched, 3),
            "planning_seconds": None if self.planned is None else round(self.planned, 3),
            "options": dict(self.settings),
            "components": {part.title: _facts(part, self.speeds) for part in self.shown},
            "peak_bytes": {name: fact["peak"] for name, fact in devices.items()},
            "budget_bytes": {name: fact["free"] for name, fact in devices.items()},
            "devices": devices,
            "tiles": {name: str(tile) for name, tile in self.generation.tiles.items()},
            "modes": facts_of_choices(self.decision.choices if self.decision is not None else (), self.spread),
            "auto": None if self.quicker is None else self.quicker.as_data(),
            "replicas": facts_of_replicas(self.copies, self.seconds, self.spread),
            "skipped": facts_of_skipped(self),
            "warnings": list(self.warnings),
            "types": list(self.types),
            "notes": [*self.turns, *self.notes],
        }

    def devices(self) -> dict[str, Fullest]:
        """The fullest moment of each device, by name."""
        rig = self.generation.rig
        return {
            device.name: {
                "peak": peak.total,
                "free": rig[device].free,
                "total": rig[device].total,
                "reserved": rig[device].reserve,
                "weights": peak.resident,
                "staged": peak.staged,
                "values": peak.values,
                "at": peak.call.title,
            }
            for device, peak in self.generation.peaks().items()
        }


def _reads_disk(program: Program) -> bool:
    """Whether weights come from the disk, whose rate is not measured."""
    return Residency.DISK in program.residency.values()


_TOGETHER = {
    "tensor": "parts",
    "sequence": "tokens",
    "batch": "pictures",
    "spatial": "areas",
    "batch+sequence": "tokens of pictures",
    "batch+tensor": "parts for pictures",
}
"""What a device has of a program that all compute together, by the split mode."""


def what_of(program: Program, device: Device) -> str:
    """What of a program is on a device: all of it, some blocks, or rows."""
    if program.bounds:
        return "rows"
    if program.is_grouped:
        return _TOGETHER.get(split_mode_of(program), "a share")
    if len(set(program.home.values()) | {program.main}) == 1:
        return "all"
    homes = [{program.home.get(name) for name in block.weights} for block in program.blocks]
    here = [index for index, devices in enumerate(homes) if device in devices]
    other = ["other layers"] if device == program.main else []
    return " and ".join([*_blocks(here, len(homes)), *other]) or "values"


def working_devices(program: Program) -> tuple[Device, ...]:
    """The devices of a program that compute something or have weights of it."""
    at_work = {program.main, *program.home.values(), *(one.device for one in program.segments)}
    return tuple(device for device in program.devices if program.is_grouped or device in at_work)


def _blocks(here: list[int], count: int) -> list[str]:
    if len(here) == 1:
        return [f"block {here[0] + 1} of {count}"]
    return [f"blocks {here[0] + 1}-{here[-1] + 1} of {count}"] if here else []


def _rows(call: PlannedCall) -> Iterator[Row]:
    program, slots = call.program, slot_bytes(call.program)
    held = {piece.device for piece in call.pieces} | {device for device, nbytes in call.values.items() if nbytes}
    for device in (one for one in program.devices if one in held):
        lasting: Counter[Lifetime] = Counter()
        for piece in {piece.key: piece for piece in call.pieces if piece.device == device}.values():
            lasting[piece.lasts] += piece.nbytes
        yield Row(
            device,
            what_of(program, device),
            lasting[Lifetime.PROGRAM] + lasting[Lifetime.PHASE],
            lasting[Lifetime.STAGE],
            call.values.get(device, 0) - sum(slots.get(device, ())),
            _resting(program, device),
        )


def _resting(program: Program, device: Device) -> dict[Residency, int]:
    """The bytes of the weights of a device by where they rest; nothing where none of them rests elsewhere."""
    found: Counter[Residency] = Counter()
    for weight in (one for one, devices in held_on(program) if device in devices):
        rests = program.residency.get(weight.whole, Residency.DEVICE)
        is_elsewhere = rests.stages_on(device)
        if is_elsewhere or weight.kind == "parameter":
            found[rests if is_elsewhere else Residency.DEVICE] += weight.nbytes
    return dict(+found) if set(found) - {Residency.DEVICE} else {}


def _busy(program: Program, line: Timeline) -> dict[str, float]:
    """Which part of the time of a call in micro-batches each device computes, by its name."""
    if IN_PARTS not in program.facts or not line.seconds:
        return {}
    return {str(device): round(line.busy(str(device)) / line.seconds, 3) for device in program.devices}


def _text(name: str, part: Part, row: Row, largest: int) -> tuple[str, ...]:
    is_first = row is part.rows[0]
    chunks = f", in {part.chunks} chunks" if part.chunks > 1 else ""
    tiles = f", in tiles of {part.tile}" if part.tile else ""
    parts = f", in {part.micro_batches} micro-batches" if part.micro_batches > 1 else ""
    parts += f", busy {part.busy[row.device.name]:.0%}" if row.device.name in part.busy else ""
    return (
        name if is_first else "",
        row.device.name,
        row.what + chunks + parts + tiles,
        _size(row.weights, largest),
        _size(row.activations, largest),
        _size(row.streamed, largest),
        _places(row),
        seconds_text(part.seconds, part.spread) if is_first else "",
    )


def _places(row: Row) -> str:
    """The words for where the weights of a row rest."""
    words = {Residency.DEVICE: row.device.name, Residency.HOST: "RAM", Residency.DISK: "disk"}
    places = {words[rests]: row.rests[rests] for rests in words if rests in row.rests}
    if len(places) < 2:
        return next(iter(places), row.device.name)
    return " + ".join(f"{format_bytes(nbytes)} {place}" for place, nbytes in places.items())


def _facts(part: Part, speeds: Speeds) -> dict[str, Any]:
    program = part.call.program
    return {
        "class": part.call.part_of or part.call.program.name,
        "programs": part.programs,
        "split_mode": split_mode_of(part.call.program),
        "role": part.call.role,
        "phase": part.call.phase,
        "rests": _rests(part),
        "tiled": bool(part.tile),
        "chunks": part.chunks,
        **({"micro_batches": part.micro_batches, "busy": part.busy} if part.micro_batches > 1 else {}),
        "calls": part.call.times,
        **seconds_facts(part.seconds, part.spread),
        "bringing_seconds": round(part.bringing, 3),
        "devices": [
            {
                "device": row.device.name,
                "what": row.what,
                "weight_bytes": row.weights,
                "streamed_bytes": row.streamed,
                "activation_bytes": row.activations,
                "resting_bytes": {rests.value: nbytes for rests, nbytes in row.rests.items()},
            }
            for row in part.rows
        ],
        **({"together": facts_of_group(program, speeds)} if is_shared_out(program) else {}),
    }


def _rests(part: Part) -> str:
    """All places in which the weights rest: `device`, `cpu&disk`, `device&cpu`."""
    program = part.call.program
    names = [weight.name for weight in program.weights.values() if weight.kind == "parameter"]
    found = {program.residency.get(name, Residency.DEVICE) for name in names}
    found |= {rests for row in part.rows for rests in row.rests}
    return "&".join(rests.value for rests in Residency if rests in found) or Residency.DEVICE.value


def _size(nbytes: int, largest: int) -> str:
    return format_bytes_beside(nbytes, largest) if nbytes else "-"

"""What is told of programs that devices compute together: how operations are split, exchanges, and who is busy.

It has a row for each device, and one for each class of blocks: those whose names differ by a number alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from torch.fx import Node

from ..compiler.devices.speeds import Speeds
from ..compiler.durations import seconds_text
from ..compiler.ir.ops import RESHARD, TERMS
from ..compiler.ir.program import Program, placement_of, state_of, states_of
from ..compiler.ir.split import source_of
from ..compiler.ir.state import PARTIAL, WHOLE, Split
from ..compiler.states.parts import sent
from ..compiler.units import counted, format_bytes
from ..passes.states.exchanges import kind_of
from ..passes.states.states import split_mode_of
from .parts import Part
from .usage import timeline_of

HEAD_OF_GROUPS = (
    "component",
    "split by",
    "device",
    "busy",
    "sends a call",
    "exchanges a call",
    "bytes",
    "seconds a call",
)
RIGHT_OF_GROUPS = (3, 4, 6, 7)
HEAD_OF_BLOCKS = ("component", "blocks", "operations", "split", "terms of sums", "whole")
RIGHT_OF_BLOCKS = (2, 3, 4, 5)

SHORTENED = "partial sums of float32 values cross in bfloat16 (--bf16-partials), which changes bits"
"""What is said where terms of sums have fewer bytes on their way."""

WAYS = ("split", "terms of sums", "whole")
"""How operations are computed together: each device has a part of a result, a term of it, or all of it."""

_SEVERAL = {"copy": "copies", "copy to all": "copies to all"}


@dataclass(frozen=True)
class BlockClass:
    """Blocks that differ by a number, or what lies in none, and how many of their operations are computed which way."""

    name: str
    blocks: int
    ways: Counter[str]

    def __str__(self) -> str:
        return f"{self.name} ({counted(self.blocks, 'block')})" if self.blocks else self.name


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a kind in a call: how many, and their bytes."""

    kind: str
    count: int
    nbytes: int

    def __str__(self) -> str:
        return counted(self.count, self.kind, _SEVERAL.get(self.kind, ""))


def is_shared_out(program: Program) -> bool:
    """Whether devices compute a program together in states, and not by rows."""
    return program.is_grouped and not program.is_sliced


def classes_of(program: Program) -> list[BlockClass]:
    """The classes of blocks of a placed program, and what lies in none."""
    block_of, blocks = program.block_of(), defaultdict[str, set[str]](set)
    found: dict[str, Counter[str]] = {}
    last = ""
    for node in program.ops():
        names = [block_of[name] for name in placement_of(node).weights if name in block_of]
        last = names[-1] if names else last if not placement_of(node).weights else ""
        name = re.sub(r"\.?\d+", "", last) if last else "all else"
        blocks[name] |= {last} if last else set()
        found.setdefault(name, Counter())[_way(node)] += 1
    return [BlockClass(name, len(blocks[name]), ways) for name, ways in found.items()]


def exchanges_of(program: Program) -> list[Exchanges]:
    """What devices exchange in a call of a placed program, by kind, those of which there are most first."""
    counts, nbytes = Counter[str](), Counter[str]()
    for one in program.transfers():
        kind, size = _kind(one), sum(size for _, _, size in sent(program, one))
        counts[kind] += 1 if size else 0
        nbytes[kind] += size
    return [Exchanges(kind, count, nbytes[kind]) for kind, count in (+counts).most_common()]


def _way(node: Node) -> str:
    states = states_of(node)
    if any(isinstance(one, Split) for one in states):
        return WAYS[0]
    return WAYS[1] if PARTIAL in states else WAYS[2]


def _kind(moving: Node) -> str:
    """The name of what brings a value to devices."""
    if moving.target is not RESHARD:
        return "copy"
    source, target = state_of(source_of(moving)), state_of(moving)
    made = source_of(moving)
    if TERMS in (made.target, *(one.target for one in made.all_input_nodes)):  # which may be cast on their way
        return "reduce-scatter"  # for each device adds up the terms of a part
    if source == WHOLE and target != WHOLE:
        return "scatter"
    return "copy to all" if source == target else kind_of(source, target)


def facts_of_group(program: Program, speeds: Speeds) -> dict[str, Any]:
    """All that is told of a program that devices compute together, as data; sizes are in bytes."""
    line, out = timeline_of(program, speeds), Counter[str]()
    for one in program.transfers():
        for source, _, size in sent(program, one):
            out[source.name] += size
    return {
        "mode": split_mode_of(program),
        "seconds_a_call": line.seconds,
        "devices": {
            device.name: {"busy": round(line.busy(device.name) / line.seconds, 3), "sent_bytes": out[device.name]}
            for device in program.devices
        },
        "exchanges": {one.kind: {"count": one.count, "bytes": one.nbytes} for one in exchanges_of(program)},
        "blocks": {
            one.name: {"blocks": one.blocks, **{way.replace(" ", "_"): one.ways[way] for way in WAYS}}
            for one in classes_of(program)
        },
    }


def rows_of_groups(names: Sequence[str], parts: Sequence[Part], speeds: Speeds) -> Iterator[tuple[str, ...]]:
    """A row of text for each device of each program that devices compute together, under HEAD_OF_GROUPS.

    Beside these stand the kinds of exchanges, one a row.
    """
    for name, part in zip(names, parts, strict=True):
        if not is_shared_out(part.call.program):
            continue
        facts = facts_of_group(part.call.program, speeds)
        devices = [
            (device, f"{one['busy']:.0%}", format_bytes(one["sent_bytes"])) for device, one in facts["devices"].items()
        ]
        exchanges = [(str(one), format_bytes(one.nbytes)) for one in exchanges_of(part.call.program)]
        titles = [(name, facts["mode"], seconds_text(facts["seconds_a_call"], part.spread))]
        for title, device, exchange in zip_longest(titles, devices, exchanges):
            named, mode, seconds = title or ("", "", "")
            yield named, mode, *(device or ("", "", "")), *(exchange or ("", "")), seconds


def rows_of_blocks(names: Sequence[str], parts: Sequence[Part]) -> Iterator[tuple[str, ...]]:
    """A row of text for each class of blocks of each program that devices compute together, under HEAD_OF_BLOCKS."""
    for name, part in zip(names, parts, strict=True):
        classes = classes_of(part.call.program) if is_shared_out(part.call.program) else ()
        for at, one in enumerate(classes):
            counts = (str(one.ways[way] or "-") for way in WAYS)
            yield ("" if at else name, str(one), str(sum(one.ways.values())), *counts)

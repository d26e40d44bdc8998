"""A placement in sentences: where each part is and why, what limits each device, what each cut costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..compiler.devices.device import KINDS, Device
from ..compiler.devices.memory import Memory
from ..compiler.durations import duration
from ..compiler.ir.program import Program
from ..compiler.units import counted, format_bytes
from ..draw.text.reasons import reason_for
from ..fitting.decide import speeds_here
from ..passes.simulate.memory import simulate
from ..passes.states.states import has_short_terms
from ..planning.parts import Part
from ..planning.shared_work import SHORTENED
from ..planning.skipped import told_of_skipped
from ..planning.table import Account
from .facts import sentences_of
from .what_if import with_faster_links, with_more_memory

_FULL = 0.9
"""A device is said to be nearly full from this part of what may be used of it on."""


def explain_plan(account: Account) -> Iterator[str]:
    """The plan of a pipeline's call in sentences, a paragraph each component, and what would change it."""
    programs = counted(len(account.parts), "program")
    yield from (f"Warning: {one}." for one in account.warnings)
    yield f"A picture takes {duration(account.seconds, account.spread)} {account.once}, in {programs}."
    yield from map(_sentence, told_of_skipped(account))
    for part in account.shown:
        call = part.call
        if call.part_of:
            yield _by_parts(part)
            continue
        told = [*sentences_of(part.title, call.program, call.times, account.speeds), reason_for(account, part)]
        yield " ".join(told)
    rig = account.generation.rig
    for device, peak in account.generation.peaks().items():
        facts = {"that stay": peak.resident, "loaded for the phase": peak.staged}
        weights = [f"{format_bytes(nbytes)} of weights {why}" for why, nbytes in facts.items() if nbytes]
        what = f"{format_bytes(peak.values)} of values"
        what = f"{', '.join(weights)} and {what}" if weights else what
        yield _full(device, peak.total, rig[device], f"when {peak.call.title} runs: {what}")
    yield from map(_sentence, (*account.turns, *account.notes))
    if account.decision is not None:
        yield from with_more_memory(account.decision)
    yield from with_faster_links(account)
    if account.decision is None and account.line:
        yield f"No other placement was searched, for devices were given: {account.line}."


def _by_parts(part: Part) -> str:
    """What each device has of a component that runs by its parts."""
    each = (
        f"{row.device} has {row.what} of it, with {format_bytes(row.weights + row.streamed)} of weights and at most "
        f"{format_bytes(row.activations)} of values"
        for row in part.rows
    )
    return (
        f"{part.title} ({part.call.part_of}) cannot be traced as a whole and runs by its parts, in "
        f"{counted(part.programs, 'program')}, which take {duration(part.seconds, part.spread)}: {'; '.join(each)}."
    )


def explain_programs(programs: Mapping[str, Program]) -> Iterator[str]:
    """Plan files in sentences, a paragraph each program; of each of them alone, for what else runs is not in them."""
    for title, program in programs.items():
        told = list(sentences_of(title, program, 0, speeds_here(program.rig)))
        for device, usage in simulate(program).items():
            rest = f"{format_bytes(usage.weights)} of weights and {format_bytes(usage.total - usage.weights)} of values"
            told.append(_full(device, usage.total, program.rig[device], rest))
        told += [_sentence(SHORTENED)] * has_short_terms(program)
        yield " ".join(told)


def _sentence(note: str) -> str:
    """A note as a sentence; the name of a device begins one as it is."""
    first = note.partition(" ")[0]
    is_word = first.isalpha() and first not in KINDS
    return f"{note[0].upper() if is_word else note[0]}{note[1:]}."


def _full(device: Device, peak: int, memory: Memory, what: str) -> str:
    """How full a device gets, and what is left of it."""
    left = f"{format_bytes(memory.free - peak)} are left"
    limit = "it is nearly full" if peak > _FULL * memory.free else left
    may = format_bytes(memory.free)
    return f"{device} holds at most {format_bytes(peak)} of the {may} that it may use, {what}; {limit}."

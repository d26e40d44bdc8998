"""What a refusal says: what lacks, and the ways out that were searched, lowered and found to fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compiler.errors import DoesNotFitError
from ..compiler.spec.chunks import WHOLE
from ..components.component import Component
from ..components.dry import DryRun
from ..conventions.request import Request
from ..passes.fit.search import Solution
from ..passes.fit.ways_out import CHUNKS, Outcome, Trial, WayOut, refusal, said_of, ways_out
from ..passes.fit.workload import Budgets, Load
from .asked import budgets_of, leaves_devices_open, settings_of_request, typed, with_chunks
from .chains import COUNTS
from .chunked import Counts, Lowered, least_chunks
from .decide import loads_of, machine_of
from .eased import eased
from .fitted import calls_of, members_of
from .packing import packed

logger = logging.getLogger(__name__)

Lowers = Callable[[DryRun], Outcome | None]
"""Lowers what a dry run has traced as it is placed now, and keeps nothing; None where that cannot be."""


@dataclass(frozen=True)
class Tried:
    """How ways out of a refusal are tried.

    ``lowers`` lowers what is placed. ``in_tiles`` gives a dry run in which VAEs decode in the smallest tiles, if they
    may, and ``smaller`` smaller sizes as options, each with a dry run at it. ``others`` are ways out that were found
    otherwise, in words, and ``folder`` is that of the pipeline.
    """

    lowers: Lowers
    in_tiles: Callable[[], DryRun | None]
    smaller: Callable[[], Iterator[tuple[Mapping[str, str], DryRun]]]
    others: tuple[str, ...] = ()
    folder: str = "MODEL_FOLDER"


def explained(
    refused: DoesNotFitError,
    components: Mapping[str, Component],
    request: Request,
    phase_of: Callable[[str], str],
    run: DryRun,
    place: Callable[[Request], None] | None,
    tried: Tried,
) -> DoesNotFitError:
    """The refusal with the ways out of it, the cheapest first; components are left as the last one was tried.

    Args:
        refused: what was refused.
        components: by name.
        request: what was asked.
        phase_of: gives the phase in which a component works, by its name.
        run: has the traced calls.
        place: gives the components the devices and the residency of a request; without it ways out are searched only.
        tried: how ways out are tried.
    """
    members = members_of(components, phase_of, run)
    roles = {name: member.role for name, member in members.items()}

    def loads_at(some: DryRun) -> list[Load]:
        return loads_of(members, calls_of(some), eased(request, roles), COUNTS)

    def trial_of(some: DryRun) -> Trial:
        def trial(out: WayOut) -> Outcome | None:
            if place is None:
                return None if out.has_chunks else Outcome()
            with packed(some, out.packed, out.quant):
                place(typed(request, out.settings, roles))
                outcome = tried.lowers(some)
            found = "refused" if outcome is None else f"over by {dict(outcome.over)}" if outcome.over else "fits"
            logger.info("tried %s (%s): %s", out.what, dict(out.settings), found)
            return outcome

        return trial

    def smaller() -> Iterator[tuple[Mapping[str, str], list[Load], Trial]]:
        for options, some in tried.smaller():
            yield options, loads_at(some), trial_of(some)

    def in_tiles() -> tuple[list[Load], Trial] | None:
        some = tried.in_tiles()
        return (loads_at(some), trial_of(some)) if some is not None else None

    budgets, free = budgets_of(request)
    loads, machine = loads_at(run), machine_of(request)

    def in_chunks() -> WayOut | None:
        return _in_chunks(request, loads, budgets, run, place, tried) if place else None

    settled = None if leaves_devices_open(request, roles) else in_chunks
    outs = ways_out(loads, machine, budgets, free, smaller, trial=trial_of(run), in_chunks=settled, in_tiles=in_tiles)
    spread = machine.speeds.spread(machine.devices)
    said = [*tried.others, *(said_of(out, tried.folder, spread) for out in outs)]
    return DoesNotFitError(refusal(refused.problem, said), refused.over)


def _in_chunks(
    request: Request,
    loads: Sequence[Load],
    budgets: Budgets,
    run: DryRun,
    place: Callable[[Request], None],
    tried: Tried,
) -> WayOut | None:
    """The fewest chunks with which all fits on the devices that were asked for, as it is lowered; None if none do."""
    asked = {load.name: load.asked.chunks or WHOLE for load in loads}
    roles = {load.name: load.role for load in loads}
    known: dict[tuple[tuple[str, int], ...], float | None] = {}
    more = {load.name: [count for count in sorted(load.chunked) if count > asked[load.name]] for load in loads}

    def put(counts: Counts) -> Request:
        changed = with_chunks(request, {**asked, **counts}, roles)
        place(changed)
        return changed

    def lowered(counts: Counts) -> Lowered | None:
        put(counts)
        outcome = tried.lowers(run)
        if outcome is None or outcome.over:
            return None
        known[tuple(sorted(counts.items()))] = outcome.seconds
        return Lowered(1 + sum(counts.values()), True)

    counts = least_chunks(lowered, lambda: {name: some for name, some in more.items() if some})
    if not counts:
        return None
    options = settings_of_request(put(counts))
    return WayOut(CHUNKS, options, Solution({}), (), budgets, lowered=known[tuple(sorted(counts.items()))])

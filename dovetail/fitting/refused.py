"""What a refusal says: what lacks, and the ways out that were searched, lowered and found to fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..compiler.errors import DoesNotFitError
from ..components.dry import DryRun
from ..conventions.request import Request
from ..passes.fit.chain import Chain
from ..passes.fit.ways_out import CHUNKS, Outcome, Trial, WayOut, refusal, said_of, ways_out
from ..passes.fit.workload import Load
from .asked import budgets_of, typed, with_chunks
from .chains import COUNTS
from .decide import Member, loads_of, machine_of
from .eased import eased
from .fitted import calls_of
from .packing import packed

logger = logging.getLogger(__name__)

Lowers = Callable[[DryRun, Request], Outcome | None]
"""Lowers what a dry run has traced as a request places it; None where that cannot be."""


@dataclass(frozen=True)
class Tried:
    """How ways out of a refusal are tried.

    ``lowers`` lowers what a request places. ``in_tiles`` gives a dry run in which VAEs decode in the smallest tiles, if
    they may, and ``smaller`` smaller sizes as options, each with a dry run at it. ``others`` are ways out that were
    found otherwise, in words.
    """

    lowers: Lowers
    in_tiles: Callable[[], DryRun | None]
    smaller: Callable[[], Iterator[tuple[Mapping[str, str], DryRun]]]
    others: tuple[str, ...] = ()


def _has_less_alive(one: Chain, other: Chain) -> bool:
    """Whether less is alive in some part of a chain than in that part of another one."""
    parts = zip((one.rest, *one.parts), (other.rest, *other.parts), strict=False)
    return any(now.live < then.live for now, then in parts)


def _on_any_devices(load: Load) -> Load:
    """A component that no group of devices computes together though that was asked: what was refused is by layers."""
    return load.by_layers if load.asked.seeks_group else load


def explained(
    refused: DoesNotFitError,
    members: Mapping[str, Member],
    request: Request,
    run: DryRun,
    tried: Tried,
    *,
    lowers: bool = True,
) -> DoesNotFitError:
    """The refusal with the ways out of it, the cheapest first.

    Args:
        refused: what was refused.
        members: the components, as `members_of` has them.
        request: what was asked.
        run: has the traced calls.
        tried: how ways out are tried.
        lowers: whether they are lowered, and not searched only.
    """
    roles = {name: member.role for name, member in members.items()}

    def loads_at(some: DryRun) -> list[Load]:
        return [_on_any_devices(load) for load in loads_of(members, calls_of(some), eased(request, roles))]

    def chunked() -> Iterator[list[Load]]:
        for count in COUNTS:
            more = {load.name: max(count, load.asked.chunks) for load in loads}
            found = loads_of(members, calls_of(run), with_chunks(eased(request, roles), more, roles))
            changed = list(map(_on_any_devices, found))
            yield [one for one, whole in zip(changed, loads, strict=True) if _has_less_alive(one.chain, whole.chain)]

    def trial_of(some: DryRun) -> Trial:
        def trial(out: WayOut) -> Outcome | None:
            if not lowers:
                return None if out.what == CHUNKS else Outcome()
            with packed(some, out.packed, out.quant):
                outcome = tried.lowers(some, typed(request, out.settings, roles))
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

    outs = ways_out(loads, machine, budgets, free, smaller, trial=trial_of(run), chunked=chunked, in_tiles=in_tiles)
    spread = machine.speeds.spread(machine.devices)
    said = [*tried.others, *(said_of(out, spread) for out in outs)]
    return DoesNotFitError(refusal(refused.problem, said), refused.over)

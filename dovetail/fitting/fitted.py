"""Fits a pipeline whose devices were left open, once its calls are traced: searches, places, lowers, and checks.

The search knows a program as a chain of parts. What its schedule needs is known when it is lowered, to the byte. Where
that is more than a budget, the component whose moment it is gets so much more foreseen, and the search is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..compiler.errors import DoesNotFitError
from ..components.component import Component
from ..components.dry import DryRun
from ..conventions.request import Request
from ..passes.fit.workload import Over
from .asked import request_of
from .decide import Decision, Member, TracedCall, decide, loads_of, tightened

logger = logging.getLogger(__name__)

T = TypeVar("T")


def members_of(components: Mapping[str, Component], phase_of: Callable[[str], str], run: DryRun) -> dict[str, Member]:
    """The components as the search wants to know them, with what a dry run has of those that run by their parts."""
    return {
        name: Member(
            one.role, phase_of(name), one.view.nbytes, one.view.is_in_files,
            one.sites.weights_by_parts(), run.own.get(name, {}), run.parts_of(one),
        )
        for name, one in components.items()
    }  # fmt: skip


def calls_of(run: DryRun) -> list[TracedCall]:
    """The programs that a dry run has met."""
    return [
        TracedCall(one.component.name, one.traced, run.times[one.call, one.key], one.call.path)
        for one in run.calls.values()
    ]


def fitted(
    name: str,
    members: Mapping[str, Member],
    request: Request,
    run: DryRun,
    lower: Callable[[Request, Decision], T | DoesNotFitError],
) -> T | DoesNotFitError:
    """What lowering makes of the best plan that is found to fit when it is lowered; or the refusal.

    Args:
        name: of the pipeline, for messages.
        members: its components, as `members_of` has them.
        request: what was asked, in which devices are open.
        run: has the traced calls.
        lower: lowers all calls as a request says, which has what was decided, and checks them together.
    """
    roles = {one: member.role for one, member in members.items()}
    loads = loads_of(members, calls_of(run), request)

    def attempt(over: Over) -> T | DoesNotFitError:
        decision = decide(name, loads, request, over)
        if isinstance(decision, DoesNotFitError):
            return decision
        logger.info("searched %.2f s: %s", decision.searched, decision.plan.line)
        return lower(request_of(request, decision.plan, roles), decision)

    return tightened(attempt)

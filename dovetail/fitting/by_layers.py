"""Components that no group of devices computes together as was asked: placed as if no mode was asked for, and said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from ..passes.fit.groups import why_no_group
from ..passes.fit.machine import Machine
from ..passes.fit.search import Solution, places_of, search
from ..passes.fit.workload import Budgets, Load

logger = logging.getLogger(__name__)

_BESIDE = "no devices of one kind have room for it so beside other components"


def searched(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> tuple[list[Load], Solution | None]:
    """The ways of least seconds, and the components with those by layers that no devices compute together.

    These are some of which that is so by themselves, or all where nothing fits otherwise.
    """
    places = places_of(loads, budgets)
    why = {load.name: why_no_group(load, machine, budgets, places) for load in loads if load.asked.seeks_group}
    some = [_by_layers(load, why[load.name]) if why.get(load.name) else load for load in loads]
    solution = search(some, machine, budgets)
    if solution is not None or not any(load.asked.seeks_group for load in some):
        return some, solution
    found = [_by_layers(load, _BESIDE) if load.asked.seeks_group else load for load in some]
    return found, search(found, machine, budgets)


def _by_layers(load: Load, reason: str) -> Load:
    """A component that is not computed by a group of devices together any more."""
    _tell(load.name, load.asked.mode, reason, load.asked.may_be_alone)
    return load.by_layers


@cache
def _tell(name: str, mode: str, reason: str, is_of_all: bool) -> None:
    """Says once why a component is not split under a mode; less loudly where that was said of all components."""
    logger.log(
        logging.INFO if is_of_all else logging.WARNING,
        "%s cannot be split by %s, for %s: it is placed as if no split mode was asked for", name, mode, reason,
    )  # fmt: skip

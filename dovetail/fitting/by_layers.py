"""Components that no group of devices computes together as was asked: placed as if no mode was asked for, and said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from ..compiler.spec.residency import Residency
from ..passes.fit.groups import why_no_group, why_no_mode
from ..passes.fit.machine import Machine
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.trial import places_of
from ..passes.fit.workload import Budgets, Load
from .chosen import forget

logger = logging.getLogger(__name__)

_BESIDE = "no devices of one kind have room for it so beside other components"


def searched(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> tuple[list[Load], Solution | None]:
    """The ways of least seconds, and the components with those by layers that no devices compute together.

    These are some of which that is so by themselves, or all where nothing fits otherwise.
    """
    places = places_of(loads, budgets)
    why = {load.name: _why(load, machine, budgets, places) for load in loads if load.asked.seeks_group}
    some = [_by_layers(load, why[load.name]) if why.get(load.name) else load for load in loads]
    solution = search(some, machine, budgets)
    forget(some)
    if solution is not None or not any(load.asked.seeks_group for load in some):
        return some, solution
    without = [load.by_layers if load.asked.chooses_mode else load for load in some]  # which was among its ways
    found = [_by_layers(load, _BESIDE) if load.asked.seeks_group else load for load in without]
    return found, search(found, machine, budgets)


def _why(load: Load, machine: Machine, budgets: Budgets, places: Sequence[Residency]) -> str:
    """Why a component is not computed by several devices together; nothing where it may be."""
    return why_no_mode(load) if load.asked.chooses_mode else why_no_group(load, machine, budgets, places)


def _by_layers(load: Load, reason: str) -> Load:
    """A component that is not computed by a group of devices together any more."""
    how = "otherwise than by layers" if load.asked.chooses_mode else f"by {load.asked.mode}"
    _tell(load.name, how, reason, load.asked.may_be_alone and load.role != "diffusion")
    return load.by_layers


@cache
def _tell(name: str, how: str, reason: str, is_minor: bool) -> None:
    """Says once why a component is not split under a mode; less loudly of a minor one if that was said of all."""
    logger.log(
        logging.INFO if is_minor else logging.WARNING,
        "%s cannot be split %s, for %s: it is placed as if no split mode was asked for", name, how, reason,
    )  # fmt: skip

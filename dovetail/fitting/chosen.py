"""What the choice of modes amounts to: where none was asked for, how much quicker a picture would be under `auto`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..compiler.durations import duration
from ..compiler.spec.modes import QUICKEST
from ..passes.fit.groups import groups_of
from ..passes.fit.machine import Machine
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.workload import Budgets, Load

logger = logging.getLogger(__name__)

WORTH = 0.95
"""A picture is said to be quicker under a mode where it takes no more than this part of the time."""

_HEAVY = 0.2
"""Modes are looked for of components that take at least this part of a picture."""


@dataclass(frozen=True)
class Quicker:
    """The seconds of a picture under `--split-mode auto`, at most, and those ``instead`` of which it takes these."""

    seconds: float
    instead: float
    spread: float = 0.0

    def __str__(self) -> str:
        takes = f"{duration(self.seconds, self.spread)} in place of {duration(self.instead, self.spread)}"
        return f"`--split-mode {QUICKEST}`: {takes}, as is predicted; last bits may change"

    def beside(self, seconds: float, spread: float) -> Quicker:
        """The same where a plan, lowered, has these seconds: a search has those of its own estimate."""
        return Quicker(self.seconds * seconds / self.instead, seconds, spread)

    def as_data(self) -> dict[str, float]:
        """Both as JSON has them."""
        return {"seconds": round(self.seconds, 3), "in_place_of": round(self.instead, 3)}


def quicker(loads: Sequence[Load], solution: Solution, machine: Machine, budgets: Budgets) -> Quicker | None:
    """How long a picture takes under `auto`, where no mode was asked for and it is quicker so.

    It is by the best of known recipes, so that it takes about a second of the processor for a large model: what is
    solved for under `auto` takes no longer. Nobody asked for it, so nothing is said where the search itself fails.
    """
    if any(load.asked.mode != "layer" for load in loads) or not groups_of(machine, budgets):
        return None
    changed = [_roughly(load, solution) for load in loads]
    if not any(load.asked.chooses_mode for load in changed):
        return None
    try:
        found = search(changed, machine, budgets)
    except Exception as error:  # a defect of what is solved for, which who asks for a mode is told of
        logger.debug("it is not known what a picture takes under %s: %s", QUICKEST, error, exc_info=True)
        return None
    finally:
        forget(changed)
    if found is None or found.seconds > WORTH * solution.seconds:
        return None
    return Quicker(found.seconds, solution.seconds, machine.speeds.spread(machine.devices))


def _roughly(load: Load, solution: Solution) -> Load:
    """A component whose mode is to be found roughly; as it was where that is of no use, or was settled by a word."""
    said, is_light = load.asked, solution.ways[load.name].seconds < _HEAVY * solution.seconds
    is_settled = said.says_mode or said.shares or len(said.devices) == 1 or (said.micro_batches or 1) > 1
    if load.work is None or is_settled or is_light:
        return load
    return replace(rough(load), asked=replace(said, mode=QUICKEST))


def rough(load: Load) -> Load:
    """A component of which states under a mode are those of recipes."""
    return load if load.work is None else replace(load, work=replace(load.work, is_rough=True))


def forget(loads: Sequence[Load]) -> None:
    """Drops what a search kept of programs."""
    for work in filter(None, (load.work for load in loads)):
        work.forget()

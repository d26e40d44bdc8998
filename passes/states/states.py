"""States: has all devices compute each operation together, in the states that are solved for under a mode.

It pays where devices are linked well enough that being busy at the same time takes less than being busy one after
another. ``tensor`` splits weights, so that no device holds them all; under ``sequence`` each device has all weights and
some of the tokens; under ``batch`` some of the pictures of a call; under ``spatial`` a part of each picture. ``solve``
says how each operation is computed, ``share`` writes it into the graph, and the passes that follow find what crosses.
It stands in the place of ``place``, which it falls back to where a mode is not possible.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from ...compiler.devices.speeds import SPREAD
from ...compiler.durations import duration
from ...compiler.errors import DovetailError, UsageError
from ...compiler.ir.program import Program
from ...compiler.spec.modes import SHORT_TERMS, TOGETHER, check_kinds
from ..infra.base import Change, Pass
from ..placement.assignment import check_needs
from ..placement.place import Place
from .fitting import Fitted, fitted, together
from .short_terms import check_short
from .solution import NotPossible

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class States(Pass):
    """Has the devices of a program compute it together under a mode.

    ``shares`` weighs the devices instead of their speed; one behind the first that has a share of nothing computes
    nothing. ``headroom`` means what it means to ``place``. ``terms`` is the dtype in which terms of float32 sums cross,
    ``bfloat16``, if not their own.
    Weights lie where operations read them: whole on each device that reads them whole, parts where parts are read.
    """

    name: ClassVar[str] = "states"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    mode: str
    shares: tuple[float, ...] = ()
    headroom: int | None = None
    terms: str = ""

    def __post_init__(self) -> None:
        if self.mode not in TOGETHER:
            raise UsageError(f"states are not solved for a mode {self.mode!r}: there are {', '.join(TOGETHER)}")
        if self.terms not in ("", SHORT_TERMS):
            raise UsageError(f"terms of sums do not cross in {self.terms!r}: there is {SHORT_TERMS}")

    def run(self, program: Program) -> Change:
        """Solves, checks, and only then changes the program.

        Raises UsageError for devices of different kinds, and where no terms are there to be shorter, DoesNotFitError
        where a device cannot hold what it is to; the program is as it was then.
        """
        check_kinds(program.name, self.mode, program.devices)
        whole, shares = program.rig, self._without_idle(program)
        try:
            found = fitted(program, self.mode, shares, self.headroom, self.has_short_terms)
            if isinstance(found, NotPossible):
                self._refuse_short(program, found)
                _tell(program.name, self.mode, found.reason)
                return Place(shares, self.headroom).run(program)
            check_needs(program, found.needs)
            if self.has_short_terms:
                check_short(program, found.solution.strategies)
        except DovetailError:
            program.rig = whole
            raise
        program.graph = found.graph
        _tell_of_seconds(program, self.mode, found)
        count = together(program, found.solution.decision)
        return Change(len(list(program.ops())), f"operations computed by all devices, {count} values change state")

    def _refuse_short(self, program: Program, why: NotPossible) -> None:
        """Raises UsageError where terms are to be shorter of what several devices do not compute together."""
        if self.has_short_terms and len(program.devices) > 1:
            raise UsageError(
                f"{program.name} cannot be split by {self.mode}, for {why.reason}, so that there are no sums for "
                "bf16_partials (--bf16-partials): leave it out, or name the components that can be split so, as in "
                f"--split-mode diffusion={self.mode}"
            )

    @property
    def has_short_terms(self) -> bool:
        """Whether terms of float32 sums cross in fewer bytes."""
        return bool(self.terms)

    def _without_idle(self, program: Program) -> tuple[float, ...]:
        """Leaves out devices behind the main one that have a share of nothing; returns the shares of the others."""
        if len(self.shares) != len(program.devices) or not sum(self.shares):
            return self.shares
        main, *others = zip(program.devices, self.shares, strict=True)
        kept = [main, *(one for one in others if one[1])]
        program.rig = program.rig.only([device for device, _ in kept])
        return tuple(share for _, share in kept) if len(kept) > 1 else ()


def has_short_terms(program: Program) -> bool:
    """Whether terms of float32 sums of a program cross in bfloat16."""
    steps = [step for step in program.history if step.startswith(f"{States.name}{{")]
    return program.is_grouped and bool(steps) and f"terms={SHORT_TERMS}" in steps[-1]


def split_mode_of(program: Program) -> str:
    """The split mode of a program: ``row``, that of its states, or ``layer``."""
    if program.is_sliced:
        return "row"
    return split_mode_asked(program.history) if program.is_grouped else "layer"


def split_mode_asked(steps: Iterable[str]) -> str:
    """The split mode that passes are to bring about, by their texts; what cannot be split so is by layers."""
    mode = "layer"
    for step in steps:
        name, _, options = step.partition("{")
        if name == "rows":
            mode = "row"
        elif name == States.name:
            asked = options.partition("mode=")[2]
            mode = max((one for one in TOGETHER if asked.startswith(one)), key=len, default="layer")
    return mode


@cache
def _tell(name: str, mode: str, reason: str) -> None:
    """Says once why a program is not split under a mode, and what that means."""
    logger.log(
        logging.INFO if "one device" in reason else logging.WARNING,
        "%s cannot be split by %s, for %s: its blocks are placed whole, a range a device, and run one after another",
        name, mode, reason,
    )  # fmt: skip


def _tell_of_seconds(program: Program, mode: str, found: Fitted) -> None:
    """Says once what a mode takes where it is predicted to take longer than one device."""
    is_told = (program.name, mode) in _TOLD or _BESIDE_OTHERS.get()
    if found.alone is None or found.seconds <= found.alone or is_told:
        return
    _TOLD.add((program.name, mode))
    logger.warning(
        "%s is split by %s as asked (%s a call), though one device alone is predicted to be quicker (%s a call)",
        program.name, mode, duration(found.seconds, SPREAD), duration(found.alone, SPREAD),
    )  # fmt: skip


_BESIDE_OTHERS: ContextVar[bool] = ContextVar("dovetail beside others", default=False)


@contextmanager
def beside_others() -> Iterator[None]:
    """Has programs be lowered of which several go on at once: what one device alone takes is no measure of each."""
    token = _BESIDE_OTHERS.set(True)
    try:
        yield
    finally:
        _BESIDE_OTHERS.reset(token)


_TOLD: set[tuple[str, str]] = set()
"""The programs, and their modes, of which it was said that one device is quicker: each is lowered again and again."""

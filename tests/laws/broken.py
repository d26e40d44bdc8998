"""Programs that devices compute together, to be broken, and what breaks them for a moment."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import torch
from torch.fx import Node

from dovetail.compiler.errors import VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, place_node
from dovetail.compiler.ir.schedule import Run, Schedule, Step
from dovetail.compiler.ir.state import Split, State
from dovetail.passes.verify.verifier import verify
from testbed.mode_cells import Cell
from testbed.mode_cells import shared as in_groups
from testbed.spatial import enlarged, split
from testbed.zoo.everything import TINY
from tests.cases import drawn

from .test_arrange import Early
from .test_shared import Chooser, shared

MOST = 3
"""So many places are broken in each way."""
SUBJECTS = drawn(["transformer", "transformer, sent early", "unet", "decoder in space", "in groups"], 2)

T = TypeVar("T")


@lru_cache(maxsize=2)
def subject(kind: str) -> Program:
    """A program over three devices of unequal shares: in states drawn at random, or pictures in space.

    That in groups has two devices of unequal shares in each, and states that were solved for.
    """
    shares, seed = (3, 2, 1), f"mutants {os.environ['DOVETAIL_TEST_SEED']}"
    if kind == "decoder in space":
        module, call = enlarged("AutoencoderKL-decode", torch.float64, (16, 8))
        found = split(module, call, shares)
    elif kind == "in groups":
        module, call = TINY["SD3Transformer2DModel"].make(torch.float64)
        found, _, _ = in_groups(trace(module, (), call), Cell("", "batch+tensor", (2, 1, 2, 1), "", None))
    else:
        name = "UNet2DConditionModel" if kind == "unet" else "FluxTransformer2DModel"
        early = [Early()] if "early" in kind else []
        _, _, found = shared(name, shares, lambda _: Chooser(shares, seed), behind_cut=early)
    verify(found)
    return found


def some(things: Iterable[T], most: int = MOST) -> list[T]:
    """A few of some things, as the seed draws them; there must be one."""
    known = list(things)
    assert known
    return random.Random(os.environ["DOVETAIL_TEST_SEED"]).sample(known, min(most, len(known)))


def is_refused(program: Program) -> bool:
    """Whether the verifier refuses a program."""
    try:
        verify(program)
    except VerificationError:
        return True
    return False


@contextmanager
def placed(node: Node, **changes: object) -> Iterator[None]:
    """Says something else of where a node is, for a moment."""
    before = node.meta["placement"]
    place_node(node, **changes)
    try:
        yield
    finally:
        node.meta["placement"] = before


@contextmanager
def scheduled(program: Program, schedule: Schedule) -> Iterator[None]:
    """Gives a program another schedule, for a moment."""
    before, program.schedule = program.schedule, schedule
    try:
        yield
    finally:
        program.schedule = before


def every(schedule: Schedule, change: Callable[[object], object | None]) -> Schedule:
    """A schedule of which each instruction, and each step's, is what ``change`` gives; None drops it."""

    def of_step(step: Step) -> Step:
        awaits, sends, frees = (
            tuple(new for one in some_of if (new := change(one)) is not None)
            for some_of in (step.awaits, step.sends, step.frees)
        )
        return replace(step, awaits=awaits, sends=sends, frees=frees)

    def of_item(one: object) -> object | None:
        return replace(one, steps=tuple(map(of_step, one.steps))) if isinstance(one, Run) else change(one)

    return Schedule(tuple(new for one in schedule if (new := of_item(one)) is not None))  # type: ignore[misc]


def moved(state: State) -> State:
    """The same split with one bound elsewhere, of a segment that has room for it."""
    assert isinstance(state, Split)
    for number, segment in enumerate(state.segments):
        for at, ((start, middle), (_, stop)) in enumerate(pairwise(segment)):
            other = middle - 1 if middle - 1 >= start else middle + 1 if middle + 1 <= stop else middle
            if other != middle:
                changed = (*segment[:at], (start, other), (other, stop), *segment[at + 2 :])
                return Split(state.axis, (*state.segments[:number], changed, *state.segments[number + 1 :]))
    return state

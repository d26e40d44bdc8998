"""What a model's code counts is eager's, whichever way it comes there: bound methods, partials, classes of lists."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import Tensor

import dovetail

from .small_pipeline import Block, Model, Pipeline, compiled_pair

pytestmark = pytest.mark.usefixtures("clean_sims")

YES = True


class Log(list[int]):
    """A list of the user's, whose method appends, and which counts in an attribute."""

    count = 0

    def note(self) -> int:
        self.append(1)
        self.count += 1
        return len(self) + self.count


class Box:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


class Reading:
    """A descriptor that counts how often it is read."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __get__(self, _: Any, kind: Any) -> int:
        self.seen.append(1)
        return len(self.seen)


READING = Reading()


class Held:
    """What a class holds that is called or asked."""

    box = Box()
    reading = READING


def put_one(into: list[int]) -> int:
    into.append(1)
    return len(into)


LOG, FIRST, OTHER, RECORDED, GIVEN = Log(), list[int](), list[int](), list[int](), list[int]()
record, given, call = RECORDED.append, partial(put_one, GIVEN), Box().__call__
CALLED, ADDED = Box(), list[int]()
CALLS: dict[str, Callable[[], int]] = {"call": CALLED.__call__, "partial": partial(put_one, ADDED)}
WEAK: WeakKeyDictionary[type, int] = WeakKeyDictionary()
LOCAL = threading.local()


def _picked() -> int:
    return put_one(FIRST if YES else OTHER)


def _weak() -> int:
    WEAK[Box] = WEAK.get(Box, 0) + 1
    return WEAK[Box]


def _local() -> int:
    LOCAL.count += 1
    return int(LOCAL.count)


def _made() -> int:
    global MADE
    try:
        MADE += 1
    except NameError:
        MADE = 1
    return MADE


class Slotted:
    """It has places for its attributes, and no dictionary."""

    __slots__ = ("count", "seen")

    def __init__(self) -> None:
        self.count, self.seen = 0, list[int]()

    def note(self) -> int:
        self.count += 1
        self.seen.append(1)
        return self.count + len(self.seen)


SLOTTED, COUNTS, BYTES, ARRAY = Slotted(), np.zeros(2), bytearray(1), array("l", [0])


def _in_arrays() -> int:
    COUNTS[1] += 1
    BYTES[0] += 1
    ARRAY[0] += 1
    return int(COUNTS[1]) + BYTES[0] + ARRAY[0]


def _made_so_far() -> int:
    try:
        return MADE
    except NameError:
        return 0


WAYS: dict[str, tuple[Callable[[], Any], Callable[[], int]]] = {
    "class of lists": (lambda: LOG.note(), lambda: len(LOG) + LOG.count),
    "picked": (lambda: _picked(), lambda: len(FIRST)),
    "method in C": (lambda: record(1), lambda: len(RECORDED)),
    "partial": (lambda: given(), lambda: len(GIVEN)),
    "bound method": (lambda: call(), lambda: call.__self__.count),
    "table": (lambda: CALLS["call"]() + CALLS["partial"](), lambda: CALLED.count + len(ADDED)),
    "callable of a class": (lambda: Held().box(), lambda: Held.box.count),
    "descriptor": (lambda: Held().reading, lambda: len(READING.seen)),
    "weak": (lambda: _weak(), lambda: WEAK.get(Box, 0)),
    "of a thread": (lambda: _local(), lambda: LOCAL.count),
    "slots": (lambda: SLOTTED.note(), lambda: SLOTTED.count + len(SLOTTED.seen)),
    "arrays": (lambda: _in_arrays(), lambda: int(COUNTS[1]) + BYTES[0] + ARRAY[0]),
    "new global": (lambda: _made(), lambda: _made_so_far()),
}
"""What code does, and what it has counted since: the number that it returned last, if it returns one."""


class Counting(Block):
    """A block that computes with what it counts."""

    def __init__(self, way: Callable[[], Any]) -> None:
        super().__init__()
        self.way = way

    def between(self, x: Tensor) -> Tensor:
        return torch.relu(x) * float(self.way() or 1)


@pytest.fixture(autouse=True)
def _own_of_a_thread() -> None:
    LOCAL.count = 0


@pytest.mark.fifth
@pytest.mark.few(5)
@pytest.mark.parametrize("way", WAYS)
def test_what_code_counts_in_another_way_is_as_in_eager(way: str) -> None:
    count, said = WAYS[way]
    model, eager, x = Model(partial(Counting, count)).eval(), Model(Block).eval(), torch.randn(2, 32)
    eager.load_state_dict(model.state_dict())
    for one in (model, eager):
        one.blocks = one.blocks[:1]
    pipe, before = Pipeline(model), said()
    dovetail.compile_pipeline(pipe, "sim0&sim1")
    each = {"class of lists": 2, "table": 2, "slots": 2, "arrays": 3}.get(way, 1)
    for calls in (1, 2):
        found = pipe(x)
        assert said() == before + calls * each
        factor = 1.0 if way == "method in C" else float(said())
        eager.blocks[0].between = lambda x, factor=factor: torch.relu(x) * factor
        assert torch.equal(found.cpu(), eager(x))


class Keeping(Block):
    """A block whose own attributes count in places and arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.slotted, self.counts = Slotted(), np.zeros(2, dtype=np.int64)

    def between(self, x: Tensor) -> Tensor:
        self.counts[0] += 1
        return torch.relu(x) * float(self.slotted.note() + self.counts[0])


@pytest.mark.fifth
def test_what_attributes_without_a_dictionary_and_arrays_of_a_module_count_is_as_in_eager() -> None:
    eager, pipe, x = compiled_pair(Keeping)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(pipe(x).cpu(), eager(x))
    mine, theirs = pipe.unet.blocks[0], eager.blocks[0]
    assert (mine.slotted.count, mine.counts.tolist()) == (theirs.slotted.count, theirs.counts.tolist()) == (3, [3, 0])

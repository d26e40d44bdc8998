"""Calls over components that are planned together come one after the other, whatever is interrupted or joined."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from dovetail.components import turn
from dovetail.components.turn import Turn

FILES = (turn.__file__, contextlib.__file__)


class Interrupt:
    """Interrupts before the nth line that runs of the module of turns and of contextlib; a trace function.

    Lines of ``with`` do not count: Python lets no interrupt come between the end of such a block and its ``__exit__``.
    """

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupt | None:
        """Counts lines."""
        file = frame.f_code.co_filename
        if file not in FILES:
            return None
        if event == "line" and not linecache.getline(file, frame.f_lineno).strip().startswith("with "):
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self


def _is_interrupted(function: Callable[[], None], at: int) -> bool:
    before = sys.gettrace()
    sys.settrace(Interrupt(at))
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _gets(lock: Any) -> bool:
    """Whether another thread gets a lock soon."""
    done = threading.Event()

    def take() -> None:
        with lock:
            done.set()

    threading.Thread(target=take, daemon=True).start()
    return done.wait(10)


@contextlib.contextmanager
def _held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread has a lock meanwhile."""
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_an_interrupt_at_any_line_leaves_no_turn_taken() -> None:
    at, mine = 1, Turn()

    def use() -> None:
        with mine.lock, mine.lock:
            pass

    while _is_interrupted(use, at):
        assert _gets(mine.lock), at
        at += 1
    assert at > 3


def test_an_interrupt_of_who_joins_leaves_neither_taken() -> None:
    at = 1
    while True:
        one, other = Turn(), Turn()
        interrupted = _is_interrupted(lambda one=one, other=other: one.join(other), at)
        assert _gets(one.lock), at
        assert _gets(other.lock), at
        if not interrupted:
            break
        at += 1
    assert at > 10
    assert one.lock is other.lock


def test_turns_that_are_joined_are_one_for_all_that_were_joined_before() -> None:
    turns = [Turn() for _ in range(4)]
    turns[0].join(turns[1])
    turns[2].join(turns[3])
    assert turns[1].lock is not turns[2].lock
    turns[3].join(turns[0])
    assert len({id(one.lock) for one in turns}) == 1


def test_who_joins_waits_for_a_call_that_goes_on() -> None:
    one, other, joined = Turn(), Turn(), threading.Event()

    def join() -> None:
        one.join(other)
        joined.set()

    with _held_elsewhere(other.lock):
        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        assert not joined.wait(0.05)
    assert joined.wait(10)


def test_who_waited_for_a_turn_that_was_joined_meanwhile_waits_for_both() -> None:
    turns, inside = [Turn(), Turn()], threading.Event()
    kept, left = sorted(turns, key=id)

    def use() -> None:
        with left.lock, left.lock:
            inside.set()

    with kept.lock:
        with left.lock:
            thread = threading.Thread(target=use, daemon=True)
            thread.start()
            time.sleep(0.02)  # it waits for this one alone
            kept.join(left)
        assert not inside.wait(0.05)
    assert inside.wait(10)


if hasattr(os, "fork"):

    def test_a_forked_child_finds_no_turn_taken() -> None:
        mine = Turn()
        with _held_elsewhere(mine.lock):
            child = os.fork()
            if not child:
                with mine.lock:
                    os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

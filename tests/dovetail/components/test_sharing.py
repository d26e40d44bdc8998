"""Nobody who is interrupted between two statements leaves a lock taken, and no thread has one in a forked child."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from dovetail.components import sharing
from dovetail.components.sharing import Sharing
from dovetail.runtime.devices.fork import ForkSafeLock

FILES = (sharing.__file__, contextlib.__file__)


class Interrupt:
    """Interrupts before the nth line that runs of the module of locks and of contextlib; a trace function.

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


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_an_interrupt_at_any_line_leaves_no_lock_taken(kind: str) -> None:
    at, lock = 1, Sharing()

    def use() -> None:
        with getattr(lock, kind)():
            pass

    while _is_interrupted(use, at):
        assert _gets(lock.alone()), at
        assert _gets(lock.shared()), at
        at += 1
    assert at > 10


def test_an_interrupt_of_who_waits_leaves_nobody_waiting() -> None:
    lock = Sharing()

    def want() -> None:
        with lock.alone():
            pass

    with _held_elsewhere(lock.shared()):
        for at in range(1, 30):
            assert _is_interrupted(want, at)
            assert _gets(lock.shared()), at


def test_a_plain_lock_runs_no_python_when_it_is_entered_or_left() -> None:
    lock = ForkSafeLock()

    def use() -> None:
        with lock, lock:
            pass

    assert not _is_interrupted(use, 1)
    assert _gets(lock)


def test_nobody_shares_what_another_thread_has_alone() -> None:
    lock, seen = Sharing(), []
    with lock.alone(), lock.shared():
        thread = threading.Thread(target=lambda: _note(lock, seen))
        thread.start()
        thread.join(0.05)
        assert not seen
    thread.join()
    assert seen == ["shared"]


def _note(lock: Sharing, seen: list[str]) -> None:
    with lock.shared():
        seen.append("shared")


if hasattr(os, "fork"):

    def test_a_forked_child_finds_no_lock_taken() -> None:
        lock = Sharing()
        with _held_elsewhere(lock.alone()):
            child = os.fork()
            if not child:
                with lock.alone():
                    os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

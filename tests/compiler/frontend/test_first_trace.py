"""What the first trace of a process imports is there when it was interrupted meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dovetail.compiler.frontend.first_trace import interrupt_deferred

SCRIPT = Path(__file__).with_name("interrupt_first_trace.py")

pytestmark = pytest.mark.usefixtures("heeding_interrupts")


def test_an_interrupt_that_is_deferred_comes_at_the_end() -> None:
    handler, seen = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        signal.raise_signal(signal.SIGINT)
        seen.append("went on")
    assert seen == ["went on"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_leave_the_handler_of_interrupts_as_it_is() -> None:
    handler, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with interrupt_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [handler]


if hasattr(os, "fork"):

    def test_an_interrupt_of_the_first_trace_of_a_process_leaves_torch_whole() -> None:
        done = subprocess.run([sys.executable, SCRIPT, "60", "200"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]

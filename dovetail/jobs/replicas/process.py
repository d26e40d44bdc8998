"""One child process, as who started it sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from .wire import Message, Wire

_PATIENCE = 5.0
"""Seconds in which a process is to end by itself that was let go; then it is killed."""

_LINES = 20
"""So many of the last lines that a process wrote are kept, to say why it ended."""


class Process:
    """A replica's process.

    It is in a session of its own, so that Ctrl-C reaches the process that started it alone, which then lets it go.

    Args:
        command: what is started.
        setup: what it is told first.
        told: is given each line that it writes to standard error.
    """

    def __init__(self, command: Sequence[str], setup: Mapping[str, Any], told: Callable[[str], None]) -> None:
        self._told = told
        self._last: deque[str] = deque(maxlen=_LINES)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        reads, writes, errors = self._child.stdout, self._child.stdin, self._child.stderr
        assert reads is not None
        assert writes is not None
        assert errors is not None
        self._wire = Wire(reads, writes)
        self._lines = threading.Thread(target=self._pass_on, args=(errors,), daemon=True)
        self._lines.start()
        self._wire.tell("setup", **setup)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    def tell(self, what: str, **said: Any) -> bool:
        """Says something to it; whether it was there to hear it."""
        return self._wire.tell(what, **said)

    def hear(self) -> Message | None:
        """What it says next; None where it has ended."""
        return self._wire.hear()

    def let_go(self) -> None:
        """Has it end by itself; does not wait for that."""
        self._wire.let_go()

    def end(self) -> None:
        """Has it end, and waits for that; kills it where it takes too long, or where the waiting is interrupted."""
        self.let_go()
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._child.poll() is None:
                self._child.kill()
                self._child.wait()
        self._lines.join(1)

    def how_it_ended(self) -> str:
        """How a process ended that is heard no more, with the last that it wrote."""
        self.end()
        code = self._child.returncode
        last = next((line for line in reversed(self._last) if line.strip()), "")
        told = f"process {self.pid} {_told_of_code(code)}"
        return told + (f"; the last that it wrote is: {last.strip()}" if last else "")

    def _pass_on(self, errors: IO[bytes]) -> None:
        with errors:
            for line in errors:
                text = line.decode(errors="replace").rstrip()
                self._last.append(text)
                self._told(text)


def _environment() -> dict[str, str]:
    """This process's, in which a child finds the same modules, and no others of the folder that it is started in."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def _told_of_code(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
    hint = ", as the system does where memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"

"""What two processes say to each other over a pipe: lines of JSON, each with as many bytes behind it as it says.

Nothing that comes over it is unpickled: it is text, numbers and bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any


@dataclass(frozen=True)
class Message:
    """One thing that was said: ``what`` it is about, what is said of it, and bytes."""

    what: str
    said: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""


class Wire:
    """One end of a connection; several threads may speak, and one listens."""

    def __init__(self, reads: IO[bytes], writes: IO[bytes]) -> None:
        self._reads, self._writes = reads, writes
        self._speaking = threading.Lock()

    def tell(self, what: str, data: Sequence[bytes | memoryview] = (), **said: Any) -> bool:
        """Says something, with bytes; whether there was still somebody to hear it."""
        nbytes = sum(map(len, data))
        line = json.dumps({"what": what, "said": said, "nbytes": nbytes}).encode()
        try:
            with self._speaking:
                self._writes.write(line + b"\n")
                for part in data:
                    self._writes.write(part)
                self._writes.flush()
        except (OSError, ValueError):  # the other process has ended, or this end was let go
            return False
        return True

    def hear(self) -> Message | None:
        """What is said next; None where the other process has ended, or what it said was cut short by its end."""
        try:
            line = self._reads.readline()
            if not line.endswith(b"\n"):
                return None
            told = json.loads(line)
            data = self._reads.read(told["nbytes"])
        except (OSError, ValueError):
            return None
        return Message(told["what"], told["said"], data) if len(data) == told["nbytes"] else None

    def let_go(self) -> None:
        """Speaks no more, which the other process hears."""
        try:
            self._writes.close()
        except OSError:  # what was not sent yet has nobody to go to
            return

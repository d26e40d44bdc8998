"""What Linux knows of other processes: whether one lives, and which it has started (`/proc`)."""

from __future__ import annotations

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening of its file and the reading
        return False


def ends(pid: int, seconds: float = 10) -> bool:
    """Whether a process ends within so many seconds; waits as long as it takes, at most these."""
    until = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def children_of(pid: int) -> list[int]:
    """The processes that the threads of a process have started, the oldest first unless the numbers began anew."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            continue
    return sorted(found)

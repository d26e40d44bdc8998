"""What a painter says of itself: seconds by phase of its last job, and how full its devices are."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PAGES = Path("/proc/self/statm")


@dataclass(frozen=True)
class DeviceFacts:
    """Bytes of a device: in use, the most so far, the most that the plan has, and what may be used.

    Of the host ``used`` and ``peak`` are those of the process.
    """

    used: int = 0
    peak: int = 0
    planned: int = 0
    free: int = 0


@dataclass(frozen=True)
class Facts:
    """Seconds by phase, devices by name, and how many traces were ``read`` from the cache or ``made`` since the last.

    It is plain data that another process can send.
    """

    phases: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, DeviceFacts] = field(default_factory=dict)
    cache: Mapping[str, int] = field(default_factory=dict)


def facts_of(painter: object) -> Facts:
    """What a painter says of itself now; nothing of one that says nothing. From any thread."""
    tell = getattr(painter, "facts", None)
    found = tell() if tell is not None else None
    return found if isinstance(found, Facts) else Facts()


def memory_of_process() -> tuple[int, int]:
    """The bytes of memory that this process has now, where the system says so, and the most so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    try:
        used = int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        used = peak
    return used, max(used, peak)

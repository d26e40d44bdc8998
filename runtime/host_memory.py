"""How much memory the host has."""

from __future__ import annotations

import os


def host_memory() -> int:
    """Returns the bytes of memory that the host has, or 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return 16 * 2**30

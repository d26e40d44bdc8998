"""Whose a file of the cache is: what somebody else could have written is not read.

An entry is data and runs no code, but whoever writes one chooses the numbers that are computed. So, as ssh does with
its keys, a folder or file counts only where it is this user's own (or root's, who may do anything anyway) and where
nobody else may write it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def doubt(found: os.stat_result, path: Path) -> str:
    """Why a file or folder is not believed, with the way out; empty where it is. Systems without users believe all."""
    if not hasattr(os, "getuid"):
        return ""
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to the user {found.st_uid} and not to you ({os.getuid()}): chown it, or remove it"
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        return f"others may write it (mode {stat.S_IMODE(found.st_mode):o}): chmod go-w {path}"
    return ""

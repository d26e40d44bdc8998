"""Whether there is a browser to show a page in, and how it is shown."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path

_IN_TESTS = ("PYTEST_CURRENT_TEST", "CI")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def has_browser() -> bool:
    """Whether a browser can be opened: there is a display and a program for it, and no test runs."""
    if any(os.environ.get(name) for name in _IN_TESTS):
        return False
    has_display = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in _DISPLAYS)
    if not has_display:
        return False
    try:
        return type(webbrowser.get()) is not webbrowser.GenericBrowser  # which is one in the terminal
    except webbrowser.Error:
        return False


def is_watched() -> bool:
    """Whether a person types here, who sees a window that opens: a script may run anywhere."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows a page by itself."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def open_page(text: str) -> Path:
    """Writes a page to a file for temporary ones, and opens it in a browser where there is one; returns the file."""
    with tempfile.NamedTemporaryFile("w", prefix="dovetail-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(text)
    path = Path(file.name)
    if has_browser():
        webbrowser.open(path.as_uri())
    return path

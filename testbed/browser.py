"""A headless Chromium that opens a page, and tells what went wrong in it and what it asked the network for."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """The program, if one is installed; the environment variable CHROMIUM may name it."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


def why_not() -> str:
    """Why no page can be opened here; empty where one can."""
    if importlib.util.find_spec("playwright") is None:
        return "no playwright: pip install 'dovetail-diffusion[browser]'"
    return "" if chromium() else f"no Chromium: none of {', '.join(NAMES)} is installed"


@dataclass
class Opened:
    """A page: playwright's own, what it said was wrong, and each address that it asked for but its own."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Any, file: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Opened:
    """A file as a page, once its script has put it together."""
    view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    found = Opened(view)
    view.on("console", lambda one: found.errors.append(one.text) if one.type in ("error", "warning") else None)
    view.on("pageerror", lambda error: found.errors.append(str(error)))
    view.on("dialog", lambda dialog: (found.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
    view.on("request", lambda one: found.requests.append(one.url) if one.url != file.as_uri() else None)
    view.goto(file.as_uri())
    view.wait_for_selector("html[data-ready]", timeout=60_000)
    return found

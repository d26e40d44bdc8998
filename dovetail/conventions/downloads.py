"""Says what a download of a pipeline takes before it begins, and refuses one for which the disk has no room."""

from __future__ import annotations

import inspect
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from ..compiler.errors import DoesNotFitError
from ..compiler.units import format_bytes
from ..progress.downloads import Download, going

logger = logging.getLogger("dovetail")


def announcing(download: Callable[..., Any]) -> Callable[..., Any]:
    """The ``download`` of a pipeline class, which says first how many bytes in how many files it takes.

    Which files belong to a pipeline, diffusers decides within it, and hands them to the `snapshot_download` of
    huggingface_hub that its module has imported; the dry run of that knows their sizes. What is given is a copy of the
    function that finds another `snapshot_download` there, so that nothing is changed of diffusers, which other threads
    may use. It raises DoesNotFitError where the disk has not the room.
    """
    function = inspect.unwrap(getattr(download, "__func__", download))
    fetch = getattr(function, "__globals__", {}).get("snapshot_download")
    if fetch is None or not isinstance(download, MethodType):
        return download
    names = {**function.__globals__, "snapshot_download": _with_its_size(fetch)}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return MethodType(copy, download.__self__)


def _with_its_size(fetch: Callable[..., Any]) -> Callable[..., Any]:
    def said_and_fetched(name: str, **options: Any) -> Any:
        try:
            files = [one for one in fetch(name, **options, dry_run=True, tqdm_class=_bar()) if one.will_download]
        except OSError:  # no network, no such repository: the download says it, or finds all in the cache
            files = []
        if not files:
            return fetch(name, **options)
        needed = sum(file.file_size or 0 for file in files)
        _check_room(name, needed, files[0].local_path, options)
        least = "at least " if any(file.file_size is None for file in files) else ""
        logger.warning("downloading %s: %s%s in %s files", name, least, format_bytes(needed), len(files))
        with going(name, needed) as download:
            return fetch(name, **options, **_counting(download))

    return said_and_fetched


def _check_room(name: str, needed: int, place: str, options: dict[str, Any]) -> None:
    """Raises DoesNotFitError where the disk of a file that is to come has less; one that says nothing has room."""
    folder = next(one for one in Path(place).absolute().parents if one.is_dir())
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return
    if needed > disk.free and disk.total:
        where = "cache_dir" if options.get("cache_dir") else "HF_HOME"
        raise DoesNotFitError(
            f"{name} takes {format_bytes(needed)} to download, and the disk of {folder} has {format_bytes(disk.free)} "
            f"free: free some, or name a folder on another disk in {where}"
        )


def _counting(download: Download) -> dict[str, Any]:
    """The option by which what comes is counted; none where huggingface_hub shows bars of its own."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    def count(number: float | None, name: str) -> None:
        if name == "huggingface_hub.snapshot_download":  # which has what is written, whatever brings it
            download.here += int(number or 0)

    return {"tqdm_class": _bar(count)} if are_progress_bars_disabled() else {}


def _bar(count: Callable[[float | None, str], None] = lambda number, name: None) -> type:
    """A progress bar that shows nothing; ``count`` is told of each step, with the name of the bar."""
    from huggingface_hub.utils.tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._told_as = str(options.get("name"))
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            count(n, self._told_as)
            return None

    return Silent

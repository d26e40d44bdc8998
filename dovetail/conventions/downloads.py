"""Says what a download of a pipeline takes before it begins, and refuses one for which the disk has no room."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ..compiler.errors import DoesNotFitError
from ..compiler.units import format_bytes

logger = logging.getLogger("dovetail")
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def announced() -> Iterator[None]:
    """Has what diffusers downloads meanwhile be said first: how many bytes in how many files.

    Which files belong to a pipeline, diffusers decides within its `download`, and hands them to `snapshot_download` of
    huggingface_hub, whose dry run knows their sizes; so that call is where it is said. One download at a time, for it
    is replaced in diffusers' own module. Raises DoesNotFitError where there is not the room.
    """
    from diffusers.pipelines import pipeline_utils

    fetch = pipeline_utils.snapshot_download
    with _ONE_AT_A_TIME, patch.object(pipeline_utils, "snapshot_download", _with_its_size(fetch)):
        yield


def _with_its_size(fetch: Callable[..., Any]) -> Callable[..., Any]:
    def said_and_fetched(name: str, **options: Any) -> Any:
        with suppress(OSError):  # no network, no such repository: the download says it, or finds all in the cache
            _say(name, fetch(name, **options, dry_run=True, tqdm_class=_no_bar()))
        return fetch(name, **options)

    return said_and_fetched


def _say(name: str, files: Sequence[Any]) -> None:
    missing = [file for file in files if file.will_download]
    if not missing:
        return
    needed = sum(file.file_size or 0 for file in missing)
    folder = next(one for one in Path(missing[0].local_path).absolute().parents if one.is_dir())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DoesNotFitError(
            f"{name} takes {format_bytes(needed)} to download, and {folder} has {format_bytes(free)} free: "
            "free some, or name a folder on another disk in HF_HOME"
        )
    logger.warning("downloading %s: %s in %s files", name, format_bytes(needed), len(missing))


def _no_bar() -> type:
    """A progress bar that is none, for a dry run."""
    from huggingface_hub.utils.tqdm import tqdm

    class NoBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    return NoBar

"""Names that come from files, made fit for a path."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..errors import UsageError


def is_plain(name: str) -> bool:
    """Whether a name is that of one file or folder in the folder it is looked for in: no path, no way up, no drive.

    >>> is_plain("vae"), is_plain("../vae"), is_plain("/vae"), is_plain("c:vae"), is_plain(".."), is_plain("")
    (True, False, False, False, False, False)
    """
    parts = (Path(name).name, PurePosixPath(name).name, PureWindowsPath(name).name)
    return bool(name) and name not in (".", "..") and "\0" not in name and all(part == name for part in parts)


def check_names(folder: Path, names: Iterable[str]) -> None:
    """Raises UsageError where a component of a saved pipeline would lie in another folder than the pipeline's."""
    for name in names:
        if not is_plain(name):
            raise UsageError(
                f"{folder / 'model_index.json'} names the component {name!r:.120}, which is not a folder beside it: "
                "download it again"
            )

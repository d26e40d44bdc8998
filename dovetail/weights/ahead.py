"""Has the files of a saved pipeline read into the page cache while its libraries are imported and its calls planned."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from ..compiler.devices.probe import probe_host
from ..runtime.store.page_cache import warm

_SHARE = 2
"""One in so many bytes of the host's free memory may be taken by files."""


def folders_in(source: str | os.PathLike[str]) -> list[str]:
    """The names of the folders in a folder; none in another source."""
    folder = Path(source)
    return [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []


def read_ahead(source: str | os.PathLike[str], variant: str | None = None, apart_from: Collection[str] = ()) -> None:
    """Begins to read the weights of a folder, apart from those of some components; does nothing for another source."""
    folder = Path(source)
    if folder.is_dir():
        warm(files_of(folder, variant, apart_from), probe_host()[1] // _SHARE)


def files_of(folder: Path, variant: str | None = None, apart_from: Collection[str] = ()) -> list[Path]:
    """The files from which the components in a folder will most likely be loaded, small components first."""
    parts = [one for one in folder.iterdir() if one.is_dir() and one.name not in apart_from]
    found = {part: _of(part, variant) or _of(part, None) for part in parts}
    sizes = {part: sum(file.stat().st_size for file in files) for part, files in found.items()}
    return [file for part in sorted(parts, key=lambda part: (sizes[part], part)) for file in found[part]]


def _of(part: Path, variant: str | None) -> list[Path]:
    middle, shard = re.escape(f".{variant}") if variant else "", r"-\d+-of-\d+"
    name = re.compile(rf"(diffusion_pytorch_model|model)({middle}({shard})?|{shard}{middle})\.safetensors")
    return sorted(file for file in part.iterdir() if name.fullmatch(file.name))

"""Writing files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the wanted name when the block ends well and vanishes when it does not."""
    wanted = Path(path)
    draft = wanted.with_name(f".{wanted.name}.{os.getpid()}")
    try:
        yield draft
        os.replace(draft, wanted)
    finally:
        draft.unlink(missing_ok=True)

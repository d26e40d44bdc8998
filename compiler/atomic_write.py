"""Writing files whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the wanted name when the block ends well and vanishes when it does not.

    It is a new file beside the wanted one under a name that nobody can foresee, so that neither another thread nor a
    link that somebody has put there is written through. What is there before is replaced in one step, or stays.
    """
    wanted = Path(path)
    draft = wanted.with_name(f".{secrets.token_hex(8)}.{wanted.name[-100:]}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # fails where anything has that name
    try:
        yield draft
        os.replace(draft, wanted)
    finally:
        draft.unlink(missing_ok=True)

"""Writing files whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RANDOM, _KEPT = 8, 100
"""Random bytes in the name of a draft, and bytes of the wanted name that it ends in: a name has 255 of them at most."""


def drafts_of(path: Path) -> Iterator[Path]:
    """The files that a process has left which was killed while it wrote a file."""
    return path.parent.glob(f".{'[0-9a-f]' * 2 * _RANDOM}.{glob.escape(_tail(path))}")


def _tail(path: Path) -> str:
    """What a draft's name ends in: the wanted name, of a long one its digest and its end."""
    name = os.fsencode(path.name)
    if len(name) <= _KEPT:
        return path.name
    return f"{hashlib.sha256(name).hexdigest()[:_RANDOM]}.{name[-_KEPT:].decode('utf-8', 'ignore')}"


@contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the wanted name when the block ends well and vanishes when it does not.

    It is a new file beside the wanted one under a name that nobody can foresee, so that neither another thread nor a
    link that somebody has put there is written through. What is there before is replaced in one step, or stays.
    """
    wanted = Path(path)
    draft = wanted.with_name(f".{secrets.token_hex(_RANDOM)}.{_tail(wanted)}")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # fails where anything has that name
    try:
        yield draft
        os.replace(draft, wanted)
    finally:
        draft.unlink(missing_ok=True)

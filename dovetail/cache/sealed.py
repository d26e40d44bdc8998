"""Entries on disk of what was made, not traced: lines with their form, what they are of, key and digest, and a body."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from .head import NoEntry, open_entry, read_title
from .trust import doubt

_LONGEST_TITLE = 2000


def sealed(form: bytes, title: str, key: str, body: bytes) -> bytes:
    """The lines that go before the body of an entry of a form, which lies under a key."""
    of = json.dumps(title)[1:-1].encode()[:_LONGEST_TITLE]
    return form + of + b"\n" + key.encode() + b"\n" + _digest(body) + b"\n"


def read_sealed(path: Path, form: bytes, key: str) -> bytes:
    """The body of an entry of a form that lies under a key.

    Raises NoEntry where it is of another form or key, is damaged, or somebody else could have written it, and OSError
    where it cannot be opened.
    """
    with open_entry(path) as file:
        why = doubt(os.fstat(file.fileno()), path)
        if why:
            raise NoEntry(why)
        read_title(file, form)
        own, digest = (file.readline(100).removesuffix(b"\n") for _ in range(2))
        body = file.read()
    if own != key.encode():
        raise NoEntry("it is of something else")
    if digest != _digest(body):
        raise NoEntry("it is damaged")
    return body


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=20).hexdigest().encode()

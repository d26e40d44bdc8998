"""Forms in bodies: their fields as JSON, so that they are read like any other body, and their files as bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ...compiler.errors import UsageError

_TEXTS = frozenset({"prompt", "negative_prompt", "model", "size", "user", "quality", "response_format",
                    "output_format", "background", "input_fidelity", "moderation"})  # fmt: skip
_CHARSETS = (b"utf-8", b"utf8", b"utf_8", b"us-ascii", b"ascii")
_FILES, _FIELDS, _FIELD = 4, 40, 2**17


class _InMemory(MultiPartParser):
    """Keeps files in memory: the body that they are in is there already."""

    spool_max_size = 2**40


async def read_form(request: Request, files: Collection[str], most: int) -> tuple[bytes, dict[str, bytes]]:
    """The fields of a form as JSON, and its files.

    Args:
        request: has the form.
        files: the names of files that it may have; ``image[]`` is ``image`` too.
        most: the bytes of the largest body.

    Raises UsageError for what is no form in UTF-8, and for files and fields that are there twice.
    """
    _check_charset(request)
    body = await request.body()

    async def parts() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        parser = _InMemory(request.headers, parts(), max_files=_FILES, max_fields=_FIELDS, max_part_size=_FIELD)
        items = (await parser.parse()).multi_items()
    except MultiPartException as error:
        raise UsageError(f"the form cannot be read: {error.message[:200]}") from error
    except Exception as error:  # what a parser raises for damaged forms is of many kinds
        raise UsageError("the form cannot be read") from error
    fields: dict[str, Any] = {}
    found: dict[str, bytes] = {}
    for key, value in items:
        name = key.removesuffix("[]")
        if name in fields or name in found:
            raise UsageError(f"the form has {name[:100]} twice: one picture at a time", field=name[:100])
        if isinstance(value, UploadFile):
            if name not in files:
                raise UsageError(f"the form has no use for a file {name[:100]!r}", field=name[:100])
            found[name] = await value.read()
        elif name in files:
            raise UsageError(f"{name} has to be a file of the form: pictures are taken inline only", field=name)
        else:
            fields[name] = _value(name, value)
    return json.dumps(fields).encode("utf-8", "replace"), found


def _check_charset(request: Request) -> None:
    """Raises UsageError for a form in another charset: the parser decodes by whatever is named, which may take long."""
    _, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise UsageError("forms are taken in UTF-8: leave the charset out of the Content-Type")


def _value(name: str, text: str) -> Any:
    """What a field says: a text, or a number, a truth or an object as JSON has it."""
    if name in _TEXTS or len(text) > 10_000:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value

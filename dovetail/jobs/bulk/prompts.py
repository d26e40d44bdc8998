"""Reads a file of prompts: a prompt a line, or a JSON object a line."""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt, TypeAdapter, ValidationError

from ...compiler.errors import UsageError
from ...compiler.printable import half_character
from ...compiler.schema_errors import told_of
from ...lora.requested import taken_from
from ..job import Job

_JSON = (".jsonl", ".ndjson")
_MOST = 2**26
"""Bytes of a file of prompts: what has more is no such file."""


class Asked(BaseModel):
    """What a line of JSON says; all but the prompt may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str
    negative_prompt: str | None = None
    width: StrictInt | None = None
    height: StrictInt | None = None
    steps: StrictInt | None = None
    guidance: float | None = None
    cfg_scale: float | None = None
    seed: StrictInt | None = None
    loras: list[str] | None = None


@dataclass(frozen=True)
class Line:
    """A line of a file of prompts: its number, which is 1 for the first, and its job, or why there is none."""

    number: int
    job: Job | None = None
    error: str = ""


def read_prompts(file: Path, job: Job) -> list[Line]:
    """The lines of a file that say something; what a line does not say is as in ``job``.

    A line without a seed has that of ``job`` and the number of lines before it. A line that cannot be read has an error
    and hinders no other. Raises UsageError for a file that cannot be read, has no line, or begins with a text and has
    JSON later.
    """
    texts = _read(file).split("\n")  # JSON may have other ends of lines within its texts
    is_json = file.suffix.lower() in _JSON or next((one for one in texts if one.strip()), "").lstrip().startswith("{")
    if not is_json:
        _refuse_json(file, texts)
    lines = [
        _line(number, text.strip(), is_json, replace(job, seed=job.seed + number - 1))
        for number, text in enumerate(texts, start=1)
        if text.strip()
    ]
    if not lines:
        raise UsageError(f"{file} has no prompt: write one a line")
    return lines


def _refuse_json(file: Path, texts: list[str]) -> None:
    later = next((number for number, text in enumerate(texts, start=1) if _is_object(text)), None)
    if later is not None:
        raise UsageError(
            f"line {later} of {file} is JSON, and its first line is a text: write all lines as JSON, or none of them"
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MOST:
            raise UsageError(f"{file} has more than {_MOST >> 20} MiB: name a text file with a prompt a line")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}: name a text file with a prompt a line") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text in UTF-8: save it as such, with a prompt a line") from error


def _line(number: int, text: str, is_json: bool, job: Job) -> Line:
    try:
        return Line(number, _asked(text, job) if is_json else _with_prompt(job, text, ()))
    except UsageError as error:
        return Line(number, error=str(error))


def _asked(text: str, job: Job) -> Job:
    """The job of a line of JSON; raises UsageError for one that cannot be read."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", "it is nested too deeply")
        raise UsageError(f'this is no JSON ({why}): write {{"prompt": "a cat", "seed": 1}} in each line') from error
    unknown = [key for key in said if key not in Asked.model_fields] if isinstance(said, dict) else []
    if unknown:
        near = difflib.get_close_matches(unknown[0], Asked.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"a line has no use for {unknown[0][:40]!r}: it may say {', '.join(Asked.model_fields)}{hint}")
    try:
        asked = _adapter().validate_python(said)
    except ValidationError as error:
        raise UsageError(told_of(error)) from error
    _check_texts(asked)
    given: dict[str, Any] = asked.model_dump(exclude_none=True, exclude={"prompt", "loras"})
    return _with_prompt(replace(job, **given), asked.prompt, asked.loras or ())


def _check_texts(asked: Asked) -> None:
    """Raises UsageError for half of a character, which JSON can write and no text in UTF-8 can hold."""
    for text in (asked.prompt, asked.negative_prompt or "", *(asked.loras or ())):
        if half := half_character(text):
            raise UsageError(f"{half!a} is half of a character: write it whole, or leave it out")


@functools.cache
def _adapter() -> TypeAdapter[Asked]:
    return TypeAdapter(Asked)


def _with_prompt(job: Job, prompt: str, loras: Sequence[str]) -> Job:
    """A job with a prompt, without the LoRAs that stand in it, which it has then, behind those that it has."""
    plain, inside = taken_from(prompt)
    return replace(job, prompt=plain, loras=(*job.loras, *named_loras([*loras, *inside])))


def named_loras(texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """LoRAs as jobs name them, from ``NAME:SCALE``; raises UsageError for a scale that is no number."""
    return tuple(map(_named, texts))


def _named(text: str) -> tuple[str, float]:
    name, colon, tail = text.rpartition(":")
    if not colon:
        return text, 1.0
    try:
        scale = float(tail)
    except ValueError:
        scale = math.nan
    if not name or not math.isfinite(scale):
        raise UsageError(
            f"cannot read LoRA {text[:80]!r}: {tail[:40]!r} is no scale: write NAME:SCALE, as in style:0.8"
        )
    return name, scale

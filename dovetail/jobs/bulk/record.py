"""The file beside the pictures of a list that says what is done, by which a run that ended is gone on with."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ...compiler.atomic_write import drafts_of, written_beside
from ...compiler.errors import DovetailError, UsageError
from ..job import Job
from .prompts import Line

_VERSION = 1
_FEW = 8
_QUICK = 256
"""A file of so many lines is written at each change, for that takes no time."""
_PAUSE = 20
"""So many times as long as writing a longer one took passes before it is written again."""


_LONGEST = 255
"""Bytes of a file's name."""


def _plain(name: str) -> str:
    is_one = Path(name).name == name and name not in ("", "..") and "\0" not in name
    if not is_one or len(name.encode()) > _LONGEST:
        raise ValueError("it is no name of a file beside it")
    return name


class Done(BaseModel):
    """What is known of a line: the picture's files, or why there is none, and what was painted for it."""

    model_config = ConfigDict(extra="forbid")

    of: str
    files: list[Annotated[str, AfterValidator(_plain)]] = Field(default_factory=list)
    error: str = ""
    seed: int = 0
    seconds: float = 0.0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: int
    options: dict[str, str]
    seed: int
    lines: dict[int, Done] = Field(default_factory=dict)


class Record:
    """What is done of a list of prompts, which a file keeps.

    It is written whole: at each change while it is short, and when it is long, so seldom that this takes a twentieth of
    the time, and at the end (`changed`).

    Args:
        path: the file.
        options: what else pictures depend on, as it was typed, by the names of options.
        seed: that of the first line, where the record is new.
    """

    def __init__(self, path: Path, options: Mapping[str, str], seed: int) -> None:
        self.path = path
        self._next = 0.0
        self._file = _read(path) or _File(version=_VERSION, options=dict(options), seed=seed)
        self.is_new = not self._file.lines
        self._check_options(options)

    @classmethod
    def beside(cls, output: Path) -> Path:
        """The file that is kept beside pictures that are named after ``output``."""
        return output.with_name(f"{output.stem}.jobs.json")

    @property
    def seed(self) -> int:
        """The seed of the first line: that with which the list was begun."""
        return self._file.seed

    @classmethod
    @contextlib.contextmanager
    def held(cls, output: Path) -> Iterator[None]:
        """Keeps other processes from the same list meanwhile; raises UsageError where one has it."""
        path = cls.beside(output)
        file = path.with_name(f".{path.name}.lock")
        lock = FileLock(file)
        try:
            file.touch()  # which says why a file cannot be made, as the lock does not
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(f"another process works on {path}: wait for it, or name another file, -o") from error
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}: name a file in another folder, -o") from error
        try:
            for draft in drafts_of(path):
                draft.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def left(self, lines: Sequence[Line]) -> list[Line]:
        """The lines that are to be painted: those that are not done, or whose picture is gone.

        Raises UsageError where a line is done and says something else now.
        """
        done = {line.number: one for line in lines if (one := self._done(line.number)) is not None}
        changed = [line.number for line in lines if line.number in done and done[line.number].of != digest(line.job)]
        if changed:
            some = ", ".join(map(str, changed[:_FEW])) + (" and more" if len(changed) > _FEW else "")
            raise UsageError(
                f"{len(changed)} of the {len(done)} pictures that are done would be others now, for their lines or "
                f"options have changed (line {some}): name another file, -o, or remove these pictures to have them "
                f"painted anew, or {self.path} for all"
            )
        return [line for line in lines if line.number not in done]

    def done(self, line: Line, files: Sequence[Path], seconds: float) -> None:
        """Notes that a line is painted."""
        names = [file.name for file in files]
        seed = line.job.seed if line.job is not None else 0
        self._note(line, Done(of=digest(line.job), files=names, seed=seed, seconds=round(seconds, 3)))

    def failed(self, line: Line, error: str) -> None:
        """Notes that a line cannot be painted, and why; it is tried again the next time."""
        self._note(line, Done(of=digest(line.job), error=error))

    def _note(self, line: Line, done: Done) -> None:
        self._file.lines[line.number] = done
        if len(self._file.lines) <= _QUICK or time.monotonic() >= self._next:
            self.write()

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Has the file say all that was noted in the block, however that ends."""
        try:
            yield
        finally:
            self.write()

    def write(self) -> None:
        """Writes the file; raises DovetailError where that cannot be."""
        began = time.monotonic()
        text = json.dumps(self._file.model_dump(exclude_defaults=True), indent=1, ensure_ascii=False)
        try:
            with written_beside(self.path) as draft:
                draft.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise DovetailError(f"cannot write {self.path}: {error.strerror}: make room, and run it again") from error
        ended = time.monotonic()
        self._next = ended + (ended - began) * _PAUSE

    def _done(self, number: int) -> Done | None:
        """What is known of a line that is painted, if its picture is still there."""
        one = self._file.lines.get(number)
        is_there = one is not None and one.files and all(self.path.with_name(name).is_file() for name in one.files)
        return one if is_there else None

    def _check_options(self, options: Mapping[str, str]) -> None:
        before = self._file.options
        if self.is_new or before == options:
            self._file.options = dict(options)
            return
        told = [
            f"{name} was {before.get(name) or 'not given'} and is {options.get(name) or 'not given'}"
            for name in sorted({*before, *options})
            if before.get(name) != options.get(name)
        ]
        raise UsageError(
            f"{self.path} is of a list with other options ({'; '.join(told)}): give the same, name another file, -o, "
            "or remove it to begin anew"
        )


def digest(job: Job | None) -> str:
    """What tells jobs apart."""
    return hashlib.sha256((job.to_json() if job is not None else "").encode()).hexdigest()[:16]


def _read(path: Path) -> _File | None:
    try:
        text = path.read_text(encoding="utf-8")
        found = _File.model_validate_json(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} does not say what is done of a list: name another file, -o, or remove it") from error
    if found.version != _VERSION:
        raise UsageError(f"{path} is of another version of dovetail: name another file, -o, or remove it")
    return found


def named(output: Path, number: int, most: int) -> Path:
    """The file of the picture of a line, among lines with so high a number."""
    return output.with_stem(f"{output.stem}-{number:0{max(3, len(str(most)))}}")

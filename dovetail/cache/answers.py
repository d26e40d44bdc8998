"""What commands said of a pipeline, kept on disk: what is asked again of the same is not planned again.

An answer is taken where everything that was looked at for it is as it was: what was typed, the devices with their
speeds, each file of the pipeline, the sources of dovetail and of the libraries that have the model's code (by the size
and the times of each file), the versions of all that is installed, and the environment variables that these read. A
pipeline that brings code of its own is not kept: what that looks at nobody knows. An entry is a line that names the
form, one that says what it is of, one with its key, one with a digest, and the answer as JSON; reading one runs
no code, and one that lies under another key than its own is passed over.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import folder
from .head import ANSWERED, NoEntry
from .sealed import read_sealed, sealed
from .surroundings import surroundings

logger = logging.getLogger(__name__)
_ours = logging.getLogger(__name__.partition(".")[0])

_LIBRARIES = ("diffusers", "transformers", "peft", "accelerate")
_PREFIXES = ("DOVETAIL_", "HF_", "CUDA_", "OMP_", "MKL_")
_MOST_FILES = 10_000
_PARTS = (".safetensors", ".gguf", ".json", ".bin", ".pt", ".pth", ".ckpt")
"""The endings of files that lead to others beside them, and of those."""
_SHARE = 8
"""An answer that takes more than this part of all that may be kept is not."""


class CannotBeKeptError(Exception):
    """What an answer depends on cannot be told; the message says what."""


@dataclass(frozen=True)
class Answer:
    """What was said, as JSON has it, and the warnings on the way, each with its logger.

    ``made`` is when, in seconds since 1970, of one that was kept; 0 of one that was just made.
    """

    told: Any
    warnings: tuple[tuple[str, str], ...]
    made: float = 0.0

    @property
    def kept(self) -> str:
        """A sentence which says that it was made earlier; empty where it was not."""
        if not self.made:
            return ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.made))
        return f"This was planned on {when}, and kept since nothing has changed ({folder.SWITCH}=0 plans again)."


def key_of(asked: object, places: Iterable[Path], files: Iterable[Path] = ()) -> str:
    """The key of an answer: equal where all is equal that it depends on.

    Args:
        asked: what was typed and what of this machine counts: plain values, paths, and dataclasses of such.
        places: the folders of models that are read, whole.
        files: files that are read, with those that lie beside them: an index or a part of several leads to others.

    Raises CannotBeKeptError for a value that has no content, and for places with code, or with too many files.
    """
    stamps = [list(_of_model(place)) for place in places], [list(_beside(file)) for file in files]
    told = plain(asked), stamps, _sources(), surroundings(), environment()
    return hashlib.blake2b(repr(told).encode(errors="surrogatepass"), digest_size=20).hexdigest()


@contextmanager
def warnings_noted() -> Iterator[list[tuple[str, str]]]:
    """Collects what is warned of meanwhile, by the name of its logger."""
    found: list[tuple[str, str]] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append((record.name, record.getMessage()))  # type: ignore[method-assign]
    _ours.addHandler(handler)
    try:
        yield found
    finally:
        _ours.removeHandler(handler)


def environment() -> list[tuple[str, str]]:
    """The environment variables that dovetail and libraries below it read, in order."""
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(_PREFIXES))


def plain(value: object) -> object:
    """A value in tuples of numbers and texts, whose `repr` says all of it; raises CannotBeKeptError for any other."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Path):
        return "path", os.path.abspath(value)
    if isinstance(value, Enum):
        return type(value).__name__, value.name
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *(plain(getattr(value, one.name)) for one in fields(value))
    if isinstance(value, Mapping):
        return "mapping", *((plain(key), plain(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return "sequence", *map(plain, value)
    if isinstance(value, (set, frozenset)):
        return "set", *sorted(map(plain, value), key=repr)
    raise CannotBeKeptError(f"a {type(value).__name__} says nothing that could be compared")


def read(key: str) -> Answer | None:
    """The answer of a key; None where there is none, or it is damaged or somebody else could have written it."""
    if not folder.is_on() or folder.why_not_believed():
        return None
    path = folder.path_of(key, folder.ANSWER)
    try:
        found = _read(path, key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, NoEntry) as error:
        logger.warning("the kept answer %s is not used: %s; it is made and written again", path, str(error))
        return None
    folder.touch(key, folder.ANSWER)
    return found


def keep(key: str, title: str, answer: Answer) -> None:
    """Writes an answer; ``title`` says of what it is. Where that cannot be, nothing is kept and the log says so."""
    most = folder.limit() if folder.is_on() and not folder.why_not_believed() else 0
    body = json.dumps([answer.told, answer.warnings, time.time()]).encode()
    head = sealed(ANSWERED, title, key, body)
    if len(head) + len(body) > most // _SHARE:
        return
    try:
        folder.write(key, [head, body], most, folder.ANSWER)
    except OSError as error:
        logger.info("the answer is not kept in %s: %s", folder.place(), str(error))


def _read(path: Path, key: str) -> Answer:
    body = read_sealed(path, ANSWERED, key)
    try:
        told, warnings, made = json.loads(body)
        return Answer(told, tuple((str(name), str(text)) for name, text in warnings), min(float(made), time.time()))
    except (ValueError, TypeError) as error:
        raise NoEntry("it cannot be read") from error


def _of_model(place: Path) -> Iterator[tuple[object, ...]]:
    """Each file of a model's folder with its size and times, where none of them is code."""
    for file in _files(place):
        if file.endswith(".py"):
            raise CannotBeKeptError(f"{file} is code, which may look at anything")
        yield _stamp(file)


def _beside(file: Path) -> Iterator[tuple[object, ...]]:
    """A file, or all in a folder, and weights that lie beside it, each with its size and times."""
    if file.is_dir():
        yield from map(_stamp, _files(file))
        return
    named = (one.path for one in os.scandir(file.parent) if one.name.endswith(_PARTS) and one.is_file())
    yield from map(_stamp, [os.fspath(file), *_few(named, file.parent)])


def _stamp(file: str) -> tuple[object, ...]:
    found = os.stat(file)
    return os.path.abspath(file), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _files(place: Path) -> list[str]:
    """All files of a folder; raises CannotBeKeptError for very many."""
    walked = (os.path.join(at, name) for at, _, names in os.walk(place, followlinks=True) for name in names)
    return _few((one for one in walked if "__pycache__" not in one), place)


def _few(files: Iterable[str], place: Path) -> list[str]:
    """The names of files in order; raises CannotBeKeptError for very many."""
    found = sorted(itertools.islice(files, _MOST_FILES + 1))
    if len(found) > _MOST_FILES:
        raise CannotBeKeptError(f"{place} has more than {_MOST_FILES} files")
    return found


def _sources() -> list[list[tuple[object, ...]]]:
    """The files of dovetail and of the libraries that have the models' code, each with its size and times."""
    specs = (find_spec(name) for name in _LIBRARIES)
    places = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]
    return [*own_sources(), *([_stamp(file) for file in _files(place)] for place in places)]


def own_sources() -> list[list[tuple[object, ...]]]:
    """The files of dovetail, each with its size and times."""
    face = Path(__file__).parents[1]
    own = [face / name if (face / name).is_dir() else face.parent / name for name in ("compiler", "passes", "runtime")]
    return [[_stamp(file) for file in _files(place)] for place in (face, *own)]

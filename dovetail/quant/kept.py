"""Files of packed weights that are kept for the next start, in a folder of the cache, each under its key.

A key says what was packed and how: each file of weights by its path, size and times, the bytes of each weight there,
the type it got, and the version of the packer. So a source that is written anew is packed anew. A file is written
beside its place and takes its name when it is whole; one process at a time packs what has one key, and the others find
the file when they come to it. Beside it lies what it is known by, its header and some blocks of its data
(`FileIdentity`), so that one that was cut off or written over since is packed anew. Where it cannot be kept, as on a
full disk, weights are packed into memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..cache import folder
from ..cache.trust import doubt
from ..compiler.atomic_write import written_beside
from ..compiler.checkpoints.entries import StoredFile
from ..compiler.checkpoints.identity import FileIdentity
from ..compiler.checkpoints.index import WeightIndex
from ..compiler.checkpoints.quantized_types import FLOAT8
from ..compiler.devices.probe import probe_host
from ..compiler.errors import DovetailError, WeightError
from ..compiler.units import format_bytes
from ..convert.conversion import Conversion
from ..convert.files import ARCHITECTURE
from ..convert.types import Converted
from ..runtime.store.opened_file import hold

logger = logging.getLogger(__name__)

PACKER = 1
"""The version of what packs weights: another one has all be packed anew."""

TITLE = "general.name"
_ENDING, _KNOWN = ".gguf", ".known"
_ABANDONED = 3600.0
"""Seconds after which a draft or a lock is what a process left that was killed."""
_in_memory: dict[str, Path] = {}
"""Files without a name in this process's memory, by key; they last as long as it does."""


def place() -> Path:
    """The folder of packed weights, which may not be there yet."""
    return folder.place() / "weights"


def path_of(key: str) -> Path:
    """Where the packed weights of a key are, or would be."""
    return place() / f"{key}{_ENDING}"


def key_of(weights: Sequence[Converted]) -> str:
    """The key of weights that get other types: equal where the same bytes of the same files become the same."""
    pieces = [piece for weight in weights for piece in weight.entry.pieces]
    files = {one: number for number, one in enumerate(dict.fromkeys(piece.file for piece in pieces))}
    told: list[object] = [PACKER]
    told += [(os.path.realpath(one.path), one.nbytes, one.modified, one.changed[:1]) for one in files]
    for one in weights:
        lies = [(files[piece.file], piece.start, piece.end) for piece in one.entry.pieces]
        told.append((one.name, lies, str(one.entry.dtype), one.entry.shape, one.quant, str(one.through)))
    return hashlib.blake2b(repr(told).encode(errors="surrogatepass"), digest_size=20).hexdigest()


def found(key: str, weights: Sequence[Converted], *, tells: bool = True) -> WeightIndex | None:
    """The index of the packed weights of a key, where they are kept whole; None where they are not, or are in doubt.

    ``tells`` has a file that is damaged be said.
    """
    level = logging.WARNING if tells else logging.DEBUG
    if key in _in_memory:
        return WeightIndex.of_file(_in_memory[key])
    path = path_of(key)
    if not folder.is_on() or not path.is_file() or why_not_believed(path):
        return None
    try:
        index = WeightIndex.of_file(path)
        hold(next(iter(index.values())).pieces[0].file)  # who clears the cache takes nothing from this process
        is_known = path.with_suffix(_KNOWN).read_text("utf-8") == _known(path)
    except FileNotFoundError:  # it is packed at this moment, or was not to the end
        return None
    except (WeightError, OSError, UnicodeDecodeError) as error:
        why = str(error).removesuffix(": download it again")
        logger.log(level, "the packed weights %s are not used: %s", path, why)
        return None
    if not is_known or not _is_of(index, weights):
        logger.log(level, "the packed weights %s are not used: they are not what was packed there", path)
        return None
    return index


def _known(path: Path) -> str:
    """What a file is known by; raises WeightError where it cannot be read."""
    identity = FileIdentity.of(StoredFile.at(path))
    return f"{identity.nbytes} {identity.digest}"


def _is_of(index: WeightIndex, weights: Sequence[Converted]) -> bool:
    """Whether an index has just these weights in their types; 8-bit floats lie as integers in GGUF."""
    types = {one.name: ("" if one.quant == FLOAT8 else one.quant, one.nbytes) for one in weights}
    return types == {name: (entry.quant, entry.nbytes) for name, entry in index.items()}


def why_not_believed(path: Path) -> str:
    """Why a file, or the folder it lies in, could be somebody else's work, with the way out; else empty."""
    with suppress(OSError):
        return folder.why_not_believed() or doubt(place().stat(), place()) or doubt(path.stat(), path)
    return ""


def made(key: str, title: str, weights: Sequence[Converted], advance: Callable[[], object]) -> WeightIndex:
    """The index of the packed weights of a key, which are packed and kept.

    Raises WeightError where a weight cannot be packed, and DovetailError where neither the disk nor memory has room.
    """
    metadata = {ARCHITECTURE: "dovetail", TITLE: title}
    conversion = Conversion(path_of(key), tuple(weights), metadata, private=True)
    why = _why_not_kept()
    if not why:
        try:
            index = _kept(key, conversion, advance)
            if index is not None:
                return index
            why = f"{conversion.target} cannot be read again"
        except WeightError:
            raise
        except (DovetailError, OSError, NotImplementedError) as error:  # the last where files have no locks
            why = str(error)
    logger.warning("the packed weights of %s are not kept, and packed again at the next start: %s", title, why)
    return _in_memory_of(key, conversion, advance)


def _why_not_kept() -> str:
    if not folder.is_on():
        return f"{folder.SWITCH} switches that off"
    return why_not_believed(place())


def _kept(key: str, conversion: Conversion, advance: Callable[[], object]) -> WeightIndex | None:
    """Packs into the folder, unless another process has done so meanwhile."""
    folder.make(place())
    lock = place() / f"{key}.lock"
    with _locked(lock, conversion.metadata[TITLE]):
        index = found(key, conversion.weights, tells=False)  # who asks for this has looked before
        if index is None:
            for draft in place().glob(f".*.{key}{_ENDING}"):  # of a process that was killed, for this one has the lock
                draft.unlink(missing_ok=True)
            known = path_of(key).with_suffix(_KNOWN)
            known.unlink(missing_ok=True)
            conversion.run(advance)
            with written_beside(known) as draft:
                draft.write_text(_known(path_of(key)), "utf-8")
            index = found(key, conversion.weights)
    return index


@contextmanager
def _locked(path: Path, title: str) -> Iterator[None]:
    """Holds a lock that other processes respect; says so where one of them has it for now."""
    lock = FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("another process packs %s: this one waits for it", title)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _in_memory_of(key: str, conversion: Conversion, advance: Callable[[], object]) -> WeightIndex:
    """Packs into a file in memory that has no name, and is gone with the process."""
    if not hasattr(os, "memfd_create"):
        raise DovetailError(
            f"{conversion.after} bytes of packed weights cannot be kept, and this system has no files in memory: name "
            f"another folder in {folder.PLACE}, or convert the weights (dovetail convert)"
        )
    free = probe_host()[1]
    if conversion.after > free:
        raise DovetailError(
            f"the packed weights take {format_bytes(conversion.after)}, and {format_bytes(free)} of memory are free: "
            f"name a folder on a disk with room in {folder.PLACE}"
        )
    try:
        _in_memory[key] = _written_to_memory(f"dovetail-{key[:8]}", conversion, advance)
    except OSError as error:
        raise DovetailError(
            f"the packed weights, {format_bytes(conversion.after)}, cannot be written to memory either: "
            f"{error.strerror or error}: name a folder on a disk with room in {folder.PLACE}"
        ) from error
    return WeightIndex.of_file(_in_memory[key])


def _written_to_memory(name: str, conversion: Conversion, advance: Callable[[], object]) -> Path:
    """The path of a file in memory with what a conversion writes; raises as that does."""
    file = os.memfd_create(name)
    path = Path(f"/proc/{os.getpid()}/fd/{file}")
    try:
        conversion.write_to(path, advance)
    except BaseException:
        os.close(file)
        raise
    return path


def files() -> Iterator[tuple[Path, int, float]]:
    """What is kept: each file with its bytes, and when it was packed, in seconds since the epoch."""
    for path in sorted(place().glob(f"*{_ENDING}")):
        with suppress(OSError):
            if not path.name.startswith("."):
                yield path, path.stat().st_size, path.stat().st_mtime


def title_of(path: Path) -> str:
    """What a file is of: a component and its type; empty where it is damaged."""
    try:
        return str(WeightIndex.of_file(path).metadata.get(TITLE, ""))
    except WeightError:
        return ""


def clear() -> tuple[int, int]:
    """Removes all packed weights that nobody packs now; returns their number and bytes. Raises OSError.

    Who has loaded one goes on with it.
    """
    count = nbytes = 0
    for path, size, _ in list(files()):
        path.unlink(missing_ok=True)
        path.with_suffix(_KNOWN).unlink(missing_ok=True)
        count, nbytes = count + 1, nbytes + size
    for left in (*place().glob(".*"), *place().glob("*.lock"), *place().glob(f"*{_KNOWN}")):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink(missing_ok=True)
    return count, nbytes


def facts() -> list[dict[str, Any]]:
    """What is kept, as data."""
    return [{"key": path.stem, "weights": title_of(path), "bytes": size, "used": when} for path, size, when in files()]

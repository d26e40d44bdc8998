"""One open file of weights: bytes read from it, views of it, and what the system is told about it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import sys
import threading
import warnings
from pathlib import Path

import torch

from ...compiler.checkpoints.entries import StoredFile
from ...compiler.errors import WeightError
from ..devices.fork import renew_after_fork
from .counter import READ
from .page_cache import read_uncached
from .readahead import read_ahead

_PAGE = mmap.ALLOCATIONGRANULARITY
_held: dict[StoredFile, int] = {}
"""The descriptors of files that are held open, as long as this process lasts."""


def hold(file: StoredFile) -> None:
    """Keeps a file open from now on, so that it can be read still where it is removed before its first use.

    Raises WeightError when it cannot be opened or is another one by now.
    """
    if file in _held:
        return
    try:
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise unreadable(file.path, error) from error
    try:
        file.check(descriptor)
    except WeightError:
        os.close(descriptor)
        raise
    _held[file] = descriptor


class OpenedFile:
    """A file that stays open, and is checked at each use to be the one whose header was read.

    Raises WeightError when it cannot be opened or is another one by now.
    """

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        self._map: mmap.mmap | None = None
        self.renew()
        renew_after_fork(self)
        try:
            self._raw = open(os.dup(_held[file]) if file in _held else file.path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise unreadable(file.path, error) from error
        file.check(self._raw.fileno())

    def renew(self) -> None:
        """Makes its lock anew, in a process that was forked."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises WeightError when views are out and the file is not what it was any more."""
        if self._map is not None:
            self.file.check(self._raw.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_raw"):
            self._raw.close()

    def read(self, start: int, memory: torch.Tensor) -> None:
        """Fills bytes of host memory with those from a start on."""
        self.file.check(self._raw.fileno())
        left = memory.numpy().data
        try:
            while left:
                count = self._read_some(start, left)
                if not count:
                    raise OSError(f"it ends at byte {start}, the weight {len(left)} later")
                READ.add(count)
                start, left = start + count, left[count:]
        except OSError as error:
            raise unreadable(self.file.path, error) from error

    def _read_some(self, start: int, memory: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._raw.fileno(), [memory], start)
        with self._lock:  # a system where a read without a position of its own is all there is
            self._raw.seek(start)
            return self._raw.readinto(memory) or 0

    def view(self, start: int, end: int) -> torch.Tensor:
        """Bytes of the file as private memory: nothing is read before it is used, and writing changes no file.

        Who writes to the file meanwhile changes what was not used yet, and who cuts it short ends the process at its
        next use (SIGBUS): `check` finds both out before.
        """
        self.file.check(self._raw.fileno())
        with self._lock:
            if self._map is None:
                try:
                    self._map = _private_map(self._raw.fileno())
                except (OSError, ValueError) as error:
                    raise unreadable(self.file.path, error) from error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.frombuffer(self._map, dtype=torch.uint8, count=end - start, offset=start)

    def bring(self, start: int, end: int) -> None:
        """Returns when views of a range are in memory, so that who computes with them waits for no disk."""
        self.file.check(self._raw.fileno())
        try:
            read_uncached(self._raw.fileno(), start, end)
        except OSError as error:
            raise unreadable(self.file.path, error) from error
        if self._map is not None and _POPULATE is not None:
            first = start // _PAGE * _PAGE
            with contextlib.suppress(OSError):  # a system that does not know it; the pages come one by one then
                self._map.madvise(_POPULATE, first, end - first)

    def advise(self, start: int, end: int) -> None:
        """Has the system read a range ahead, all of it; returns at once."""
        if hasattr(os, "posix_fadvise"):
            read_ahead(self, start, end)

    def will_need(self, start: int, end: int) -> None:
        """Tells the system that a range will be read; it reads no more of it than it has made its rule."""
        self._tell("POSIX_FADV_WILLNEED", start, end)

    def release(self, start: int, end: int, streams: bool) -> None:
        """Takes a range out of this process's memory and, if the file only streams through, out of the system's."""
        first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
        if self._map is not None and first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        if streams:
            self._tell("POSIX_FADV_DONTNEED", start, end)

    def _tell(self, advice: str, start: int, end: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._raw.fileno(), start, end - start, getattr(os, advice))


def _private_map(descriptor: int) -> mmap.mmap:
    """Maps a file as memory of which nothing is set aside, where the system can: it may be larger than all memory."""
    if not NO_RESERVE:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | NO_RESERVE, prot=rights)


_IS_KNOWN_LINUX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "riscv64", "s390x")
NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if _IS_KNOWN_LINUX else 0)
"""The flag of the system by which a map sets nothing aside; older Pythons do not name it, and 0 is none."""

_POPULATE: int | None = getattr(mmap, "MADV_POPULATE_READ", 22 if _IS_KNOWN_LINUX else None)
"""The advice by which all pages of a range are mapped at once, from Linux 5.14 on; Python does not name it."""


_WAYS_OUT = {
    None: "download it again",  # it ends too early
    errno.EIO: "download it again, or look after the disk",
    errno.ENOENT: "download it again",
    errno.EACCES: "let this user read it",
    errno.EPERM: "let this user read it",
    errno.EMFILE: "let this process open more files (ulimit -n)",
    errno.ENOMEM: "let this process have more address space (ulimit -v)",
}


def unreadable(path: Path, error: Exception) -> WeightError:
    """The error for a file that the system does not let us read."""
    way_out = _WAYS_OUT.get(getattr(error, "errno", None), "see to what the system says, the file may be sound")
    return WeightError(f"{path} cannot be read: {error}: {way_out}")

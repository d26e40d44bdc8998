"""Reads weights from their files: views of the file for the host, bytes straight to every other device.

A weight on the host is a private view of the file in memory, of which nothing is read before it is used. Where the host
can write a device's memory, the bytes go there at once. To any other device they go through two pieces of host memory,
pinned where the device gains, that are used again and again: while one is sent, the other is read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ...compiler.checkpoints.entries import Piece, StoredFile, WeightEntry
from ...compiler.errors import WeightError
from ..devices.accelerator import accelerator_of
from ..devices.fork import renew_after_fork
from ..devices.host_memory import host_memory
from ..devices.ring import Ring
from .opened_file import OpenedFile

_PIECE = 8 * 2**20
_THREADS = 2  # filling fresh memory keeps one busy with page faults
_ALIGNMENT = 64
"""What the address of a matrix in single or double precision is a multiple of, as where PyTorch allocates it.

The CPU's kernels for products of one row add up in another order where it begins elsewhere. Those for other numbers and
other operations were seen not to.
"""


class WeightReader:
    """Reads the weights of any number of files; files stay open, so that one that is replaced is still there."""

    def __init__(self) -> None:
        self._files: dict[StoredFile, OpenedFile] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Makes threads, buffers and locks anew, in a process that was forked; the files stay open."""
        self._rings: dict[torch.device, Ring] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.RLock()

    def check(self) -> None:
        """Raises WeightError when a file changed of which views are out, which would have other numbers by now."""
        for file in list(self._files.values()):
            file.check()

    def read(self, entry: WeightEntry, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A weight on a device, in a dtype; on the host, in its own dtype, a view of the file that may be written to.

        Raises WeightError when the file has changed or cannot be read, or when the weight is packed (`packed`).
        """
        if accelerator_of(device).is_host and self.can_view(entry, dtype):
            return self._view(entry)
        target = torch.empty(entry.shape, dtype=dtype, device=device)
        self.read_into(entry, target)
        return target

    def read_into(self, entry: WeightEntry, target: torch.Tensor) -> None:
        """Fills a contiguous tensor, whose dtype may be another, with a weight.

        It is filled, or on its way on the device's current stream, when this returns. Raises WeightError as `read`.
        """
        if entry.is_packed or tuple(target.shape) != entry.shape:
            raise WeightError(f"{entry.describe()} cannot fill {target.dtype}{list(target.shape)}")
        flat = target.detach().view(-1)
        memory = accelerator_of(target.device).host_view(flat)
        if memory is not None and memory.dtype == entry.dtype:
            self._fill(memory.view(torch.uint8), entry.pieces)
        else:
            self._send(entry, flat if memory is None else memory)

    def bring_view(self, entry: WeightEntry, dtype: torch.dtype) -> torch.Tensor | None:
        """A view of the file whose bytes are in memory when this returns, or None where a weight has to be copied.

        Raises WeightError as `read`.
        """
        if not self.can_view(entry, dtype):
            return None
        view = self._view(entry)
        self._open(entry.pieces[0].file).bring(entry.pieces[0].start, entry.pieces[0].end)
        return view

    def advise(self, entries: Iterable[WeightEntry]) -> None:
        """Has the system read weights ahead, where it can; returns at once."""
        for piece in _pieces(entries):
            self._open(piece.file).advise(piece.start, piece.end)

    def release(self, entries: Iterable[WeightEntry]) -> None:
        """Lets go of memory that views of weights take; a view that was written to has the file's numbers again.

        The system's own copy of the files goes too where all that were opened are larger than the host's memory: the
        next round would find none of it, and others would find their memory taken.
        """
        streams = sum(file.nbytes for file in self._files) > host_memory()
        for piece in _pieces(entries):
            self._open(piece.file).release(piece.start, piece.end, streams)

    def can_view(self, entry: WeightEntry, dtype: torch.dtype) -> bool:
        """Whether what a weight is on the host is a view of its file."""
        is_matrix = len(entry.shape) > 1 and entry.dtype.itemsize >= 4
        alignment = _ALIGNMENT if is_matrix else entry.dtype.itemsize
        aligned = len(entry.pieces) == 1 and entry.pieces[0].start % alignment == 0
        return aligned and dtype == entry.dtype and entry.nbytes > 0 and not entry.is_packed

    def _view(self, entry: WeightEntry) -> torch.Tensor:
        piece = entry.pieces[0]
        flat = self._open(piece.file).view(piece.start, piece.end)
        return flat.view(entry.dtype).view(entry.shape)

    def _open(self, file: StoredFile) -> OpenedFile:
        with self._lock:
            if file not in self._files:
                self._files[file] = OpenedFile(file)
            return self._files[file]

    def _fill(self, memory: torch.Tensor, pieces: Iterable[Piece]) -> None:
        """Fills bytes of host memory with pieces of files, several at once where there is much to read."""
        batches = list(_batches(pieces, _PIECE))
        read_all = self._pool().map if len(batches) > 1 else map
        for _ in read_all(self._read_batch, batches, memory.split(list(map(_nbytes, batches)))):
            pass

    def _read_batch(self, batch: Sequence[Piece], memory: torch.Tensor) -> None:
        """Fills bytes of host memory with pieces of files, one after the other."""
        at = 0
        for piece in batch:
            self._open(piece.file).read(piece.start, memory[at : at + piece.nbytes])
            at += piece.nbytes

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "dovetail-read")
            return self._threads

    def _send(self, entry: WeightEntry, flat: torch.Tensor) -> None:
        """Fills a flat tensor piece by piece, through host memory and, where it must be, another dtype."""
        itemsize = entry.dtype.itemsize
        with self._ring(flat.device) as ring:
            at = 0
            for batch in _batches(entry.pieces, max(_PIECE // itemsize, 1) * itemsize):
                raw = ring.next(_nbytes(batch))
                self._read_batch(batch, raw)
                count = _nbytes(batch) // itemsize
                ring.send(raw.view(entry.dtype), flat[at : at + count])
                at += count

    def _ring(self, device: torch.device) -> Ring:
        with self._lock:
            if device not in self._rings:
                self._rings[device] = Ring(accelerator_of(device))
            return self._rings[device]


def _pieces(entries: Iterable[WeightEntry]) -> Iterator[Piece]:
    return (piece for entry in entries for piece in entry.pieces)


def _batches(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """The pieces, cut so that none has more than so many bytes, as many together as have no more."""
    batch: list[Piece] = []
    room = most
    for piece in pieces:
        for start in range(piece.start, piece.end, most):
            part = Piece(piece.file, start, min(start + most, piece.end))
            if part.nbytes > room:
                yield batch
                batch, room = [], most
            batch.append(part)
            room -= part.nbytes
    if batch:
        yield batch


def _nbytes(batch: Sequence[Piece]) -> int:
    return sum(piece.nbytes for piece in batch)

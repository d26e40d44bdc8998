"""Where the bytes of a weight lie: pieces of files, and what the bytes are. Nothing is read here."""

from __future__ import annotations

import errno
import math
import os
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import accumulate
from pathlib import Path

import torch

from ..errors import WeightError
from .quantized_types import packed_shape, row_bytes

_MOST_DIMENSIONS = 64  # as in PyTorch
_COUNTABLE = 2**59  # numbers of up to 16 bytes, in bytes that PyTorch can count


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was when its header was read; ``modified`` is in nanoseconds.

    Who copies over a file may keep its time (``cp -p``, ``rsync --inplace -t``): ``changed`` has the time that nobody
    sets, and what else that one tells of: links, mode and owner.
    """

    path: Path
    nbytes: int
    modified: int
    changed: tuple[int, ...] = ()

    @classmethod
    def of(cls, path: Path, descriptor: int) -> StoredFile:
        """A file that is open, as it is now."""
        found = os.fstat(descriptor)
        beside = found.st_nlink, found.st_mode, found.st_uid, found.st_gid
        return cls(path, found.st_size, found.st_mtime_ns, (found.st_ctime_ns, *beside))

    @classmethod
    def at(cls, path: Path) -> StoredFile:
        """The file that a path leads to now; raises WeightError where there is none that can be read."""
        try:
            with opened_file(path) as opened:
                return cls.of(path, opened.fileno())
        except OSError as error:
            raise WeightError(f"{path} cannot be read: {error}: name a file of weights that is there") from error

    def check(self, descriptor: int) -> None:
        """Raises WeightError when the file is not what it was any more."""
        now = StoredFile.of(self.path, descriptor)
        if now.nbytes != self.nbytes:
            raise WeightError(f"{self.path} has {now.nbytes} bytes now, it had {self.nbytes}: load it again")
        if now.modified != self.modified or (now.changed != self.changed and now._is_as_linked(self)):
            raise WeightError(f"{self.path} was written to since its header was read: load it again")

    def _is_as_linked(self, before: StoredFile) -> bool:
        """Whether nothing but a write tells of a change: one that was removed, replaced or made read-only is whole."""
        if self.changed[1:] != before.changed[1:]:
            return False
        try:
            return os.stat(self.path).st_ctime_ns == self.changed[0]  # else it was moved
        except OSError:
            return False


def opened_file(path: Path) -> BufferedReader:
    """A file opened to be read; raises OSError where it is none, for a pipe may never answer."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.open("rb")


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a file."""

    file: StoredFile
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """How many bytes it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One weight: the bytes of its pieces, one after the other, and what they are.

    What a file stores is one piece. A range of its rows is one, too (`slice`), one along another axis is many (`part`);
    rows of several weights, or of one in another order, are as many pieces as there are ranges (`joined`). So a weight
    that another layout fuses, splits or turns about is still read from the file as it lies there.

    ``shape`` is that of the numbers. ``quant`` is the type in a GGUF file, empty for any other file and for integers;
    ``dtype`` is that of the numbers, or uint8 where they are packed in blocks. `packed` gives the bytes as a weight.
    """

    pieces: tuple[Piece, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    quant: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in its files."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def is_packed(self) -> bool:
        """Whether its numbers are packed in blocks, and no dtype of PyTorch's can read them."""
        return bool(self.quant) and self.dtype == torch.uint8

    def packed(self) -> WeightEntry:
        """Its bytes as a weight: the rows of a GGUF type, in uint8."""
        return WeightEntry(self.pieces, torch.uint8, packed_shape(self.quant, self.shape))

    def slice(self, start: int, stop: int) -> WeightEntry:
        """Some of its rows, along the first dimension; raises WeightError as `part` does."""
        return self.part(0, ((start, stop),))

    def part(self, axis: int, ranges: Sequence[tuple[int, int]]) -> WeightEntry:
        """Some ranges of it along an axis, one behind the other.

        Raises WeightError for what it does not have, or what is no whole number of blocks.
        """
        for start, stop in ranges:
            if axis >= len(self.shape) or not 0 <= start <= stop <= self.shape[axis]:
                what, where = ("rows", "") if axis == 0 else ("elements", f" on axis {axis} from")
                why = f"has no {what}{where} {start} to {stop}: ask for {what} it has"
                raise WeightError(f"a weight of {list(self.shape)} {why}")
        behind, step = self.shape[axis + 1 :], self._bytes_of(self.shape[axis:]) or 1
        spans = [[self._bytes_of((end, *behind)) for end in one] for one in ranges]
        cuts = [(at + first, at + last) for at in range(0, self.nbytes, step) for first, last in spans]
        shape = (*self.shape[:axis], sum(stop - start for start, stop in ranges), *behind)
        return replace(self, pieces=tuple(_merged(_cut(self.pieces, cuts))), shape=shape)

    def reshaped(self, shape: Sequence[int]) -> WeightEntry:
        """The same bytes in another shape; raises WeightError where it has not as many numbers, or cuts a block."""
        if math.prod(shape) != math.prod(self.shape) or self._bytes_of(tuple(shape)) != self.nbytes:
            raise WeightError(f"a weight of {list(self.shape)} cannot have the shape {list(shape)}")
        return replace(self, shape=tuple(shape))

    @classmethod
    def joined(cls, parts: Sequence[WeightEntry]) -> WeightEntry:
        """The rows of several weights, one after the other; raises WeightError when they are not alike."""
        first = parts[0]
        for part in parts:
            if (part.dtype, part.quant, part.shape[1:]) != (first.dtype, first.quant, first.shape[1:]):
                raise WeightError(f"{part.describe()} and {first.describe()} cannot be joined: they are not alike")
        pieces = tuple(_merged(piece for part in parts for piece in part.pieces))
        return replace(first, pieces=pieces, shape=(sum(part.shape[0] for part in parts), *first.shape[1:]))

    def describe(self) -> str:
        """What it is, for messages: `Q8_0[64, 32]`, `torch.float16[3]`."""
        return f"{self.quant or self.dtype}{list(self.shape)}"

    def _bytes_of(self, shape: tuple[int, ...]) -> int:
        return stored_bytes(shape, self.dtype, self.quant)


def stored_bytes(shape: Sequence[int], dtype: torch.dtype, quant: str) -> int:
    """Bytes of a weight in a file; raises WeightError where a row is no whole number of blocks."""
    if not quant or not shape:
        return math.prod(shape) * dtype.itemsize
    return math.prod(shape[:-1]) * row_bytes(quant, shape[-1])


def can_be_shape(shape: Sequence[object]) -> bool:
    """Whether sizes that a file gives are those of a tensor: few, whole, and no more together than can be counted."""
    if len(shape) > _MOST_DIMENSIONS or not all(type(size) is int and 0 <= size < _COUNTABLE for size in shape):
        return False
    return math.prod(size or 1 for size in shape if isinstance(size, int)) < _COUNTABLE


def _cut(pieces: Sequence[Piece], ranges: Iterable[tuple[int, int]]) -> Iterator[Piece]:
    """The pieces that hold the bytes in ranges, each from the first to before the last."""
    ends = list(accumulate(piece.nbytes for piece in pieces))
    for first, last in ranges:
        for number in range(bisect_right(ends, first), bisect_left(ends, last) + 1 if first < last else 0):
            piece, at = pieces[number], ends[number] - pieces[number].nbytes
            yield Piece(piece.file, piece.start + max(first - at, 0), piece.start + min(last - at, piece.nbytes))


def _merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces, those that meet made one."""
    before: Piece | None = None
    for piece in pieces:
        if before and (before.file, before.end) == (piece.file, piece.start):
            before = replace(before, end=piece.end)
            continue
        if before:
            yield before
        before = piece
    if before:
        yield before


def damaged(path: Path, why: str) -> WeightError:
    """The error for a file that lies about itself."""
    return WeightError(f"{path} is damaged: {clipped(why)}: download it again")


def clipped(text: str) -> str:
    """A text for a message: what a damaged file says may be very long."""
    return text if len(text) < 500 else f"{text[:500]}…"


def check_layout(path: Path, ranges: Sequence[tuple[str, int, int]], start: int, size: int, alignment: int) -> None:
    """Raises WeightError unless weights (name, start, end) follow each other, aligned, from a start to the file's end.

    So none overlaps another, none lies past the end, and no byte belongs to nobody but to fill up to the alignment.
    """
    for name, begin, end in sorted(ranges, key=lambda item: item[1:]):
        if begin != start:
            raise damaged(path, f"{name} begins at byte {begin}, the weights before it let it begin at {start}")
        if end > size:
            raise damaged(path, f"it is cut short: {name} ends at byte {end}, the file at {size}")
        start = -(-end // alignment) * alignment
    if size > start:
        raise damaged(path, f"it is too long: its weights end at byte {start}, the file at {size}")

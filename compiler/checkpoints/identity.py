"""What a file of weights is known by between machines: its size, and a digest of its header and of blocks of its data.

On its own machine a file is known by its path and times (`StoredFile`). A copy has others, and so has one that was
moved. Two models that were trained on from one have files of one size with one header, so that blocks of the data count
too: at both ends and at the borders of 64 equal stretches, so that no 64th of the data lies between two of them. What
changes fewer bytes than that between blocks, and keeps the size, is not seen.

The header is what precedes the first weight. In a file that is neither safetensors nor GGUF (what ``torch.save`` wrote)
its two ends stand for it: names and shapes come first there, and the checksums of all tensors last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

from ..errors import WeightError
from . import gguf_header, safetensors_header
from .entries import StoredFile, opened_file

_BLOCK = 4096
_STRETCHES = 64
_ENDS = 4 * 2**20  # of a file that has no header that is read here
_READ = 2**20


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What equal copies of a file have in common: how many bytes they have, and a digest, as text.

    >>> str(FileIdentity(2048, "5f70bf18a0860070"))
    '2048 bytes, 5f70bf18'
    """

    nbytes: int
    digest: str

    @classmethod
    def of(cls, file: StoredFile) -> FileIdentity:
        """That of a file, of which its header and 9 MiB at most are read.

        Raises WeightError where it is damaged, is not what it was any more, or is written to meanwhile.
        """
        try:
            with opened_file(file.path) as opened:
                file.check(opened.fileno())
                digest = _digest(opened, file, *_data(opened, file))
                file.check(opened.fileno())
        except OSError as error:
            raise WeightError(f"{file.path} cannot be read: {error}: name a file of weights that is there") from error
        return cls(file.nbytes, digest)

    def __str__(self) -> str:
        return f"{self.nbytes} bytes, {self.digest[:8]}"


def _data(opened: BufferedReader, file: StoredFile) -> tuple[int, int]:
    """Where the data begins and ends; what lies around is the header, or stands for one."""
    first = opened.read(9)
    opened.seek(0)
    if first.startswith(gguf_header.MAGIC):
        return gguf_header.header_bytes(file, opened), file.nbytes
    if first.endswith(b"{"):
        return safetensors_header.header_bytes(file, opened), file.nbytes
    return (_ENDS, file.nbytes - _ENDS) if file.nbytes > 2 * _ENDS else (file.nbytes, file.nbytes)


def _digest(opened: BufferedReader, file: StoredFile, start: int, end: int) -> str:
    """The digest of what lies around the data, and of blocks of it."""
    digest = hashlib.sha256(f"{start} {end} ".encode())
    for first, last in ((0, start), (end, file.nbytes), *_blocks(start, end)):
        opened.seek(first)
        for chunk in _chunks(opened, file, last - first):
            digest.update(chunk)
    return digest.hexdigest()


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of the data: all of it, where blocks would be no less."""
    room = end - start - _BLOCK
    if room <= _STRETCHES * _BLOCK:
        yield start, end
        return
    for number in range(_STRETCHES + 1):
        first = start + number * room // _STRETCHES
        yield first, first + _BLOCK


def _chunks(opened: BufferedReader, file: StoredFile, count: int) -> Iterator[bytes]:
    """The next bytes; raises WeightError when there are not so many any more."""
    while count:
        chunk = opened.read(min(count, _READ))
        if not chunk:
            raise WeightError(f"{file.path} ends before its {file.nbytes} bytes: load it again")
        count -= len(chunk)
        yield chunk

"""Reads the header of a GGUF file, and believes nothing that the file's size does not bear out.

A file has a magic number, a version, the number of tensors and of metadata, the metadata, the tensors' names, sizes,
types and offsets, and then, from the next aligned byte on, their data
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Sizes are listed fastest first, so in reverse.

`gguf.GGUFReader` is not used: it trusts every count and length. A file of 40 bytes that claims 2**60 items keeps
it busy for ever, and it makes an array object for each item of each list. Here each number is held against the bytes
that are left before anything is made of it. The numbers and sizes of the types are the gguf package's.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..errors import WeightError
from .entries import (
    Piece,
    StoredFile,
    WeightEntry,
    can_be_shape,
    check_layout,
    clipped,
    damaged,
    opened_file,
    stored_bytes,
)
from .quantized_types import QUANT_TYPES

MAGIC = b"GGUF"
Metadata: TypeAlias = "Mapping[str, str | int | float | bool | tuple[int | float | bool, ...]]"

_VERSIONS = (2, 3)
_LARGEST_HEADER = 100_000_000
_MOST_ITEMS = 2**16  # tensors, and pieces of metadata
_MOST_DIMENSIONS = 8  # GGUF itself has up to 4
_LONGEST_KEPT = 64  # longer lists, such as a vocabulary, are not kept
_LENGTH = struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip


def read_gguf(path: Path) -> tuple[dict[str, WeightEntry], Metadata]:
    """The weights of one file and its metadata (of its lists, short ones of numbers).

    Raises WeightError when it is missing, damaged, or has a tensor of a type that is not supported.
    """
    try:
        with opened_file(path) as opened:
            return _read(_Header(StoredFile.of(path, opened.fileno()), opened))
    except FileNotFoundError as error:
        raise WeightError(f"{path} is missing: download it again, or name another variant") from error
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error}: download it again") from error


def header_bytes(file: StoredFile, opened: BufferedReader) -> int:
    """How many bytes of an opened file precede its weights, or all; raises WeightError as `read_gguf`."""
    entries, _ = _read(_Header(file, opened))
    return min((entry.pieces[0].start for entry in entries.values()), default=file.nbytes)


class _Header:
    """The bytes of a header in order, never more than there are."""

    def __init__(self, file: StoredFile, opened: BufferedReader) -> None:
        self.file = file
        self._opened = opened
        self.at = 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes; raises WeightError when there are not so many."""
        self._require(count, what)
        found = self._opened.read(count)
        if len(found) != count:
            raise self.damaged(f"{what} ends early")
        return found

    def skip(self, count: int, what: str) -> None:
        """Passes over the next bytes."""
        self._require(count, what)
        self._opened.seek(count, 1)

    def _require(self, count: int, what: str) -> None:
        left = min(self.file.nbytes, _LARGEST_HEADER) - self.at
        if count > left:
            raise self.damaged(f"{what} would have {count} bytes at byte {self.at}, where {left} are left")
        self.at += count

    def number(self, code: str, what: str) -> Any:
        """The next number, of a type as `struct` writes it."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]

    def numbers(self, code: str, count: int, what: str) -> tuple[Any, ...]:
        """The next numbers of one type."""
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"), what))

    def count(self, least: int, what: str) -> int:
        """The next number, of things that have a least number of bytes each, so that so many can be there."""
        count: int = self.number("Q", what)
        if count * least > self.file.nbytes - self.at:
            raise self.damaged(f"it would have {count} {what}, and ends {self.file.nbytes - self.at} bytes later")
        return count

    def text(self, what: str) -> str:
        """The next text, which its length comes before."""
        found = self.take(self.number("Q", what), what)
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is no text: {error.reason}") from error

    def skip_text(self, what: str) -> None:
        """Passes over the next text; a vocabulary has hundreds of thousands."""
        self.skip(_LENGTH.unpack(self.take(8, what))[0], what)

    def damaged(self, why: str) -> WeightError:
        """The error for a header that lies."""
        return damaged(self.file.path, why)


def _read(header: _Header) -> tuple[dict[str, WeightEntry], Metadata]:
    _check_version(header)
    tensor_count = _count(header, 8 + 4 + 4 + 8, "tensors")
    metadata = _read_metadata(header, _count(header, 8 + 4 + 1, "pieces of metadata"))
    tensors = dict(_unique(header, [_read_tensor(header) for _ in range(tensor_count)]))
    alignment = _alignment(header, metadata)
    start = -(-header.at // alignment) * alignment
    entries = {name: _entry(header, name, tensor, start, metadata) for name, tensor in tensors.items()}
    ranges = [(name, entry.pieces[0].start, entry.pieces[0].end) for name, entry in entries.items()]
    check_layout(header.file.path, ranges, start, header.file.nbytes, alignment)
    return entries, metadata


def _count(header: _Header, least: int, what: str) -> int:
    count = header.count(least, what)
    if count > _MOST_ITEMS:
        raise header.damaged(f"it would have {count} {what}, at most {_MOST_ITEMS} are supported")
    return count


def _check_version(header: _Header) -> None:
    if header.take(4, "its magic number") != MAGIC:
        raise header.damaged("it does not begin with GGUF")
    version: int = header.number("I", "its version")
    if version & 0xFFFF == 0 and version:
        raise WeightError(f"{header.file.path} is big-endian: convert it to little-endian, as other machines have it")
    if version not in _VERSIONS:
        raise WeightError(f"{header.file.path} has GGUF version {version}, supported are 2 and 3: convert it again")


def _read_metadata(header: _Header, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = header.text("a key")
        if key in metadata:
            raise header.damaged(f"its metadata have {key!r} twice")
        metadata[key] = _value(header, header.number("I", key), key)
    return {key: value for key, value in metadata.items() if value is not None}


def _value(header: _Header, kind: int, key: str) -> Any:
    """A value of the metadata; None for a list that is long or of texts."""
    if kind == _STRING:
        return header.text(key)
    if kind == _ARRAY:
        return _list(header, key)
    if kind not in _SCALARS:
        raise header.damaged(f"{key} has type {kind}, which is none of GGUF's")
    return header.number(_SCALARS[kind], key)


def _list(header: _Header, key: str) -> tuple[Any, ...] | None:
    kind: int = header.number("I", key)
    if kind != _STRING and kind not in _SCALARS:
        raise header.damaged(f"{key} is a list of type {kind}, which is none of GGUF's scalars")
    nbytes = 8 if kind == _STRING else struct.calcsize(f"<{_SCALARS[kind]}")
    count = header.count(nbytes, f"items in {key}")
    if kind != _STRING and count <= _LONGEST_KEPT:
        return header.numbers(_SCALARS[kind], count, key)
    if kind != _STRING:
        header.skip(count * nbytes, key)
        return None
    for _ in range(count):
        header.skip_text(key)
    return None


TensorHeader: TypeAlias = tuple[tuple[int, ...], int, int]
"""What the header says of a tensor: its shape, the number of its type and its offset."""


def _read_tensor(header: _Header) -> tuple[str, TensorHeader]:
    name = header.text("a tensor's name")
    count: int = header.number("I", name)
    if count > _MOST_DIMENSIONS:
        raise header.damaged(f"{name} would have {count} dimensions, at most {_MOST_DIMENSIONS} are supported")
    sizes = header.numbers("Q", count, name)
    kind, offset = header.number("I", name), header.number("Q", name)
    return name, (tuple(reversed(sizes)), kind, offset)


def _unique(header: _Header, tensors: Sequence[tuple[str, TensorHeader]]) -> Sequence[tuple[str, TensorHeader]]:
    if len(dict(tensors)) != len(tensors):
        names = [name for name, _ in tensors]
        raise header.damaged(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return tensors


def _alignment(header: _Header, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise header.damaged(f"its alignment is {alignment!r}, which is no power of two")
    return alignment


def _entry(header: _Header, name: str, tensor: TensorHeader, data: int, metadata: Mapping[str, Any]) -> WeightEntry:
    shape, number, offset = tensor
    if not can_be_shape(shape):
        raise header.damaged(f"{name} has the sizes {list(shape)}, which no tensor has")
    kind = _type_names().get(number, f"number {number}")
    if kind not in QUANT_TYPES and kind not in _DTYPES:
        known = ", ".join(dict.fromkeys((*QUANT_TYPES, *_DTYPES)))
        what = clipped(f"{name} has type {kind}")
        raise WeightError(f"{header.file.path}: {what}, supported are {known}: convert it to one of these")
    dtype, quant = _DTYPES.get(kind, torch.uint8), kind if kind in QUANT_TYPES else ""
    try:
        nbytes = stored_bytes(shape, dtype, quant)
    except WeightError as error:
        raise header.damaged(f"{name}: {error}") from error
    start = data + offset
    return _as_it_was(WeightEntry((Piece(header.file, start, start + nbytes),), dtype, shape, quant), name, metadata)


def _as_it_was(entry: WeightEntry, name: str, metadata: Mapping[str, Any]) -> WeightEntry:
    """The entry in the shape that a converter noted because it wrote another one, unless that cuts blocks."""
    shape = metadata.get(f"comfy.gguf.orig_shape.{name}")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        return entry
    try:
        return entry.reshaped(shape)
    except WeightError:
        return entry


@functools.cache
def _type_names() -> Mapping[int, str]:
    from gguf import GGMLQuantizationType

    return {int(kind): kind.name for kind in GGMLQuantizationType}

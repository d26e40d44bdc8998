"""Reads the header of a safetensors file, and believes nothing that the file's size does not bear out.

The file begins with the length of its header (8 bytes, little-endian) and the header: JSON that gives each tensor's
dtype, shape and byte range (https://github.com/huggingface/safetensors#format). The safetensors package reads the same
header, but does not say where in the file a tensor lies.

Parsed, JSON takes up to 26 times its length; so a header of more than 1 MiB must be a 32nd of its file at most. Those
of real checkpoints are far smaller, and none makes more memory be taken than its file has.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

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

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # as in safetensors itself
_LARGE_HEADER = 2**20
_PARTS_OF_FILE = 32


def read_safetensors(path: Path) -> tuple[dict[str, WeightEntry], Mapping[str, Any]]:
    """The weights of one file and its metadata; raises WeightError when it is missing or damaged."""
    try:
        with opened_file(path) as opened:
            file = StoredFile.of(path, opened.fileno())
            length = _header_length(file, opened.read(8))
            header = _parse(opened.read(length))
        metadata = header.pop("__metadata__", {})
        entries = {name: _entry(file, name, given, 8 + length) for name, given in header.items()}
    except FileNotFoundError as error:
        raise WeightError(f"{path} is missing: download it again, or name another variant") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, f"its header cannot be read ({type(error).__name__}: {error})") from error
    ranges = [(name, entry.pieces[0].start, entry.pieces[0].end) for name, entry in entries.items()]
    check_layout(path, ranges, 8 + length, file.nbytes, 1)
    return entries, metadata


def header_bytes(file: StoredFile, opened: BufferedReader) -> int:
    """How many bytes of an opened file precede its weights; raises WeightError where that cannot be."""
    return 8 + _header_length(file, opened.read(8))


def _header_length(file: StoredFile, first: bytes) -> int:
    length: int = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    most = min(max(file.nbytes // _PARTS_OF_FILE, _LARGE_HEADER), _LARGEST_HEADER, file.nbytes - 8)
    if not 0 < length <= most:
        raise damaged(file.path, f"its header would have {length} bytes, the file has {file.nbytes}")
    return length


def _parse(text: bytes) -> dict[str, Any]:
    """The header; raises ValueError for anything but an object in UTF-8 whose keys differ."""
    if not text.startswith(b"{"):
        raise ValueError("it does not begin with {")
    header: dict[str, Any] = json.loads(
        text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
    )
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is no list of texts")
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no size")


def _entry(file: StoredFile, name: str, given: Any, offset: int) -> WeightEntry:
    start, end = given["data_offsets"]
    shape = tuple(given["shape"])
    if not can_be_shape(shape) or not all(type(one) is int and one >= 0 for one in (start, end)):
        raise damaged(file.path, f"{name} has sizes that are no sizes")
    if given["dtype"] not in DTYPES:
        what = clipped(f"{name} has dtype {given['dtype']!r}")
        raise WeightError(f"{file.path}: {what}, which is not supported: convert it first")
    dtype = DTYPES[given["dtype"]]
    if stored_bytes(shape, dtype, "") != end - start:
        raise damaged(file.path, f"{name} is {given['dtype']}{list(shape)} in {end - start} bytes, which cannot be")
    return WeightEntry((Piece(file, offset + start, offset + end),), dtype, shape)

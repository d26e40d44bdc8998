"""The weight index: where each weight of a checkpoint lies, by name. Nothing but headers is read to make it.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header: JSON that gives each
tensor's dtype, shape and byte range (https://github.com/huggingface/safetensors#format). A checkpoint is one such file,
or several with an index file that names them. A file that lies about itself is refused here, before anything is loaded.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import WeightError

_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # as in safetensors itself


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """Where one weight lies: a range of bytes of a file, and what they are."""

    file: Path
    start: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in its file."""
        return self.end - self.start


@dataclass(frozen=True)
class WeightIndex(Mapping[str, WeightEntry]):
    """The weights of a checkpoint by name."""

    entries: Mapping[str, WeightEntry]
    where: Path

    @classmethod
    def of_file(cls, path: Path) -> WeightIndex:
        """The index of one safetensors file; raises WeightError when it is missing or damaged."""
        return cls(_read_header(path), path)

    @classmethod
    def of_shards(cls, path: Path) -> WeightIndex:
        """The index of a checkpoint in several files, from the JSON file that says which weight is in which."""
        try:
            files: dict[str, str] = json.loads(path.read_text("utf-8"))["weight_map"]
            shards = {name: _read_header(path.parent / _plain(path, name)) for name in sorted(set(files.values()))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise WeightError(f"{path} is not an index of weights: {why}: download it again") from error
        lost = [name for name, file in files.items() if name not in shards[file]]
        if lost:
            raise WeightError(f"{files[lost[0]]} lacks {_listed(lost)}, which {path} says it has: download it again")
        return cls({name: shards[file][name] for name, file in files.items()}, path)

    def __getitem__(self, name: str) -> WeightEntry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def renamed(self, names: Mapping[str, str]) -> WeightIndex:
        """The index under other names, old → new; a name that is not given stays."""
        return WeightIndex({names.get(name, name): entry for name, entry in self.entries.items()}, self.where)


def _plain(index: Path, name: str) -> str:
    """A file name beside the index, and nothing else: an index must not reach into other folders."""
    if Path(name).name != name:
        raise WeightError(f"{index} names {name!r}, which is not a file beside it: download it again")
    return name


def _read_header(path: Path) -> dict[str, WeightEntry]:
    """The entries of one file, checked against its size and against each other."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = _header_length(path, file.read(8), size)
            header = json.loads(file.read(length))
            entries = {name: _entry(path, name, given, 8 + length) for name, given in _tensors(path, header)}
    except FileNotFoundError as error:
        raise WeightError(f"{path} is missing: download it again, or name another variant") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be read ({type(error).__name__}: {error})") from error
    _check_ranges(path, entries, 8 + length, size)
    return entries


def _header_length(path: Path, first: bytes, size: int) -> int:
    length: int = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 0 < length <= min(size - 8, _LARGEST_HEADER):
        raise _damaged(path, f"its header would have {length} bytes, the file has {size}")
    return length


def _tensors(path: Path, header: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no list of tensors")
    return ((name, given) for name, given in header.items() if name != "__metadata__")


def _entry(path: Path, name: str, given: Any, offset: int) -> WeightEntry:
    start, end = given["data_offsets"]
    shape = tuple(given["shape"])
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise _damaged(path, f"{name} has sizes that are no sizes")
    if given["dtype"] not in _DTYPES:
        raise WeightError(f"{path}: {name} has dtype {given['dtype']!r}, which is not supported: convert it first")
    dtype = _DTYPES[given["dtype"]]
    if math.prod(shape) * dtype.itemsize != end - start:
        raise _damaged(path, f"{name} is {given['dtype']}{list(shape)} in {end - start} bytes, which cannot be")
    return WeightEntry(path, offset + start, offset + end, dtype, shape)


def _check_ranges(path: Path, entries: Mapping[str, WeightEntry], start: int, size: int) -> None:
    """Weights follow each other without overlap or gap, and end where the file ends."""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != start:
            raise _damaged(path, f"{name} begins at byte {entry.start}, the weight before it ends at {start}")
        start = entry.end
    if start != size:
        kind = "cut short" if start > size else "too long"
        raise _damaged(path, f"it is {kind}: its weights end at byte {start}, the file at {size}")


def _damaged(path: Path, why: str) -> WeightError:
    return WeightError(f"{path} is damaged: {why}: download it again")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""The weight index: where each weight of a checkpoint lies, by name. Nothing but headers is read to make it.

A checkpoint is one file, safetensors or GGUF, or several: with an index file that names them, or numbered as GGUF's
are. Its weights are `WeightEntry`s, which other layouts and slices are made of. A file that lies about itself is
refused here, before anything is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import WeightError
from .entries import Piece, StoredFile, WeightEntry, opened_file
from .gguf_header import MAGIC, read_gguf
from .names import is_plain
from .safetensors_header import read_safetensors

__all__ = ["Piece", "StoredFile", "WeightEntry", "WeightIndex"]

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class WeightIndex(Mapping[str, WeightEntry]):
    """The weights of a checkpoint by name, and what the file says besides (GGUF: `general.architecture`, …)."""

    entries: Mapping[str, WeightEntry]
    where: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_file(cls, path: Path) -> WeightIndex:
        """The index of one safetensors or GGUF file, which its first bytes tell apart, or of all parts of a GGUF file.

        Raises WeightError when a file is missing, damaged, or has weights of a type that is not supported.
        """
        if part := _PART.fullmatch(path.name):
            return cls._of_parts(path, part[1], int(part[3]))
        entries, metadata = _read_header(path)
        return cls(entries, path, metadata)

    @classmethod
    def _of_parts(cls, path: Path, stem: str, count: int) -> WeightIndex:
        entries: dict[str, WeightEntry] = {}
        metadata: dict[str, Any] = {}
        for number in range(1, count + 1):
            part = path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf")
            more, told = _read_header(part)
            if both := entries.keys() & more.keys():
                raise WeightError(f"{part} has {_listed(sorted(both))} as a part before it has: download it again")
            entries.update(more)
            metadata = {**told, **metadata}
        return cls(entries, path, metadata)

    @classmethod
    def of_shards(cls, path: Path) -> WeightIndex:
        """The index of a checkpoint in several files, from the JSON file that says which weight is in which."""
        try:
            files: dict[str, str] = json.loads(path.read_text("utf-8"))["weight_map"]
            shards = {name: _read_header(path.parent / _plain(path, name))[0] for name in sorted(set(files.values()))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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

    def holding(self, entries: Mapping[str, WeightEntry]) -> WeightIndex:
        """An index of other weights made of this one's."""
        return replace(self, entries=entries)


def _plain(index: Path, name: str) -> str:
    """A file name beside the index, and nothing else: an index must not reach into other folders."""
    if not is_plain(name):
        raise WeightError(f"{index} names {name!r}, which is not a file beside it: download it again")
    return name


def _read_header(path: Path) -> tuple[dict[str, WeightEntry], Mapping[str, Any]]:
    """The weights of one file and its metadata."""
    try:
        with opened_file(path) as file:
            is_gguf = file.read(4) == MAGIC or path.suffix.lower() == ".gguf"
    except FileNotFoundError as error:
        raise WeightError(f"{path} is missing: download it again, or name another variant") from error
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error}: name a file of weights") from error
    return read_gguf(path) if is_gguf else read_safetensors(path)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""The table weight → origin: where the bytes of weights lie, in words that another process on another machine reads.

A file is known in it by what is in it (`FileIdentity`), never by its path: whoever reads the table looks for it among
files of its own. A table is data: what it says is held against itself and the sizes of its files when it is made, also
where a stranger wrote it, in time and memory in proportion to its text; a file is opened only among those given.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import WeightError
from ..printable import printable
from ..schema_errors import told_of
from .entries import Piece, StoredFile, WeightEntry, can_be_shape, clipped, stored_bytes
from .identity import FileIdentity
from .quantized_types import STORED_TYPES
from .safetensors_header import DTYPES

Located: TypeAlias = "tuple[WeightEntry, tuple[torch.dtype, ...]]"
"""The bytes of a weight, and the dtypes to which its numbers are rounded one after the other before they are taken."""

NAMES: Mapping[torch.dtype, str] = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES.values()}
"""The dtypes that a table can name, with their names."""

_BY_NAME = {name: dtype for dtype, name in NAMES.items()}
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_Count = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
_STRICT = ConfigDict(extra="forbid", frozen=True)


class KnownFile(BaseModel):
    """A file of weights as every machine knows it; its name is said in messages and decides nothing."""

    model_config = _STRICT

    name: str
    nbytes: _Count
    digest: str

    @property
    def identity(self) -> FileIdentity:
        """What equal copies of it have in common."""
        return FileIdentity(self.nbytes, self.digest)

    def __str__(self) -> str:
        return f"{clipped(self.name)} ({self.identity})"


class WeightOrigin(BaseModel):
    """What a `WeightEntry` says of a weight: each piece is the number of a file, a first byte and an end."""

    model_config = _STRICT

    dtype: str
    shape: tuple[_Count, ...]
    quant: str = ""
    through: tuple[str, ...] = Field((), description="dtypes to which its numbers are rounded, one after the other")
    pieces: tuple[tuple[_Count, _Count, _Count], ...]

    @model_validator(mode="after")
    def _check(self) -> WeightOrigin:
        unknown = [name for name in (self.dtype, *self.through) if name not in _BY_NAME]
        if unknown or (self.quant and self.quant not in STORED_TYPES):
            raise ValueError(f"there is no type {clipped((*unknown, self.quant)[0])}")
        if self.quant and _BY_NAME[self.dtype] != _PLAIN.get(self.quant, torch.uint8):
            raise ValueError(f"{self.quant} is not read as {self.dtype}")
        if not can_be_shape(self.shape):
            raise ValueError(f"no tensor has the shape {clipped(str(list(self.shape)))}")
        if self.quant and self.quant not in _PLAIN and not (self.shape and self.shape[-1]):
            raise ValueError(f"a row of {self.describe()} has no block")
        has, needs = sum(end - start for _, start, end in self.pieces), self._nbytes()
        if has != needs:
            raise ValueError(f"its pieces have {has} bytes, where {self.describe()} has {needs}")
        return self

    def _nbytes(self) -> int:
        try:
            return stored_bytes(self.shape, _BY_NAME[self.dtype], self.quant)
        except WeightError as error:
            raise ValueError(str(error)) from error

    def describe(self) -> str:
        """What it is: `Q8_0[64, 32]`, `float16[3] through bfloat16`."""
        through = "".join(f" through {one}" for one in self.through)
        return f"{self.quant or self.dtype}{list(self.shape)}{through}"

    def renumbered(self, numbers: Mapping[int, int]) -> WeightOrigin:
        """The same in a table whose files have other numbers."""
        pieces = tuple((numbers[number], start, end) for number, start, end in self.pieces)
        return self.model_copy(update={"pieces": pieces})

    def located(self, files: Sequence[StoredFile]) -> Located:
        """Its bytes in files of this machine, which stand in the order of the table's."""
        pieces = tuple(Piece(files[number], start, end) for number, start, end in self.pieces)
        through = tuple(_BY_NAME[name] for name in self.through)
        return WeightEntry(pieces, _BY_NAME[self.dtype], self.shape, self.quant), through


class OriginTable(BaseModel):
    """Where each weight of a program comes from, by name; what no file has is not in it."""

    model_config = _STRICT

    format: Literal["dovetail weights"]
    version: Literal[1]
    files: tuple[KnownFile, ...]
    weights: Mapping[str, WeightOrigin]

    @classmethod
    def of(cls, weights: Mapping[str, Located]) -> OriginTable:
        """The table of weights that lie in files of this machine; raises WeightError where one of these has changed."""
        files = dict.fromkeys(piece.file for entry, _ in weights.values() for piece in entry.pieces)
        numbers = {file: number for number, file in enumerate(files)}
        return cls(
            format="dovetail weights",
            version=1,
            files=tuple(map(_known, files)),
            weights={name: _origin(entry, through, numbers) for name, (entry, through) in weights.items()},
        )

    @classmethod
    def of_json(cls, text: str | bytes) -> OriginTable:
        """The table that `to_json` wrote; raises WeightError for any other text."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise WeightError(
                f"the table of weights is damaged: {clipped(told_of(error))}: have it written again"
            ) from error

    def to_json(self) -> str:
        """The table as text, which `of_json` reads."""
        return self.model_dump_json(exclude_defaults=True)

    @model_validator(mode="after")
    def _check(self) -> OriginTable:
        for name, weight in self.weights.items():
            for number, start, end in weight.pieces:
                if number >= len(self.files):
                    raise ValueError(f"{clipped(name)} lies in file {number} of {len(self.files)}")
                if not start <= end <= self.files[number].nbytes:
                    raise ValueError(
                        f"{clipped(name)} has the bytes {start} to {end} of {clipped(self.files[number].name)}, which "
                        f"has {self.files[number].nbytes}"
                    )
        return self

    def only(self, names: Collection[str]) -> OriginTable:
        """The table of some weights, and of the files that these lie in."""
        kept = {name: weight for name, weight in self.weights.items() if name in names}
        used = sorted({number for weight in kept.values() for number, _, _ in weight.pieces})
        numbers = {number: place for place, number in enumerate(used)}
        weights = {name: weight.renumbered(numbers) for name, weight in kept.items()}
        return self.model_copy(update={"files": tuple(self.files[number] for number in used), "weights": weights})

    def located(self, paths: Iterable[Path]) -> dict[str, Located]:
        """The bytes of each weight in files of this machine, each found by what is in it among some paths.

        Only files of a size that is looked for are read, each once, as `FileIdentity` does. Raises WeightError, which
        names the file, where none is it.
        """
        there = _Files(paths)
        files = [there.find(one) for one in self.files]
        return {name: weight.located(files) for name, weight in self.weights.items()}

    def __str__(self) -> str:
        return printable("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield from (f"file {number}: {file}" for number, file in enumerate(self.files))
        for name, weight in self.weights.items():
            pieces = " ".join(f"{number}:{start}-{end}" for number, start, end in weight.pieces)
            yield f"{clipped(name)}: {weight.describe()} of {pieces or 'nothing'}"


class _Files:
    """Files of this machine, and what they are known by between machines, found out when it is asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [StoredFile.at(path) for path in paths]
        self._known: dict[StoredFile, FileIdentity | None] = {}

    def find(self, wanted: KnownFile) -> StoredFile:
        """The first that is a file; raises WeightError where none is."""
        alike = [file for file in self._files if file.nbytes == wanted.nbytes]
        for file in alike:
            if self._identity(file) == wanted.identity:
                return file
        others = alike or [file for file in self._files if _name(file) == wanted.name]
        told = f": {others[0].path} has {others[0].nbytes} bytes and is another file" if others else ""
        raise WeightError(
            f"none of {len(self._files)} files here is {clipped(wanted.name)} of {wanted.nbytes} bytes, whose weights "
            f"are needed{told}: copy it to this machine, and name it among the files"
        )

    def _identity(self, file: StoredFile) -> FileIdentity | None:
        """That of a file; None where it is damaged, as no file of a table is."""
        if file not in self._known:
            try:
                self._known[file] = FileIdentity.of(file)
            except WeightError:
                self._known[file] = None
        return self._known[file]


def _known(file: StoredFile) -> KnownFile:
    identity = FileIdentity.of(file)
    return KnownFile(name=_name(file), nbytes=identity.nbytes, digest=identity.digest)


def _name(file: StoredFile) -> str:
    """The name of a file as text, in which a byte that is none is written as ``\\xff``."""
    return os.fsencode(file.path.name).decode("utf-8", "backslashreplace")


def _origin(entry: WeightEntry, through: Iterable[torch.dtype], numbers: Mapping[StoredFile, int]) -> WeightOrigin:
    return WeightOrigin(
        dtype=NAMES[entry.dtype],
        shape=entry.shape,
        quant=entry.quant,
        through=tuple(NAMES[dtype] for dtype in through),
        pieces=tuple((numbers[piece.file], piece.start, piece.end) for piece in entry.pieces),
    )

"""Chooses the type of each weight: large matrices get the one that was asked for, the rest what it needs.

As stable-diffusion.cpp and llama.cpp do it, vectors and convolutions are not packed: they are small, and much depends
on them. Embedders and output layers, which all data go through once, get at least 8 bits. All is decided by names and
shapes alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..compiler.checkpoints.entries import WeightEntry, stored_bytes
from ..compiler.checkpoints.quantized_types import QUANT_TYPES, block_of
from ..compiler.errors import UsageError

SMALLEST_SIDE = 256
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IN_BLOCK = re.compile(r"(^|\.)\d+\.[^\d.][^.]*\.")  # a number, and then a module of the block that it numbers


@dataclass(frozen=True)
class Converted:
    """A weight and the type that it gets, one of STORED_TYPES, or "" for integers; `why` where it was not asked for.

    `noted` is the shape that a file says it really has, because it is stored there in another one. `through` is the
    dtype to which numbers are rounded before they become 8-bit floats: that in which a model computes.
    """

    name: str
    entry: WeightEntry
    quant: str
    why: str = ""
    noted: tuple[int, ...] | None = None
    through: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the new file; packed blocks stay in the rows that they are in."""
        return self.noted if self.noted is not None and self.quant in PLAIN else self.entry.shape

    @property
    def is_same(self) -> bool:
        """Whether its bytes stay what they are."""
        return self.quant == _stored_type(self.entry)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is stored, which is uint8 where numbers are packed."""
        return PLAIN.get(self.quant, torch.uint8) if self.quant else self.entry.dtype

    @property
    def nbytes(self) -> int:
        """Its bytes in the new file."""
        return stored_bytes(self.shape, self.dtype, self.quant)

    @property
    def type_name(self) -> str:
        """Its type in words: Q8_0, F32, int64."""
        return self.quant or str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Rule:
    """Weights whose name holds a pattern get a type."""

    pattern: re.Pattern[str]
    quant: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """A rule from `PATTERN=TYPE`; raises UsageError when it is none."""
        pattern, equals, quant = text.rpartition("=")
        if not equals or not pattern:
            raise UsageError(f"--tensor-type {text} is no rule: write PATTERN=TYPE, such as 'attn.*=q8_0'")
        try:
            return cls(re.compile(pattern), parse_type(quant))
        except re.error as error:
            raise UsageError(f"--tensor-type {text}: {pattern!r} is no regular expression: {error}") from error


def parse_type(text: str) -> str:
    """A type by its name in any case; raises UsageError that offers the nearest one.

    >>> parse_type("q4_k")
    'Q4_K'
    """
    if text.upper() in QUANT_TYPES:
        return text.upper()
    near = difflib.get_close_matches(text.upper(), QUANT_TYPES, 1)
    hint = f"did you mean {near[0]}? T" if near else "t"
    raise UsageError(f"no type is called {text!r}: {hint}here are {', '.join(QUANT_TYPES)}")


def choose(name: str, entry: WeightEntry, wanted: str, rules: Sequence[Rule], packs: bool) -> Converted:
    """The type that a weight gets when `wanted` was asked for; a later rule overrides an earlier one.

    `packs` says whether the file is one of packed weights, in which vectors stay float32 for those who read it.
    """
    if not entry.is_packed and not entry.dtype.is_floating_point:
        return Converted(name, entry, "", "no floating-point numbers")
    ruled = [rule.quant for rule in rules if rule.pattern.search(name)]
    if ruled:
        return _fitting(name, entry, ruled[-1])
    if packs and len(entry.shape) < 2:
        return Converted(name, entry, "F32", "a vector")
    if wanted in PLAIN:
        return Converted(name, entry, wanted)
    if len(entry.shape) != 2:
        return Converted(name, entry, _held_type(entry), "no matrix")
    if min(entry.shape) < SMALLEST_SIDE:
        return Converted(name, entry, _held_type(entry), f"a side below {SMALLEST_SIDE}")
    if wanted != "Q8_0" and not _IN_BLOCK.search(name):
        return _fitting(name, entry, "Q8_0", "outside the blocks")
    return _fitting(name, entry, wanted)


def _fitting(name: str, entry: WeightEntry, quant: str, why: str = "") -> Converted:
    """The type, or the next one whose blocks fill a row."""
    columns = entry.shape[-1] if entry.shape else 1
    if columns % block_of(quant)[0] == 0:
        return Converted(name, entry, quant, why)
    fits = "F16" if columns % block_of("Q8_0")[0] else "Q8_0"
    return Converted(name, entry, fits, f"rows are no multiple of {quant}'s {block_of(quant)[0]}")


def _stored_type(entry: WeightEntry) -> str:
    names = {dtype: name for name, dtype in PLAIN.items()}
    return entry.quant or names.get(entry.dtype, "")


def _held_type(entry: WeightEntry) -> str:
    """The type that it has, or the plain one that holds its numbers (float64 is rounded; 8-bit floats are exact)."""
    return _stored_type(entry) or ("F32" if entry.dtype == torch.float64 else "BF16")

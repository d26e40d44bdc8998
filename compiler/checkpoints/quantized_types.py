"""The types of GGUF in which weights rest, rows of packed blocks or plain floats of another width; and 8-bit floats.

A row is a whole number of blocks, and rows follow each other without gaps; so a range of rows is a range of bytes.
Sizes are those of the gguf package, which is imported when they are first asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..errors import WeightError

QUANT_TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
"""The types that dovetail reads and computes with, by GGUF's names."""

FLOAT8 = "F8_E4M3"
"""Floats of 8 bits, which GGUF does not have: weights rest in them and are cast where they are used."""

STORED_TYPES = (*QUANT_TYPES, FLOAT8)
"""All types in which weights rest."""


@functools.cache
def block_of(quant: str) -> tuple[int, int]:
    """Elements and bytes of one block of a type.

    Raises WeightError for a type that is not among STORED_TYPES.

    >>> block_of("Q8_0")
    (32, 34)
    """
    if quant == FLOAT8:
        return 1, 1
    if quant not in QUANT_TYPES:
        raise WeightError(f"quantization type {quant} is not supported: convert to one of {', '.join(QUANT_TYPES)}")
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[quant]]
    return int(elements), int(nbytes)


def row_bytes(quant: str, columns: int) -> int:
    """Bytes of one row; raises WeightError where a row is no whole number of blocks.

    >>> row_bytes("Q4_K", 3072)
    1728
    """
    elements, nbytes = block_of(quant)
    if columns % elements:
        raise WeightError(f"a row of {columns} numbers is no whole number of {quant} blocks of {elements}")
    return columns // elements * nbytes


def packed_shape(quant: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, in bytes, of a weight in a type: its rows are packed, its other dimensions stay."""
    return (*shape[:-1], row_bytes(quant, shape[-1]))

"""The bytes of blocks in the types of GGUF that the gguf package reads but does not write.

Layouts are ggml's (`ggml-quants.c`); the gguf package's dequantization undoes each of them. A block of 256 numbers has
sub-blocks, whose scales are small integer multiples of one half-precision number of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fit import Floats, extreme_of, fit_range, fit_scale

Bytes = NDArray[np.uint8]
Rounding = Callable[[Floats], Floats]

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_IQ4_NEAREST = np.searchsorted(_IQ4[1:] + _IQ4[:-1], np.arange(-256, 256), side="right").astype(np.uint8)
"""The level nearest to each half of an integer, from −128 on: no middle of two levels lies between two halves."""
_IQ4_TRIES = range(-140, -91, 4)


def _q2_k(values: Floats) -> Bytes:
    d, dmin, scales, offsets, levels = _ranged(values, 16, top=3, largest=15, tries=_steps(-0.6, 1.0, 0.2))
    return np.concatenate([scales | offsets << 4, _joined(levels, 2, 32), d, dmin], axis=-1)


def _q4_k(values: Floats) -> Bytes:
    d, dmin, scales, offsets, levels = _ranged(values, 32, top=15, largest=63, tries=_steps(-1.5, 1.5, 0.25))
    return np.concatenate([d, dmin, _six_bits(scales, offsets), _joined(levels, 4, 32)], axis=-1)


def _q5_k(values: Floats) -> Bytes:
    d, dmin, scales, offsets, levels = _ranged(values, 32, top=31, largest=63, tries=_steps(-1.5, 1.5, 0.25))
    parts = [d, dmin, _six_bits(scales, offsets), _joined(levels >> 4, 1, 32), _joined(levels & 15, 4, 32)]
    return np.concatenate(parts, axis=-1)


def _q3_k(values: Floats) -> Bytes:
    d, scales, levels = _scaled(values, 16, partial(_whole, low=-4, top=3), -32, tries=_steps(-4.8, -2.8, 0.4))
    scales, codes = (scales + 32).astype(np.uint8), (levels + 4).astype(np.uint8)
    parts = [_joined(codes >> 2, 1, 32), _joined(codes & 3, 2, 32)]
    return np.concatenate([*parts, _joined(scales & 15, 4, 8), _joined(scales >> 4, 2, 4), d], axis=-1)


def _q6_k(values: Floats) -> Bytes:
    d, scales, levels = _scaled(values, 16, partial(_whole, low=-32, top=31), -128, tries=_steps(-33.0, -28.0, 0.5))
    codes = (levels + 32).astype(np.uint8)
    parts = [_joined(codes & 15, 4, 64), _joined(codes >> 4, 2, 32), scales.astype(np.int8).view(np.uint8), d]
    return np.concatenate(parts, axis=-1)


def _iq4_nl(values: Floats) -> Bytes:
    blocks = np.ascontiguousarray(values.T)
    d = _half(fit_scale(blocks, _iq4_levels, _IQ4_TRIES))
    codes = _iq4_codes(blocks * _inverse(d)).T
    return np.concatenate([_as_bytes(d[:, None]), _joined(codes, 4, 16)], axis=-1)


def _iq4_xs(values: Floats) -> Bytes:
    d, scales, levels = _scaled(values, 32, _iq4_levels, -32, tries=_IQ4_TRIES)
    scales, codes = (scales + 32).astype(np.uint8), _iq4_codes(levels)
    parts = [_joined(scales >> 4, 2, 1), _joined(scales & 15, 4, 1), _joined(codes, 4, 16)]
    return np.concatenate([d, *parts], axis=-1)


PACKERS: Mapping[str, Callable[[Floats], Bytes]] = {
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip
"""By type: from the numbers of blocks, one block a row, to their bytes, one block a row."""


def _ranged(values: Floats, size: int, top: int, largest: int, tries: Sequence[float]) -> tuple[Bytes, ...]:
    """Blocks as `d × scale × level − dmin × offset`: d and dmin as bytes, scales, offsets, and levels in order.

    Levels are 0 … `top`, scales and offsets 0 … `largest`.
    """
    parts = _sub_blocks(values, size)
    scale, offset = fit_range(parts, top, tries)
    d, scales = _multiples(scale, largest)
    dmin, offsets = _multiples(offset, largest)
    levels = _whole((parts + dmin * offsets) * _inverse(d * scales), 0, top)
    small = [whole.astype(np.uint8) for whole in (scales, offsets, _in_order(levels))]
    return _as_bytes(d), _as_bytes(dmin), *small


def _scaled(
    values: Floats, size: int, nearest: Rounding, largest: int, tries: Sequence[float]
) -> tuple[Bytes, Floats, Floats]:
    """Blocks as `d × scale × level`: d as bytes, scales, and levels in order.

    Scales are `largest`, which is negative, … `−largest − 1`.
    """
    parts = _sub_blocks(values, size)
    d, scales = _multiples(fit_scale(parts, nearest, tries), largest)
    return _as_bytes(d), scales, _in_order(nearest(parts * _inverse(d * scales)))


def _multiples(scales: Floats, largest: int) -> tuple[Floats, Floats]:
    """A number for each block, as half precision has it, and the multiples of it that are nearest to the scales."""
    d = _half(extreme_of(scales, axis=-1)[:, None] / np.float32(largest))
    return d, _whole(scales * _inverse(d), min(largest, 0), max(largest, -largest - 1))


def _half(numbers: Floats) -> Floats:
    return np.clip(numbers, -65504, 65504).astype(np.float16).astype(np.float32)


def _inverse(numbers: Floats) -> Floats:
    return np.divide(1, numbers, out=np.zeros_like(numbers), where=numbers != 0)


def _whole(numbers: Floats, low: int, top: int) -> Floats:
    return np.clip(np.rint(numbers), low, top)


def _iq4_codes(numbers: Floats) -> Bytes:
    halves = np.clip(np.floor(2 * numbers), -256, 255).astype(np.int16)
    codes: Bytes = _IQ4_NEAREST[halves + 256]
    return codes


def _iq4_levels(numbers: Floats) -> Floats:
    return _IQ4[_iq4_codes(numbers)]


def _sub_blocks(values: Floats, size: int) -> Floats:
    """Blocks (one a row) as numbers × blocks × sub-blocks: sums over a sub-block are then sums of whole arrays."""
    return np.ascontiguousarray(values.reshape(len(values), -1, size).transpose(2, 0, 1))


def _in_order(levels: Floats) -> Floats:
    return levels.transpose(1, 2, 0).reshape(levels.shape[1], -1)


def _as_bytes(numbers: Floats) -> Bytes:
    return numbers.astype("<f2").view(np.uint8)


def _joined(codes: NDArray[Any], bits: int, stride: int) -> Bytes:
    """Codes of a few bits, several in a byte: those in one byte are `stride` apart, the first in the low bits."""
    parts = codes.reshape(len(codes), -1, 8 // bits, stride)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(parts << shifts, axis=2)
    return joined.reshape(len(codes), -1)


def _six_bits(scales: Bytes, offsets: Bytes) -> Bytes:
    """Eight scales and eight offsets of 6 bits in 12 bytes: the high bits of the last four lie over the first four."""
    first = [part[:, :4] | part[:, 4:] >> 4 << 6 for part in (scales, offsets)]
    return np.concatenate([*first, scales[:, 4:] & 15 | (offsets[:, 4:] & 15) << 4], axis=-1)


def _steps(start: float, stop: float, step: float) -> Sequence[float]:
    return np.arange(start, stop + step / 2, step).tolist()

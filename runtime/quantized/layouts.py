"""How the blocks of each packed type hold their codes and scales: a number is ``code * scale + offset``.

A layout takes blocks apart on any device with whole-tensor integer operations, eight bytes to a word where it can:
shifting a word and masking it shifts every byte in it. The product of a code and its scale is exact in float32, or is
the only thing that is rounded, so that the order of operations is free and the bits are those of gguf-py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_ONES = 0x0101010101010101
_EACH_BIT = -0x7FBFDFEFF7FBFDFF  # bit i of byte i: 0x8040201008040201, as a signed word
_SHIFTS = (0, 2, 4, 6)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a type's blocks, given as uint8 of shape (blocks, bytes).

    ``codes`` yields small numbers of shape (blocks, elements), ``factors`` the scale and the offset (or None) of each
    group, float32 of shape (blocks, groups, 1).
    """

    codes: Callable[[Tensor], Tensor]
    factors: Callable[[Tensor], tuple[Tensor, Tensor | None]]

    def unpack(self, blocks: Tensor, out: Tensor) -> None:
        """Writes the numbers of blocks to float32 memory of shape (blocks, elements)."""
        scale, offset = self.factors(blocks)
        numbers = out.view(*scale.shape[:2], -1)
        numbers.copy_(self.codes(blocks).view(numbers.shape))
        numbers.mul_(scale)
        if offset is not None:
            numbers.add_(offset)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block, as (blocks, 1, 1)."""
    return _aligned(blocks, at, at + 2).view(torch.float16).float().unsqueeze(-1)


def _words(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Bytes of each block as words of eight or four."""
    return _aligned(blocks, start, stop).view(torch.int64 if (stop - start) % 8 == 0 else torch.int32)


def _aligned(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Bytes of each block in memory of their own; those of a single block count as contiguous where they are."""
    return blocks[:, start:stop].clone(memory_format=torch.contiguous_format)


def _mask(words: Tensor, byte: int) -> int:
    return _ONES * byte if words.dtype == torch.int64 else (_ONES & 0xFFFFFFFF) * byte


def _planes(words: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """For each shift the bits that a mask leaves of every byte: (…, words) becomes (…, shifts, words)."""
    shifted = [words >> shift if shift else words for shift in shifts]
    return torch.stack(shifted, dim=-2).bitwise_and_(_mask(words, mask))


def _bytes(words: Tensor) -> Tensor:
    return words.flatten(1).view(torch.uint8)


def _signed(words: Tensor, middle: int) -> Tensor:
    """Codes that are stored with ``middle`` added, as int8."""
    return words.flatten(1).view(torch.int8).sub_(middle)


def _nibbles(blocks: Tensor, start: int, stop: int, run: int) -> Tensor:
    """The low halves of each run of bytes, then their high halves."""
    return _planes(_words(blocks, start, stop).unflatten(1, (-1, run // 8)), (0, 4), 15)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """The bits of four bytes, one to a byte, where the fifth bit of a code stands."""
    words = blocks[:, start : start + 4].long().mul_(_ONES).bitwise_and_(_EACH_BIT)
    ones = words.view(torch.uint8).bool().view(torch.int64)
    return ones.bitwise_left_shift_(4)


def _q5(blocks: Tensor, start: int) -> Tensor:
    return _nibbles(blocks, start + 4, start + 20, 16).flatten(1).bitwise_or_(_fifth_bits(blocks, start))


def _q2_k(blocks: Tensor) -> Tensor:
    return _planes(_words(blocks, 16, 80).unflatten(1, (2, 4)), _SHIFTS, 3)


def _q3_k(blocks: Tensor) -> Tensor:
    low = _planes(_words(blocks, 32, 96).unflatten(1, (2, 4)), _SHIFTS, 3).flatten(1, 2)
    high = _planes(_words(blocks, 0, 32), range(8), 1)
    return low.bitwise_or_(high.bitwise_left_shift_(2))


def _q5_k(blocks: Tensor) -> Tensor:
    high = _planes(_words(blocks, 16, 48), range(8), 1).bitwise_left_shift_(4)
    return _nibbles(blocks, 48, 176, 32).flatten(1, 2).bitwise_or_(high)


def _q6_k(blocks: Tensor) -> Tensor:
    high = _planes(_words(blocks, 128, 192).unflatten(1, (2, 4)), _SHIFTS, 3).bitwise_left_shift_(4)
    return _nibbles(blocks, 0, 128, 64).view(high.shape).bitwise_or_(high)


def _scales_of_q3_k(blocks: Tensor) -> tuple[Tensor, None]:
    words = _words(blocks, 96, 108)
    high = _planes(words[:, 2:], _SHIFTS, 3).bitwise_left_shift_(4)
    scales = _planes(words[:, :2], (0, 4), 15).view(high.shape).bitwise_or_(high)
    return _signed(scales, 32).float().unsqueeze(-1).mul_(_half(blocks, 108)), None


def _scales_of_q4_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of six bits, of Q4_K and Q5_K."""
    first, second, both = _words(blocks, 4, 16).unbind(1)
    nibble, upper, lower = 0x0F0F0F0F, 0x30303030, 0x3F3F3F3F
    scales = torch.stack((first & lower, (first >> 2) & upper | both & nibble), 1)
    minima = torch.stack((second & lower, (second >> 2) & upper | (both >> 4) & nibble), 1)
    return _scaled(scales, _half(blocks, 0)), _scaled(minima, _half(blocks, 2).neg_())


def _scaled(words: Tensor, factor: Tensor) -> Tensor:
    return _bytes(words).float().unsqueeze(-1).mul_(factor)


def _scales_of_iq4_xs(blocks: Tensor) -> tuple[Tensor, None]:
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), -1).flatten(1)
    high = torch.stack([(blocks[:, 2 + i // 4] >> 2 * (i % 4)) & 3 for i in range(8)], 1)
    scales = low.bitwise_or_(high.bitwise_left_shift_(4)).view(torch.int8).sub_(32)
    return scales.float().unsqueeze(-1).mul_(_half(blocks, 0)), None


@cache
def curve_on(device: torch.device) -> Tensor:
    """The sixteen numbers that the codes of IQ4_NL and IQ4_XS stand for."""
    numbers = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def _on_the_curve(words: Tensor) -> Tensor:
    codes = _bytes(words)
    return curve_on(codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


LAYOUTS: dict[str, Layout] = {
    "Q8_0": Layout(lambda b: b[:, 2:].view(torch.int8), lambda b: (_half(b, 0), None)),
    "Q4_0": Layout(lambda b: _signed(_nibbles(b, 2, 18, 16), 8), lambda b: (_half(b, 0), None)),
    "Q4_1": Layout(lambda b: _bytes(_nibbles(b, 4, 20, 16)), lambda b: (_half(b, 0), _half(b, 2))),
    "Q5_0": Layout(lambda b: _signed(_q5(b, 2), 16), lambda b: (_half(b, 0), None)),
    "Q5_1": Layout(lambda b: _bytes(_q5(b, 4)), lambda b: (_half(b, 0), _half(b, 2))),
    "Q2_K": Layout(
        lambda b: _bytes(_q2_k(b)),
        lambda b: (_scaled(_words(b, 0, 16) & _ONES * 15, _half(b, 80)),
                   _scaled((_words(b, 0, 16) >> 4) & _ONES * 15, _half(b, 82).neg_())),
    ),
    "Q3_K": Layout(lambda b: _signed(_q3_k(b), 4), _scales_of_q3_k),
    "Q4_K": Layout(lambda b: _bytes(_nibbles(b, 16, 144, 32)), _scales_of_q4_k),
    "Q5_K": Layout(lambda b: _bytes(_q5_k(b)), _scales_of_q4_k),
    "Q6_K": Layout(
        lambda b: _signed(_q6_k(b), 32),
        lambda b: (b[:, 192:208].view(torch.int8).float().unsqueeze(-1).mul_(_half(b, 208)), None),
    ),
    "IQ4_NL": Layout(lambda b: _on_the_curve(_nibbles(b, 2, 18, 16)), lambda b: (_half(b, 0), None)),
    "IQ4_XS": Layout(lambda b: _on_the_curve(_nibbles(b, 8, 136, 16)), _scales_of_iq4_xs),
}  # fmt: skip
"""The types whose blocks must be taken apart; the others are plain floats."""

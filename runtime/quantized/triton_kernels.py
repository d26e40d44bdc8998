"""Packed blocks to numbers in one launch, in Triton; only fused.py imports it, where Triton is installed.

There is one kernel for each family of types. Every number is taken apart by itself: it reads the byte of its code, and
the bytes of its scale, which its neighbours read too and the caches keep. Products of codes and scales are exact in
float32, or the only thing that is rounded, so that it does not matter whether a compiler fuses them with the addition.
An offset is subtracted, not negated and added: Triton negates by subtracting from zero, which loses the sign of a zero.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_AT_ONCE = 1024
_FAMILY = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"), "legacy"),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), "k"),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), "curve"),
}


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _byte(at, mask):  # type: ignore[no-untyped-def]
    """A byte as int32."""
    return tl.load(at, mask=mask, other=0).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _half(at, mask):  # type: ignore[no-untyped-def]
    """The float16 of two bytes, which need not be aligned, as float32."""
    bits = _byte(at, mask) | (_byte(at + 1, mask) << 8)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _signed_byte(at, mask):  # type: ignore[no-untyped-def]
    """A byte of two's complement as int32."""
    found = _byte(at, mask)
    return found - ((found & 128) << 1)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store(out, index, numbers, mask, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes float32 numbers in the dtype of ``out``; bfloat16 as its bits, rounded to even as PyTorch does."""
    if BF16:
        bits = numbers.to(tl.uint32, bitcast=True)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
        missing = (bits & 0x7FFFFFFF) > 0x7F800000
        tl.store(out + index, tl.where(missing, 0x7FC0, rounded).to(tl.int16), mask=mask)
    else:
        tl.store(out + index, numbers.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _legacy(packed, out, count, curve, QUANT: tl.constexpr, BF16: tl.constexpr, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of 32 numbers with one scale, and in Q4_1 and Q5_1 an offset."""
    NBYTES: tl.constexpr = (
        34 if QUANT == "Q8_0" else 18 if QUANT == "Q4_0" else 20 if QUANT == "Q4_1" else 22 if QUANT == "Q5_0" else 24
    )
    index = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    mask = index < count
    block = packed + (index // 32) * NBYTES
    e = (index % 32).to(tl.int32)
    scale = _half(block, mask)
    if QUANT == "Q8_0":
        numbers = _signed_byte(block + 2 + e, mask).to(tl.float32) * scale
    else:
        CODES: tl.constexpr = NBYTES - 16
        code = (_byte(block + CODES + e % 16, mask) >> (4 * (e // 16))) & 15
        if QUANT == "Q5_0" or QUANT == "Q5_1":
            code = code | (((_byte(block + CODES - 4 + e // 8, mask) >> (e % 8)) & 1) << 4)
        if QUANT == "Q4_0":
            code = code - 8
        if QUANT == "Q5_0":
            code = code - 16
        numbers = code.to(tl.float32) * scale
        if QUANT == "Q4_1" or QUANT == "Q5_1":
            numbers = numbers + _half(block + 2, mask)
    _store(out, index, numbers, mask, BF16)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _k(packed, out, count, curve, QUANT: tl.constexpr, BF16: tl.constexpr, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of 256 numbers in groups, whose scales are codes too."""
    NBYTES: tl.constexpr = (
        84
        if QUANT == "Q2_K"
        else 110
        if QUANT == "Q3_K"
        else 144
        if QUANT == "Q4_K"
        else 176
        if QUANT == "Q5_K"
        else 210
    )
    index = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    mask = index < count
    block = packed + (index // 256) * NBYTES
    e = (index % 256).to(tl.int32)
    group = e // 16
    crumb = 2 * ((e % 128) // 32)  # where the two bits of a number stand in their byte
    if QUANT == "Q2_K":
        code = (_byte(block + 16 + (e // 128) * 32 + e % 32, mask) >> crumb) & 3
        both = _byte(block + group, mask)
        scale = (both & 15).to(tl.float32) * _half(block + 80, mask)
        numbers = code.to(tl.float32) * scale - (both >> 4).to(tl.float32) * _half(block + 82, mask)
    elif QUANT == "Q3_K":
        low = (_byte(block + 32 + (e // 128) * 32 + e % 32, mask) >> crumb) & 3
        code = low | (((_byte(block + e % 32, mask) >> (e // 32)) & 1) << 2)
        nibble = (_byte(block + 96 + group % 8, mask) >> (4 * (group // 8))) & 15
        upper = (_byte(block + 104 + group % 4, mask) >> (2 * (group // 4))) & 3
        scale = ((nibble | (upper << 4)) - 32).to(tl.float32) * _half(block + 108, mask)
        numbers = (code - 4).to(tl.float32) * scale
    elif QUANT == "Q6_K":
        low = (_byte(block + (e // 128) * 64 + e % 64, mask) >> (4 * ((e % 128) // 64))) & 15
        upper = (_byte(block + 128 + (e // 128) * 32 + e % 32, mask) >> crumb) & 3
        scale = _signed_byte(block + 192 + group, mask).to(tl.float32) * _half(block + 208, mask)
        numbers = ((low | (upper << 4)) - 32).to(tl.float32) * scale
    else:
        CODES: tl.constexpr = NBYTES - 128
        code = (_byte(block + CODES + (e // 64) * 32 + e % 32, mask) >> (4 * ((e // 32) % 2))) & 15
        if QUANT == "Q5_K":
            code = code | (((_byte(block + 16 + e % 32, mask) >> (e // 32)) & 1) << 4)
        j = e // 32
        early = j < 4
        first, second = _byte(block + 4 + j % 4, mask), _byte(block + 8 + j % 4, mask)
        third = _byte(block + 12 + j % 4, mask)
        scale = tl.where(early, first & 63, (third & 15) | ((first >> 6) << 4))
        least = tl.where(early, second & 63, (third >> 4) | ((second >> 6) << 4))
        numbers = code.to(tl.float32) * (scale.to(tl.float32) * _half(block, mask))
        numbers = numbers - least.to(tl.float32) * _half(block + 2, mask)
    _store(out, index, numbers, mask, BF16)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _curve(packed, out, count, curve, QUANT: tl.constexpr, BF16: tl.constexpr, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes that stand for one of sixteen numbers, which lie at ``curve``."""
    index = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    mask = index < count
    if QUANT == "IQ4_NL":
        block = packed + (index // 32) * 18
        e = (index % 32).to(tl.int32)
        codes = block + 2
        scale = _half(block, mask)
    else:
        block = packed + (index // 256) * 136
        e = (index % 256).to(tl.int32)
        group = e // 32
        codes = block + 8 + group * 16
        nibble = (_byte(block + 4 + group // 2, mask) >> (4 * (group % 2))) & 15
        upper = (_byte(block + 2 + group // 4, mask) >> (2 * (group % 4))) & 3
        scale = ((nibble | (upper << 4)) - 32).to(tl.float32) * _half(block, mask)
    code = (_byte(codes + e % 16, mask) >> (4 * ((e % 32) // 16))) & 15
    _store(out, index, tl.load(curve + code, mask=mask, other=0) * scale, mask, BF16)


_KERNELS = {"legacy": _legacy, "k": _k, "curve": _curve}


def launch(packed: Tensor, quant: str, out: Tensor, curve: Tensor, bf16: bool) -> None:
    """Writes the numbers of packed rows to ``out``, contiguous; where ``bf16``, its dtype is int16 and it gets bits."""
    count = out.numel()
    grid = (triton.cdiv(count, _AT_ONCE),)
    _KERNELS[_FAMILY[quant]][grid](packed, out, count, curve, QUANT=quant, BF16=bf16, AT_ONCE=_AT_ONCE)

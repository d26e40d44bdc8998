"""Finds the scale of a block: the one with which the block's numbers, rounded to its levels, change least.

Each search tries a few scales around the obvious one (the extreme number takes the extreme level), rounds with it, and
takes the least-squares scale of what came out; the best of all tries wins. What is minimized is the plain sum of
squared errors: with inputs of which nothing is known, that is the error of a matmul.

The numbers of a block lie along the first axis, so that sums over a block are sums of whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[Any]
"""Numbers in float32 throughout, which NumPy's annotations cannot follow."""
_TINY = np.float32(1e-30)


def fit_range(values: Floats, top: int, tries: Iterable[float]) -> tuple[Floats, Floats]:
    """The scale and the offset, neither negative, with which ``scale × level − offset`` is nearest to values.

    Levels are 0 … `top`. Each try sends the largest value that much beyond `top`, and the smallest to 0.
    """
    low = np.minimum(values.min(axis=0), 0)
    spread = np.maximum(values.max(axis=0) - low, _TINY)
    total = values.sum(axis=0)
    scale, offset, best = spread / np.float32(top), -low, np.full_like(low, -np.inf)
    for beyond in tries:
        levels = np.clip(np.rint((values - low) * (np.float32(top + beyond) / spread)), 0, top)
        slope, rise, gain = _line(len(values), total, levels.sum(axis=0), _dot(levels, levels), _dot(values, levels))
        better = gain > best
        scale[better], offset[better], best[better] = slope[better], -rise[better], gain[better]
    return scale, offset


def _line(count: int, x: Floats, q: Floats, qq: Floats, xq: Floats) -> tuple[Floats, Floats, Floats]:
    """From sums, the line ``slope × q + rise``, with no rise above 0, nearest to x, and how much of Σx² it explains."""
    n = np.float32(count)
    spread = n * qq - q * q  # exactly zero where all levels are the same
    flat = spread == 0
    spread[flat] = 1
    slope, rise = (n * xq - x * q) / spread, np.where(flat, x / n, (qq * x - q * xq) / spread)
    slope = np.where(rise > 0, xq / np.maximum(qq, 1), np.where(flat, np.float32(0), slope))
    rise = np.minimum(rise, 0)
    return slope, rise, slope * (2 * xq - slope * qq) + rise * (2 * x - n * rise - 2 * slope * q)


def fit_scale(values: Floats, nearest: Callable[[Floats], Floats], tries: Iterable[float]) -> Floats:
    """The scale, of either sign, with which ``scale × level`` is nearest to values.

    `nearest` rounds to levels. Each try sends the value of the largest magnitude there.
    """
    extreme = extreme_of(values)
    inverse = np.divide(1, extreme, out=np.zeros_like(extreme), where=np.abs(extreme) > _TINY)
    scale, best = np.zeros_like(extreme), np.zeros_like(extreme)
    for target in tries:
        levels = nearest(values * (np.float32(target) * inverse))
        products, squares = _dot(values, levels), np.maximum(_dot(levels, levels), _TINY)
        gain = products * products / squares
        better = gain > best
        scale[better], best[better] = (products / squares)[better], gain[better]
    return scale


def extreme_of(values: Floats, axis: int = 0) -> Floats:
    """The value of the largest magnitude along an axis, with its sign."""
    high, low = values.max(axis=axis), values.min(axis=axis)
    extreme: Floats = np.where(high > -low, high, low)
    return extreme


def _dot(left: Floats, right: Floats) -> Floats:
    product: Floats = (left * right).sum(axis=0)
    return product

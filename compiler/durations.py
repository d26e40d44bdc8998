"""Predicted seconds as text: a number where the devices were measured, else a range around the middle."""

from __future__ import annotations

import math


def seconds_text(seconds: float, spread: float = 0.0) -> str:
    """Seconds to three digits, or the range of what may be off by a part of them, to two digits each.

    >>> seconds_text(123.4), seconds_text(0.01234), seconds_text(60, 0.25), seconds_text(79.8, 0.25)
    ('123', '0.0123', '45–75', '60–100')
    """
    if not spread or not seconds:
        return _digits(seconds, 3)
    low, high = bounds(seconds, spread)
    digits = 2 if high < 100 else 3
    return f"{_digits(low, digits)}–{_digits(high, digits)}"


def duration(seconds: float, spread: float = 0.0) -> str:
    """The same in a unit that suits them, and of a range the longest of them.

    >>> duration(51.24), duration(0.001336), duration(7.2e-07), duration(0.0016, 0.25), duration(0.88, 0.25)
    ('51.2 s', '1.34 ms', '0.72 µs', '1.2–2 ms', '0.66–1.1 s')
    """
    _, longest = bounds(seconds, spread)
    unit, scale = next((one for one in (("s", 1.0), ("ms", 1e-3)) if longest >= one[1]), ("µs", 1e-6))
    return f"{seconds_text(seconds / scale, spread)} {unit}"


def bounds(seconds: float, spread: float) -> tuple[float, float]:
    """The least and the most seconds of what may be off by a part of them."""
    return seconds * (1 - spread), seconds * (1 + spread)


def seconds_facts(seconds: float, spread: float = 0.0) -> dict[str, float]:
    """Seconds as data: the middle, and the ends of the range, which are the same where the devices were measured.

    >>> seconds_facts(10, 0.25)
    {'seconds': 10, 'seconds_low': 7.5, 'seconds_high': 12.5}
    """
    low, high = bounds(seconds, spread)
    return {"seconds": round(seconds, 3), "seconds_low": round(low, 3), "seconds_high": round(high, 3)}


def _digits(value: float, count: int) -> str:
    """A number to so many digits, without an exponent.

    >>> _digits(1234.5, 3), _digits(204.2, 2), _digits(0.5, 3), _digits(99.8, 3), _digits(5.25e-05, 2)
    ('1234', '204', '0.5', '99.8', '0.000053')
    """
    if 0 < value < 1e-4:
        return f"{value:.{count - 1 - math.floor(math.log10(value))}f}"
    is_long = value >= 100 - 0.5 * 10 ** (2 - count)  # else 99.8 would be 1e+02 to two digits
    return f"{value:.0f}" if is_long or not math.isfinite(value) else f"{value:.{count}g}"

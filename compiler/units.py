"""Numbers of bytes as people write and read them: `6`, `24GiB`, `800MiB`, `11.3 GiB`."""

from __future__ import annotations

import re
from fractions import Fraction

from .spans import Span

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?"
_SIZE = re.compile(rf"({NUMBER})\s*([a-z]*)", re.IGNORECASE)
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_WRITTEN = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "TB": 10**12, "GB": 10**9, "MB": 10**6}
_MOST = 2**60
_SHORT = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}


def parse_bytes(size: str | Span) -> int:
    """The number of bytes that a text names; a bare number counts GiB.

    `KiB`, `MiB`, `GiB`, `TiB` (also `K`, `M`, `G`, `T`) are powers of two, `KB`, `MB`, `GB`, `TB` of ten; any case.

    >>> parse_bytes("1.5"), parse_bytes("800 MiB"), parse_bytes("10GB")
    (1610612736, 838860800, 10000000000)

    Raises:
        SpecError: the text is not a size, or is one that no device has.
    """
    span = Span.whole(size) if isinstance(size, str) else size
    match = _SIZE.fullmatch(span.value)
    unit = match and ({"": GIB} | _SHORT | _UNITS).get(match[2].lower())
    if not match or not unit:
        raise span.error(f"{span.value!r} is not a size", "a number and a unit, such as 24GiB or 800MiB")
    size_in_bytes = int(Fraction(match[1]) * unit)
    if size_in_bytes > _MOST:
        raise span.error(f"{span.value!r} is larger than any memory", "a size such as 24GiB")
    return size_in_bytes


def exact_bytes(size: int) -> str:
    """The shortest text that `parse_bytes` reads back as the same number.

    >>> exact_bytes(24 * 2**30), exact_bytes(parse_bytes("5.6")), exact_bytes(parse_bytes("24GB")), exact_bytes(1001)
    ('24GiB', '5.6GiB', '24GB', '1001B')
    """
    texts = (
        f"{number_text(number)}{name}"
        for digits in range(4)
        for name, unit in _WRITTEN.items()
        if (number := -(-size * 10**digits // unit) / 10**digits) >= 1 and int(Fraction(str(number)) * unit) == size
    )
    return min((*texts, f"{size}B"), key=len)


def format_bytes(size: float) -> str:
    """The size for people to read, to one decimal.

    >>> format_bytes(12_133_000_000), format_bytes(512), format_bytes(2**30 - 1)
    ('11.3 GiB', '512 B', '1.0 GiB')
    """
    unit, name = _unit_of(size)
    return f"{size / unit:.1f} {name}" if unit > 1 else f"{size:.0f} B"


def format_bytes_beside(size: float, largest: float) -> str:
    """The size in the unit of the largest one beside which it stands, so that all are compared at a glance.

    >>> format_bytes_beside(12_133_000_000, 2**34), format_bytes_beside(246_000_000, 2**34)
    ('11.3 GiB', '0.2 GiB')
    >>> format_bytes_beside(1024, 2**34), format_bytes_beside(12, 100)
    ('<0.1 GiB', '12 B')
    """
    unit, name = _unit_of(largest)
    if unit == 1:
        return f"{size:.0f} B"
    return f"<0.1 {name}" if 0 < size < 0.05 * unit else f"{size / unit:.1f} {name}"


def _unit_of(size: float) -> tuple[int, str]:
    """The unit in which people say a size, and its name."""
    units = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
    # a little less than one, or it would be rounded to 1024.0 of the next smaller unit
    return next((one for one in units if abs(size) >= one[0] * (1 - 0.05 / 1024)), (1, "B"))


def counted(number: int, noun: str, several: str = "") -> str:
    """A number and its noun, which has an s behind it unless there is one; ``several`` is what is none of these.

    >>> counted(1, "program"), counted(4, "program"), counted(0, "entry", "entries")
    ('1 program', '4 programs', '0 entries')
    """
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def number_text(number: float) -> str:
    """The shortest text that reads back as the same number.

    >>> number_text(3.0), number_text(0.1)
    ('3', '0.1')
    """
    return repr(float(number)).removesuffix(".0")

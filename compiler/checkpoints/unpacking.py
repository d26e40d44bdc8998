"""How much of a packed weight is unpacked at once, by device, and the memory that it takes meanwhile.

On the host a piece stays in the processor's cache. On any other device each operation costs a launch, so that pieces
are as large as memory allows. The kernels are in runtime/quantized; planners count their memory with `scratch_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .quantized_types import FLOAT8, block_of

_FLOATS = frozenset({"F32", "F16", "BF16", FLOAT8})
_HALVINGS = 4
_PER_NUMBER = {**dict.fromkeys(_FLOATS, 0), "IQ4_NL": 14, "IQ4_XS": 14}
_OTHERS_PER_NUMBER = 8
"""Bytes that taking one number apart needs, its float32 included; a test measures them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """At most ``piece`` numbers are taken apart at once, and ``chunk`` bytes of numbers are multiplied at once."""

    piece: int
    chunk: int


HOST = Sizes(2**19, 14_000_000)
"""What stays in the caches of a CPU: fewer numbers pay more calls, more leave the second-level cache."""

DEVICE = Sizes(2**23, 128_000_000)
"""What keeps a device busy beyond the time of a launch."""


def sizes_on(host: bool, room: int | None = None) -> Sizes:
    """The sizes for a device.

    They are halved, and halved again, to a sixteenth at the least, until the most that they take fits into half of
    ``room``, the bytes free on the device (None: nobody counts them). Steps are coarse because the rows that are
    multiplied at once may decide which kernel a device takes, and so the last bits.

    >>> sizes_on(host=False, room=2**28)
    Sizes(piece=4194304, chunk=64000000)
    """
    if host:
        return HOST
    if room is None:
        return DEVICE
    return next((one for one, needed in _FITTING if needed <= room), _FITTING[-1][0])


def _most(sizes: Sizes) -> int:
    return sizes.chunk + sizes.piece * max(_OTHERS_PER_NUMBER, *_PER_NUMBER.values())


_HALVED = [Sizes(DEVICE.piece >> by, DEVICE.chunk >> by) for by in range(_HALVINGS + 1)]
_FITTING = [(one, 2 * _most(one)) for one in _HALVED]
"""The sizes for a device, and the bytes that must be free there; it is asked for at each product."""


def scratch_bytes(quant: str, rows: int, columns: int, itemsize: int, sizes: Sizes) -> int:
    """An upper bound of the bytes that a product with a packed weight takes beside its operands and its result.

    Args:
        quant: the type of the weight.
        rows: of the weight.
        columns: numbers in each row.
        itemsize: bytes of one number of the other operand.
        sizes: those of the device.

    >>> scratch_bytes("Q4_K", 3072, 12288, 2, HOST), scratch_bytes("Q4_K", 3072, 12288, 2, DEVICE)
    (18194304, 142606336)
    """
    most = max(sizes.chunk, 128 * columns * itemsize)  # a chunk is no fewer rows than a product takes at once
    piece = max(sizes.piece, columns, block_of(quant)[0])
    numbers = rows * columns
    return min(numbers * itemsize, most) + min(numbers, piece) * _PER_NUMBER.get(quant, _OTHERS_PER_NUMBER)

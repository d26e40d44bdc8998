"""Reads a weight, a few rows at a time, and packs them into another type on every processor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from ..compiler.checkpoints.entries import WeightEntry
from ..compiler.checkpoints.quantized_types import FLOAT8
from ..compiler.errors import WeightError
from ..runtime.packing import pack
from ..runtime.store.reader import WeightReader
from .types import Converted

_AT_ONCE = 2**20  # numbers


class Worker:
    """Threads and open files, for as long as a conversion takes."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._reader = WeightReader()

    def convert(self, weight: Converted) -> NDArray[np.uint8]:
        """The bytes of a weight in its new type.

        Raises WeightError when it cannot be read, or has numbers that the type cannot hold.
        """
        if weight.is_same:
            return self._read(weight.entry).numpy()
        shape = weight.entry.shape or (1,)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        matrix = weight.entry.reshaped((rows, columns))
        out = np.empty((rows, weight.nbytes // max(rows, 1)), np.uint8)
        step = max(1, _AT_ONCE // max(columns, 1))

        def convert(start: int) -> None:
            part = matrix.slice(start, min(start + step, rows))
            numbers = self._numbers(part)
            is_float8 = weight.quant == FLOAT8
            out[start : start + step] = _float8(numbers, weight.through) if is_float8 else pack(numbers, weight.quant)

        try:
            for _ in self._threads.map(convert, range(0, rows, step)):
                pass
        except WeightError as error:
            raise WeightError(f"{weight.name}: {error}") from error
        return out

    def _numbers(self, entry: WeightEntry) -> NDArray[np.float32]:
        data = self._read(entry)
        if not entry.is_packed:
            return data.view(entry.dtype).float().numpy().reshape(entry.shape)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        packed = data.numpy().reshape(entry.packed().shape)
        numbers: NDArray[np.float32] = dequantize(packed, GGMLQuantizationType[entry.quant])
        return numbers

    def _read(self, entry: WeightEntry) -> torch.Tensor:
        data = torch.empty(entry.nbytes, dtype=torch.uint8)
        self._reader.read_into(WeightEntry(entry.pieces, torch.uint8, (entry.nbytes,)), data)
        return data


def _float8(numbers: NDArray[np.float32], dtype: torch.dtype) -> NDArray[np.uint8]:
    """Rows of numbers as 8-bit floats, rounded to a dtype before, as diffusers' layerwise casting makes them.

    Numbers beyond the largest one, 448, become that.
    """
    if not np.isfinite(numbers).all():
        raise WeightError(f"it holds numbers that are not finite, which {FLOAT8} does not keep: load it as it is")
    packed = torch.from_numpy(numbers).to(dtype).to(torch.float8_e4m3fn)
    return packed.view(torch.uint8).numpy()


@contextmanager
def worker() -> Iterator[Worker]:
    """A worker with a thread for each processor; an interrupt stops it after what each thread has in hand."""
    threads = ThreadPoolExecutor(os.cpu_count(), "dovetail-convert")
    try:
        yield Worker(threads)
    finally:
        threads.shutdown(cancel_futures=True)

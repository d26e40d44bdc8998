"""Reads weights from their files: views of the file for the host, bytes straight to every other device.

A weight on the host is a private view of the file in memory, of which nothing is read before it is used. For another
device the bytes go, piece by piece, through one small buffer that is used again and again.
"""

from __future__ import annotations

import mmap
import os
import warnings
from io import FileIO
from pathlib import Path

import torch

from ..compiler.errors import WeightError
from ..compiler.weights import WeightEntry
from .accelerator import accelerator_of

_PIECE = 64 * 2**20


class WeightReader:
    """Reads the weights of any number of files; files stay open as long as weights are views of them."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def read(self, entry: WeightEntry, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A weight on a device, in a dtype; raises WeightError when the file has changed or cannot be read."""
        try:
            if accelerator_of(device).is_host:
                return self._view(entry).to(dtype)
            return self._send(entry, torch.empty(entry.shape, dtype=dtype, device=device))
        except (OSError, ValueError) as error:
            raise WeightError(f"{entry.file} cannot be read: {error}: download it again") from error

    def _view(self, entry: WeightEntry) -> torch.Tensor:
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        if entry.start % entry.dtype.itemsize:
            return self._send(entry, torch.empty(entry.shape, dtype=entry.dtype))
        if entry.file not in self._maps:
            with entry.file.open("rb") as file:
                self._maps[entry.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        count = entry.nbytes // entry.dtype.itemsize
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            flat = torch.frombuffer(self._maps[entry.file], dtype=entry.dtype, count=count, offset=entry.start)
        return flat.reshape(entry.shape)

    def _send(self, entry: WeightEntry, target: torch.Tensor) -> torch.Tensor:
        """Fills a tensor from the file, piece by piece."""
        flat = target.view(-1)
        step = _PIECE // entry.dtype.itemsize
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.start)
            for start in range(0, flat.numel(), step):
                count = min(step, flat.numel() - start)
                flat[start : start + count].copy_(self._piece(file, entry, count * entry.dtype.itemsize))
        return target

    def _piece(self, file: FileIO, entry: WeightEntry, nbytes: int) -> torch.Tensor:
        """The next bytes of a file, in the buffer."""
        if self._buffer.numel() < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        piece = self._buffer[:nbytes]
        done = 0
        while done < nbytes:
            count = file.readinto(piece.numpy().data[done:])
            if not count:
                raise OSError(f"it ends at byte {os.fstat(file.fileno()).st_size}, its weights at {entry.end}")
            done += count
        return piece.view(entry.dtype)

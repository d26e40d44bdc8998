"""Reads weights from their files: views of the file for the host, bytes straight to every other device.

A weight on the host is a private view of the file in memory, of which nothing is read before it is used. For another
device the bytes go through one buffer that is used again for each weight.
"""

from __future__ import annotations

import mmap
import os
import warnings
from pathlib import Path

import torch

from ..compiler.errors import WeightError
from ..compiler.weights import WeightEntry
from .accelerator import accelerator_of


class WeightReader:
    """Reads the weights of any number of files; what it opened is closed with it."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def read(self, entry: WeightEntry, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A weight on a device, in a dtype; raises WeightError when the file has changed or cannot be read."""
        try:
            there = accelerator_of(device)
            if there.is_host:
                return self._view(entry).to(dtype)
            return self._bytes(entry).view(entry.dtype).reshape(entry.shape).to(dtype).to(device, copy=True)
        except (OSError, ValueError) as error:
            raise WeightError(f"{entry.file} cannot be read: {error}: download it again") from error

    def release(self) -> None:
        """Lets go of the buffer; files stay mapped as long as a weight is a view of them."""
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._maps.clear()

    def _view(self, entry: WeightEntry) -> torch.Tensor:
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        if entry.start % entry.dtype.itemsize:
            return self._bytes(entry).clone().view(entry.dtype).reshape(entry.shape)
        if entry.file not in self._maps:
            with entry.file.open("rb") as file:
                self._maps[entry.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        count = entry.nbytes // entry.dtype.itemsize
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            flat = torch.frombuffer(self._maps[entry.file], dtype=entry.dtype, count=count, offset=entry.start)
        return flat.reshape(entry.shape)

    def _bytes(self, entry: WeightEntry) -> torch.Tensor:
        if self._buffer.numel() < entry.nbytes:
            self._buffer = torch.empty(entry.nbytes, dtype=torch.uint8)
        target = self._buffer[: entry.nbytes]
        view = target.numpy().data
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.start)
            done = 0
            while done < entry.nbytes:
                count = file.readinto(view[done:])
                if not count:
                    raise OSError(f"it ends at byte {os.fstat(file.fileno()).st_size}, before {entry.end}")
                done += count
        return target

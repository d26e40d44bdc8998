"""What a picture looks like while it is sampled, from its latents, without running a VAE.

No model is known beforehand: what of a latent is what of a picture is fitted, by least squares, to the pictures that
were painted before. So the first picture has no preview, and those of other models differ.
"""

from __future__ import annotations

import io
import math
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from ...jobs.job import Job
from .ticket import Ticket

if TYPE_CHECKING:
    import torch
    from PIL import Image

_CHANNELS = 512
"""Latents of more numbers at a place are not shown: the fit would take too long."""
_CELL = 4
"""How many pixels a side of a place of the latents becomes, at most."""


class Preview:
    """A linear map from latents to pixels, which is fitted anew after each picture."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latents: weakref.WeakKeyDictionary[Ticket, torch.Tensor] = weakref.WeakKeyDictionary()
        self._sums: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._fit: dict[tuple[int, int], np.ndarray] = {}

    def note(self, ticket: Ticket, latents: torch.Tensor) -> None:
        """Notes the latents of a job after a step; the last ones are what its picture is made of."""
        self._latents[ticket] = latents

    def end(self, ticket: Ticket, picture: Image.Image | None) -> None:
        """Fits to the picture that a job became, if it became one."""
        latents = self._latents.pop(ticket, None)
        if latents is None or picture is None:
            return
        grid = _grid(latents, picture.width, picture.height)
        if grid is None:
            return
        cell = _cell(grid, picture.width)
        rows, columns = grid.shape[:2]
        small = np.asarray(picture.convert("RGB").resize((columns * cell, rows * cell)), np.float64) / 255
        pixels = small.reshape(rows, cell, columns, cell, 3).transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)
        self._add(grid.shape[2], cell, _with_one(grid), pixels)

    def picture(self, latents: torch.Tensor, job: Job) -> bytes | None:
        """A JPEG of latents; None where nothing is known of such latents."""
        if bool(job.width) != bool(job.height) and latents.ndim == 3:
            return None  # tokens, whose rows are as many as the picture is high
        grid = _grid(latents, job.width or 1, job.height or 1)
        if grid is None:
            return None
        known = [cell for channels, cell in self._fit if channels == grid.shape[2]]
        if not known:
            return None
        cell = known[-1]
        rows, columns = grid.shape[:2]
        pixels = _with_one(grid) @ self._fit[grid.shape[2], cell]
        flat = pixels.reshape(rows, columns, cell, cell, 3).transpose(0, 2, 1, 3, 4).reshape(rows * cell, -1, 3)
        return _jpeg(flat)

    def _add(self, channels: int, cell: int, values: np.ndarray, pixels: np.ndarray) -> None:
        with self._lock:
            square, product = self._sums.get((channels, cell), (0.0, 0.0))
            square, product = 0.95 * square + values.T @ values, 0.95 * product + values.T @ pixels
            self._sums[channels, cell] = square, product
            ridge = 1e-3 * np.trace(square) / len(square) * np.eye(len(square))
            self._fit[channels, cell] = np.linalg.solve(square + ridge, product)


def _grid(latents: torch.Tensor, width: int, height: int) -> np.ndarray | None:
    """The latents of the first picture as rows, columns and channels; None of what has no such form: a video's."""
    first = latents[0].detach().float().cpu().numpy()
    if first.ndim == 3:
        grid = first.transpose(1, 2, 0)
    elif first.ndim == 2:  # a token for each place, in rows
        rows = round(math.sqrt(len(first) * height / width))
        if not rows or len(first) % rows:
            return None
        grid = first.reshape(rows, len(first) // rows, -1)
    else:
        return None
    return grid.astype(np.float64) if grid.shape[2] <= _CHANNELS and np.isfinite(grid).all() else None


def _cell(grid: np.ndarray, width: int) -> int:
    return max(1, min(_CELL, width // int(grid.shape[1])))


def _with_one(grid: np.ndarray) -> np.ndarray:
    flat = grid.reshape(-1, grid.shape[2])
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)


def _jpeg(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8)).save(file, format="jpeg", quality=85, subsampling=0)
    return file.getvalue()

"""What a call of a pipeline makes: how large, how many, and in how many steps, by its arguments and its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

_SCHEDULES = ("timesteps", "sigmas")
"""What a call takes in place of a number of steps."""


@dataclass(frozen=True)
class Picture:
    """The pixels of a picture or a frame, how many pictures and frames there are, and the steps; 0 is not known."""

    width: int = 0
    height: int = 0
    count: int = 0
    frames: int = 0
    steps: int = 0

    def words(self) -> list[str]:
        """What is known of it.

        >>> Picture(1024, 768, 2, 1, 28).words(), Picture(832, 480, 1, 81).words()
        (['1024 × 768', '2 pictures', '28 steps'], ['832 × 480', '81 frames'])
        """
        size = f"{self.width} × {self.height}" if self.width and self.height else ""
        pictures = f"{self.count} pictures" if self.count > 1 else ""
        frames = f"{self.frames} frames" if self.frames > 1 else ""
        steps = f"{self.steps} step{'s' * (self.steps > 1)}" if self.steps else ""
        return [one for one in (size, pictures, frames, steps) if one]


def picture_of(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Picture:
    """What a call of a pipeline makes.

    Args:
        call: its function, whose first parameter is the pipeline.
        args: what it is called with.
        kwargs: the same by name.
        result: what it returned; None where that is not known.
    """
    steps = _steps(call, args, kwargs)
    asked = kwargs.get("output_type")
    if (isinstance(asked, str) and asked == "latent") or not isinstance(result, (dict, tuple)):
        return Picture(steps=steps)
    try:
        made = next(iter(result.values() if isinstance(result, dict) else result), None)
        width, height, count, frames = _size(made)
    except Exception:  # objects of somebody's own may raise anything when they are looked at
        return Picture(steps=steps)
    return Picture(width, height, count, frames, steps)


def _steps(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The steps that are asked for, by the pipeline's own default where they are left open; 0 where it takes none."""
    try:
        bound = inspect.signature(call).bind_partial(None, *args, **kwargs)
    except (TypeError, ValueError):  # which the call raises itself
        return 0
    bound.apply_defaults()
    schedules = (bound.arguments.get(name) for name in _SCHEDULES)
    schedule = next((one for one in schedules if isinstance(one, (list, tuple, np.ndarray, torch.Tensor))), None)
    asked = bound.arguments.get("num_inference_steps") if schedule is None else len(schedule)
    return asked if isinstance(asked, int) and asked > 0 else 0


def _size(made: Any) -> tuple[int, int, int, int]:
    """Width, height, number of pictures and of frames; 0 of what is neither a picture nor a video."""
    width, height, counts = _pixels(made)
    known = width and height and (counts or isinstance(made, Image.Image))  # sound has no such form
    count, frames = [*counts, 1, 1][:2]
    return (width, height, count, frames) if known else (0, 0, 0, 0)


def _pixels(made: Any) -> tuple[int, int, list[int]]:
    """Width and height of pictures, arrays (channels last) or tensors (channels first), and how many there are."""
    if isinstance(made, Image.Image):
        return *made.size, []
    if isinstance(made, (list, tuple)) and made:
        width, height, counts = _pixels(made[0])
        return width, height, [len(made), *counts]
    if isinstance(made, (np.ndarray, torch.Tensor)) and made.ndim >= 3:
        *counts, first, second, third = (int(one) for one in made.shape)
        return (third, second, counts) if isinstance(made, torch.Tensor) else (second, first, counts)
    return 0, 0, []

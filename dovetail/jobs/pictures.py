"""Pictures that jobs begin with: read from the bytes that were sent, never from a place that was named."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ..cli.options.inputs import read_picture
from ..compiler.errors import UsageError
from .bounds import Bounds
from .job import Job

if TYPE_CHECKING:
    from PIL import Image

KINDS = ("PNG", "JPEG", "WEBP")
"""The formats that are read: those that clients send, and for which Pillow needs no other program."""


def opened_pictures(job: Job, bounds: Bounds) -> dict[str, Image.Image]:
    """The picture and the mask of a job, by the parameters of a call.

    Raises UsageError for what is no picture, and for one of more pixels than a job may ask for.
    """
    sent = (("image", "image", job.image), ("mask_image", "mask", job.mask))
    return {parameter: _opened(data, parameter, name, bounds) for parameter, name, data in sent if data is not None}


def _opened(data: bytes, parameter: str, name: str, bounds: Bounds) -> Image.Image:
    try:
        _check_size(data, name, bounds)
        return read_picture(io.BytesIO(data), parameter, f"the {name} that was sent", KINDS)
    except UsageError as error:
        error.field = name
        raise
    except Exception as error:  # what Pillow raises for damaged files is of many kinds
        raise UsageError(f"the {name} that was sent is damaged, or no {', '.join(KINDS)}", field=name) from error


def _check_size(data: bytes, name: str, bounds: Bounds) -> None:
    """Raises UsageError for a picture of too many pixels, by its head alone."""
    width, height = size_in_head(data, f"the {name} that was sent")
    if max(width, height) > bounds.side or width * height > bounds.pixels:
        raise UsageError(
            f"the {name} that was sent has {width} x {height} pixels, and may have {bounds.side} on a side and "
            f"{bounds.pixels} in all"
        )


def size_in_head(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of a picture, by its head alone; raises UsageError for so many pixels that Pillow refuses it."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=KINDS) as picture:
            return picture.size
    except Image.DecompressionBombError as error:
        raise UsageError(f"{name} has far more pixels than a picture may have: send a smaller one") from error

"""Pictures in bodies: inline only, as base64; an address or a path is refused before anything looks at it."""

from __future__ import annotations

import base64
import binascii
import io
import re

from ...compiler.errors import UsageError
from ...jobs.bounds import Bounds
from ...jobs.pictures import KINDS, size_in_head

_DATA = re.compile(r"data:image/[a-z.+-]{1,20};base64,", re.IGNORECASE)


def decoded(text: str, name: str, bounds: Bounds) -> bytes:
    """The bytes of a picture that is sent as base64, or as a data URL.

    Raises UsageError for an address, for what is no base64, and for more than may be sent.
    """
    head = _DATA.match(text[:60])
    data = text[head.end() :] if head else text
    if not head and re.match(r"[a-z][a-z0-9+.-]{1,20}:", text[:30], re.IGNORECASE):
        raise UsageError(f"{name} is an address: pictures are taken inline only, as base64")
    if len(data) > bounds.bytes * 4 // 3 + 4:
        raise UsageError(f"{name} has more than the {bounds.bytes} bytes that a picture may have")
    try:
        found = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{name} is no base64: pictures are taken inline only") from error
    if not found:
        raise UsageError(f"{name} is empty")
    return found


def inline(data: bytes) -> str:
    """A picture as base64."""
    return base64.b64encode(data).decode("ascii")


def transparent_part(data: bytes, name: str, bounds: Bounds) -> bytes | None:
    """A mask that is white where a picture is transparent, as OpenAI's masks are; None where it is nowhere so.

    Raises UsageError for what is no picture.
    """
    from PIL import Image, ImageOps

    try:
        width, height = size_in_head(data, f"the {name} that was sent")
        if width * height > bounds.pixels:
            raise UsageError(f"the {name} that was sent has {width} x {height} pixels: send a smaller one")
        with Image.open(io.BytesIO(data), formats=KINDS) as picture:
            if "A" not in picture.getbands() and "transparency" not in picture.info:
                return None
            alpha = ImageOps.exif_transpose(picture).convert("RGBA").getchannel("A")  # as pictures are read
    except UsageError as error:
        error.field = name
        raise
    except Exception as error:  # what Pillow raises for damaged files is of many kinds
        raise UsageError(f"the {name} that was sent is damaged, or no {', '.join(KINDS)}", field=name) from error
    if alpha.getextrema()[0] == 255:
        return None
    file = io.BytesIO()
    ImageOps.invert(alpha).save(file, format="png")
    return file.getvalue()

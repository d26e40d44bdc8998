"""Puts pictures and their captions together on one sheet."""

import textwrap
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from dovetail.demo.check import Picture

_SIDE = 128
_GAP = 10
_LABEL = 34
_FONT_SIZE = 12


def sheet(pictures: Sequence[tuple[str, Picture]], columns: int = 4) -> Image.Image:
    """Arrange captioned pictures in rows, enlarged twice, the caption below each."""
    rows = -(-len(pictures) // columns)
    size = (_GAP + columns * (_SIDE + _GAP), _GAP + rows * (_SIDE + _LABEL + _GAP))
    page = Image.new("RGB", size, "white")
    for number, (caption, picture) in enumerate(pictures):
        row, column = divmod(number, columns)
        _place(page, (_GAP + column * (_SIDE + _GAP), _GAP + row * (_SIDE + _LABEL + _GAP)), caption, picture)
    return page


def _place(page: Image.Image, corner: tuple[int, int], caption: str, picture: Picture) -> None:
    x, y = corner
    page.paste(Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS), corner)
    pen = ImageDraw.Draw(page)
    pen.rectangle((x - 1, y - 1, x + _SIDE, y + _SIDE), outline="lightgrey")
    pen.multiline_text(
        (x + _SIDE / 2, y + _SIDE + 3),
        "\n".join(textwrap.wrap(caption, 23)),
        fill="black",
        font=ImageFont.load_default(_FONT_SIZE),
        anchor="ma",
        align="center",
    )

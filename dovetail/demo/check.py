"""Reads a picture back: which coloured shapes it shows, and how they lie to each other."""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from dovetail.demo.draw import COLOURS, SHAPES, Scene, Thing

_CONTRAST = 55
_SPECK = 12
_COLOUR_LIMIT = 80.0
_FIT_LIMIT = 0.72

Mask = npt.NDArray[np.bool_]
Picture = npt.NDArray[np.uint8]


def read(picture: Picture) -> Scene | None:
    """Return the scene a picture shows, or None where it shows no such scene.

    Args:
        picture: RGB values, shape (height, width, 3).
    """
    found = [_thing(picture, patch) for patch in _patches(picture)]
    known = [(thing, centre) for thing, centre in found if thing is not None]
    if len(known) != len(found):
        return None
    if len(known) == 1:
        return Scene(known[0][0])
    return _related(*known) if len(known) == 2 else None


def _related(one: tuple[Thing, npt.NDArray[np.float64]], other: tuple[Thing, npt.NDArray[np.float64]]) -> Scene:
    down, across = np.abs(other[1] - one[1])
    axis, relation = (0, "above") if down > across else (1, "left of")
    (first, _), (second, _) = sorted((one, other), key=lambda item: float(item[1][axis]))
    return Scene(first, second, relation)


def _patches(picture: Picture) -> list[Mask]:
    """Find the connected patches that stand out from the ground, whose colour is that of the border."""
    values = picture.astype(np.float64)
    border = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    contrast = np.abs(values - np.median(border, axis=0)).max(axis=2)
    labels, count = ndimage.label(contrast > _CONTRAST)
    patches = [labels == label for label in range(1, count + 1)]
    return [patch for patch in patches if patch.sum() >= _SPECK]


def _thing(picture: Picture, patch: Mask) -> tuple[Thing | None, npt.NDArray[np.float64]]:
    rows, columns = np.nonzero(patch)
    top, left = rows.min(), columns.min()
    box = patch[top : rows.max() + 1, left : columns.max() + 1]
    centre = np.array([rows.mean(), columns.mean()])
    colour, shape = _colour(picture, patch), _shape(box)
    return (Thing(colour, shape) if colour and shape else None), centre


def _colour(picture: Picture, patch: Mask) -> str | None:
    inside = ndimage.binary_erosion(patch, iterations=2)
    values = np.median(picture[inside if inside.any() else patch], axis=0)
    distances = {name: float(np.linalg.norm(values - np.array(tint))) for name, tint in COLOURS.items()}
    best = min(distances, key=lambda name: distances[name])
    return best if distances[best] <= _COLOUR_LIMIT else None


def _shape(box: Mask) -> str | None:
    """Name the shape whose ideal outline in the same box covers the patch best (intersection over union)."""
    fits = {shape: _overlap(box, _outline(shape, *box.shape)) for shape in SHAPES}
    best = max(fits, key=lambda shape: fits[shape])
    return best if fits[best] >= _FIT_LIMIT else None


def _overlap(a: Mask, b: Mask) -> float:
    return float((a & b).sum() / (a | b).sum())


def _outline(shape: str, height: int, width: int) -> Mask:
    y = ((np.arange(height) + 0.5) / height * 2 - 1)[:, None]
    x = ((np.arange(width) + 0.5) / width * 2 - 1)[None, :]
    match shape:
        case "circle":
            return np.asarray(x**2 + y**2 <= 1)
        case "triangle":
            return np.asarray(np.abs(x) <= (y + 1) / 2)
        case _:
            return np.ones((height, width), dtype=np.bool_)

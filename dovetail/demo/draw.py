"""What the demo paints: scenes of one or two coloured shapes, the captions that describe them, and their pictures.

A scene with two things has one canonical form, with the relation `above` or `left of`; "A below B" is the scene
"B above A". The scenes held out of training are therefore held out in every phrasing.
"""

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

SIZE = 64
COLOURS = {
    "red": (220, 40, 40),
    "orange": (245, 135, 25),
    "yellow": (245, 215, 45),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "purple": (130, 50, 185),
    "pink": (245, 140, 200),
    "black": (30, 30, 30),
}
SHAPES = ("circle", "square", "triangle")
RELATIONS = ("above", "left of")
OPPOSITE = {"above": "below", "left of": "right of"}
PLACES = ("top", "bottom", "left", "right", "alone")
HELD_OUT = 100
SINGLE_SHARE = 0.12

_PLACES_OF = {
    "above": ("top", "bottom"),
    "below": ("bottom", "top"),
    "left": ("left", "right"),
    "right": ("right", "left"),
}
_OVERSAMPLE = 4
_RADIUS = (9.0, 11.0)
_NEAR, _FAR, _ACROSS = (13.0, 19.0), (45.0, 51.0), (22.0, 42.0)


@dataclass(frozen=True)
class Thing:
    """One coloured shape."""

    colour: str
    shape: str

    def __str__(self) -> str:
        return f"{'an' if self.colour[0] in 'aeiou' else 'a'} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """One thing alone, or two things of which the first is above or left of the second."""

    first: Thing
    second: Thing | None = None
    relation: str | None = None

    def captions(self) -> tuple[str, ...]:
        """Return every plain phrasing of this scene."""
        if self.second is None or self.relation is None:
            return (str(self.first),)
        forth = f"{self.first} {self.relation} {self.second}"
        back = f"{self.second} {OPPOSITE[self.relation]} {self.first}"
        return forth, back

    def phrasings(self) -> tuple[str, ...]:
        """Return the captions and their variants: "to the left of", and a capital at the start."""
        plain = self.captions()
        longer = [_with_to_the(caption) for caption in plain if " of " in caption]
        return tuple(
            variant for caption in (*plain, *longer) for variant in (caption, caption[0].upper() + caption[1:])
        )


def _with_to_the(caption: str) -> str:
    return caption.replace(" left of", " to the left of").replace(" right of", " to the right of")


def described(caption: str) -> list[tuple[int, Thing, str]]:
    """Take a caption apart: for each thing, the word it starts at, the thing, and the place it is to have."""
    words = caption.lower().split()
    if not words:
        return []
    first, last = Thing(*words[1:3]), Thing(*words[-2:])
    if len(words) == 3:
        return [(0, first, "alone")]
    here, there = next(_PLACES_OF[word] for word in words if word in _PLACES_OF)
    return [(0, first, here), (len(words) - 3, last, there)]


def in_blue(scene: Scene) -> Scene:
    """Return the scene as the demo's adapter is to paint it: the same shapes at the same places, all of them blue."""
    second = scene.second and replace(scene.second, colour="blue")
    return replace(scene, first=replace(scene.first, colour="blue"), second=second)


def things() -> list[Thing]:
    """Return the 24 things there are."""
    return [Thing(colour, shape) for colour, shape in product(COLOURS, SHAPES)]


def singles() -> list[Scene]:
    """Return the scenes with one thing; all of them are for training."""
    return [Scene(thing) for thing in things()]


@cache
def _shuffled_pairs() -> tuple[Scene, ...]:
    pairs = [Scene(a, b, relation) for (a, b), relation in product(permutations(things(), 2), RELATIONS)]
    random.Random(0).shuffle(pairs)
    return tuple(pairs)


def held_out_scenes() -> tuple[Scene, ...]:
    """Return the scenes that no training sees, in no phrasing."""
    return _shuffled_pairs()[:HELD_OUT]


def training_pairs() -> tuple[Scene, ...]:
    """Return the scenes with two things that are for training."""
    return _shuffled_pairs()[HELD_OUT:]


def held_out_captions() -> list[tuple[str, Scene]]:
    """Return one caption for each held-out scene, the phrasing drawn by lot (the same at every call)."""
    lot = random.Random(1)
    return [(lot.choice(scene.captions()), scene) for scene in held_out_scenes()]


def training_scene(lot: random.Random) -> Scene:
    """Draw a scene for training: one thing alone in `SINGLE_SHARE` of the cases, else two."""
    return lot.choice(singles()) if lot.random() < SINGLE_SHARE else lot.choice(training_pairs())


def draw(scene: Scene, lot: random.Random) -> npt.NDArray[np.uint8]:
    """Draw a picture of a scene: near-white ground, sizes, places and tints by lot; shape (64, 64, 3)."""
    ground = tuple(lot.randint(240, 255) for _ in range(3))
    picture = Image.new("RGB", (SIZE * _OVERSAMPLE, SIZE * _OVERSAMPLE), ground)
    pen = ImageDraw.Draw(picture)
    for thing, centre in _placed(scene, lot):
        tint = tuple(min(255, max(0, part + lot.randint(-8, 8))) for part in COLOURS[thing.colour])
        _paint(pen, thing.shape, centre, lot.uniform(*_RADIUS), tint)
    return np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX))


def _placed(scene: Scene, lot: random.Random) -> list[tuple[Thing, tuple[float, float]]]:
    if scene.second is None:
        return [(scene.first, (lot.uniform(*_ACROSS), lot.uniform(*_ACROSS)))]
    near, far = (lot.uniform(*_NEAR), lot.uniform(*_ACROSS)), (lot.uniform(*_FAR), lot.uniform(*_ACROSS))
    if scene.relation == "above":
        near, far = near[::-1], far[::-1]
    return [(scene.first, near), (scene.second, far)]


def _paint(
    pen: ImageDraw.ImageDraw, shape: str, centre: tuple[float, float], radius: float, tint: tuple[int, ...]
) -> None:
    x, y, r = (_OVERSAMPLE * value for value in (*centre, radius))
    match shape:
        case "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=tint)
        case "square":
            pen.rectangle((x - r, y - r, x + r, y + r), fill=tint)
        case "triangle":
            pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=tint)

import random
from itertools import chain

import numpy as np
import pytest

from dovetail.demo.check import read
from dovetail.demo.draw import (
    COLOURS,
    PLACES,
    SHAPES,
    Scene,
    Thing,
    described,
    draw,
    held_out_captions,
    held_out_scenes,
    singles,
    training_pairs,
    training_scene,
)
from dovetail.demo.words import told_of_demo

EVERY_SCENE = [*singles(), *training_pairs(), *held_out_scenes()]


@pytest.mark.parametrize("seed", range(3))
def test_the_checker_reads_every_scene_back_from_its_drawing(seed: int) -> None:
    lot = random.Random(seed)
    assert [scene for scene in EVERY_SCENE if read(draw(scene, lot)) != scene] == []


def test_every_combination_is_a_scene_once() -> None:
    pairs = len(COLOURS) * len(SHAPES)
    assert len(set(EVERY_SCENE)) == len(EVERY_SCENE) == pairs + 2 * pairs * (pairs - 1)


def test_no_held_out_caption_is_a_training_caption_in_any_phrasing() -> None:
    training = set(chain.from_iterable(scene.phrasings() for scene in [*singles(), *training_pairs()]))
    held_out = set(chain.from_iterable(scene.phrasings() for scene in held_out_scenes()))
    assert held_out.isdisjoint(training)
    assert {caption for caption, _ in held_out_captions()} <= held_out


def test_training_never_draws_a_held_out_scene() -> None:
    lot = random.Random(0)
    assert {training_scene(lot) for _ in range(20_000)}.isdisjoint(held_out_scenes())


def test_there_are_a_hundred_different_held_out_captions() -> None:
    assert len({caption for caption, _ in held_out_captions()}) == 100


def test_both_phrasings_of_a_scene_describe_the_same_things_at_the_same_places() -> None:
    for scene in EVERY_SCENE:
        seen = {frozenset((thing, place) for _, thing, place in described(text)) for text in scene.phrasings()}
        assert len(seen) == 1
        assert {place for _, place in seen.pop()} <= set(PLACES)


def test_a_caption_uses_an_before_a_vowel() -> None:
    scene = Scene(Thing("orange", "circle"), Thing("red", "square"), "above")
    assert scene.captions() == ("an orange circle above a red square", "a red square below an orange circle")


def test_the_checker_sees_no_scene_on_empty_ground_or_noise() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert read(np.full((64, 64, 3), 250, dtype=np.uint8)) is None
    assert read(noise) is None


def test_the_checker_sees_no_scene_where_there_are_three_things() -> None:
    lot = random.Random(0)
    picture = draw(Scene(Thing("red", "circle"), Thing("blue", "square"), "above"), lot).copy()
    picture[28:37, 2:11] = COLOURS["green"]
    assert read(picture) is None


def test_the_checker_sees_no_shape_in_a_cross() -> None:
    picture = np.full((64, 64, 3), 250, dtype=np.uint8)
    picture[30:34, 20:44] = picture[20:44, 30:34] = COLOURS["blue"]
    assert read(picture) is None


def test_the_checker_tells_the_colours_the_shapes_and_the_relation_apart() -> None:
    scene = Scene(Thing("red", "circle"), Thing("blue", "square"), "above")
    picture = draw(scene, random.Random(0))
    assert read(picture) == scene
    assert read(picture[::-1]) == Scene(Thing("blue", "square"), Thing("red", "circle"), "above")
    assert read(picture.transpose(1, 0, 2)) == Scene(Thing("red", "circle"), Thing("blue", "square"), "left of")


def test_what_the_demo_cannot_paint_is_told() -> None:
    assert told_of_demo({"prompt": "a red circle above a blue square", "width": 64, "height": 64}) == ("", "")
    assert told_of_demo({"prompt": "a red circle"}) == ("", "")
    words, size = told_of_demo({"prompt": "a cat on a sofa", "width": 64, "height": 32})
    assert words.startswith("the demo does not know cat, on, sofa: it paints one or two of circle")
    assert size.startswith("the demo was trained with pictures of 64 x 64 and paints no other size well: 64 x 32")
    many = told_of_demo({"prompt": " ".join(f"word{number}" for number in range(100))})[0]
    assert "word7 and 92 more: it paints" in many

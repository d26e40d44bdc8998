"""What a call makes is read from its arguments and from what it returned, whatever the form of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers.utils import BaseOutput
from PIL import Image

from dovetail.conventions.picture import Picture, picture_of


class Output(BaseOutput):
    """What a pipeline returns."""

    images: Any = None


def call(self: Any, prompt: str, num_inference_steps: int = 50, sigmas: Any = None, output_type: str = "pil") -> None:
    """A pipeline's own function."""


PICTURES = [Image.new("RGB", (48, 32))] * 2


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (PICTURES, (48, 32, 2, 1)),
        ([PICTURES, PICTURES, PICTURES], (48, 32, 3, 2)),
        (np.zeros((2, 32, 48, 3)), (48, 32, 2, 1)),
        (torch.zeros(2, 3, 32, 48), (48, 32, 2, 1)),
        (np.zeros((1, 5, 32, 48, 3)), (48, 32, 1, 5)),
        (torch.zeros(1, 5, 3, 32, 48), (48, 32, 1, 5)),
        ([np.zeros((5, 32, 48, 3))], (48, 32, 1, 5)),
        (np.zeros((1, 16000)), (0, 0, 0, 0)),
        ([], (0, 0, 0, 0)),
        ("text", (0, 0, 0, 0)),
    ],
    ids=(
        "pictures",
        "lists of pictures",
        "array",
        "tensor",
        "clip",
        "tensor of a clip",
        "list of clips",
        "sound",
        "nothing",
        "text",
    ),
)
def test_the_size_is_that_of_what_was_made(made: Any, expected: tuple[int, ...]) -> None:
    assert picture_of(call, ["a cat"], {}, Output(images=made) if made is not None else None) == Picture(*expected, 50)
    assert picture_of(call, ["a cat"], {}, (made,)) == Picture(*expected, 50)


def test_steps_are_those_asked_for() -> None:
    assert picture_of(call, [], {"prompt": "a cat", "num_inference_steps": 4}, None).words() == ["4 steps"]
    assert picture_of(call, ["a cat", 1], {}, None).words() == ["1 step"]
    assert picture_of(call, ["a cat"], {"sigmas": np.ones(9)}, None).steps == 9
    assert picture_of(call, ["a cat"], {"wrong": 1}, None) == Picture()
    assert picture_of(lambda self, prompt: None, ["a cat"], {}, (PICTURES,)).words() == ["48 × 32", "2 pictures"]


def test_latents_have_no_pixels() -> None:
    made = picture_of(call, ["a cat"], {"output_type": "latent"}, (torch.zeros(1, 4, 8, 8),))
    assert made.words() == ["50 steps"]


def test_what_a_pipeline_of_somebody_returns_hinders_nothing() -> None:
    class Odd(dict[str, Any]):
        def values(self) -> Any:
            raise RuntimeError("not to be looked at")

    class Wrong(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            raise KeyError(place)

    for result in (Odd(images=PICTURES), (Wrong(PICTURES),), (), {}, object(), (None,)):
        assert picture_of(call, ["a cat"], {"output_type": torch.zeros(2)}, result).words() == ["50 steps"]

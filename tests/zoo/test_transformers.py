"""Classes of transformers over three devices: all that they return is eager's, or they are refused in a sentence."""

from __future__ import annotations

import pytest

from dovetail.runtime import sim
from testbed.zoo.compare_transformers import compare
from testbed.zoo.of_transformers import CASES

KINDS = ("LlamaModel", "GptOssModel", "RecurrentGemmaModel", "Qwen3VLModel", "Gemma3nTextModel", "PixtralVisionModel")
"""A language model, experts, one that runs by its parts, images in text, shared keys and values, and many sizes."""


def test_there_are_at_least_a_hundred_classes() -> None:
    assert len(CASES) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_class_returns_what_eager_returns(name: str) -> None:
    """One of each kind: `python -m benchmarks.transformers` compares all classes."""
    sim.enable()
    assert compare(name).is_right

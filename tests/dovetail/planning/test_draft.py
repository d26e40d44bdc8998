"""The words for what keeps a part of a device from a component."""

from __future__ import annotations

from collections import Counter

import pytest

from dovetail.planning.draft import _why


@pytest.mark.parametrize(
    ("taken", "by_pipeline", "words"),
    [
        (2048, 0, "2.0 KiB are held by other components, or parts of this one: vae 2.0 KiB"),
        (0, 1024, "1.0 KiB are held by what the pipeline computes itself"),
        (2048, 1024, "2.0 KiB are held by other components, or parts of this one: vae 2.0 KiB, and 1.0 KiB by what "
                     "the pipeline computes itself"),
    ],
)  # fmt: skip
def test_each_who_holds_something_is_named_and_nobody_else(taken: int, by_pipeline: int, words: str) -> None:
    held = {"vae": Counter({"sim0": taken}), "text_encoder": Counter[str]()}
    assert _why("sim0", held, by_pipeline) == words

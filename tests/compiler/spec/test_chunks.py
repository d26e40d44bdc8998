"""The option that has wide parts computed in chunks: off unless asked for, for all components or for some."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.compiler.errors import SpecError
from dovetail.compiler.spec.chunks import parse_chunks

PIPELINE = {"transformer": "diffusion", "text_encoder": "te", "vae": "vae"}


@pytest.mark.parametrize(("asked", "chunks"), [("", 1), (None, 1), ("off", 1), (1, 1), ("4", 4), (4, 4), (64, 64)])
def test_it_is_off_or_a_number_of_chunks(asked: Any, chunks: int) -> None:
    assert parse_chunks(asked).count_for("transformer", "diffusion") == chunks


def test_the_more_specific_key_wins() -> None:
    chunks = parse_chunks({"": 2, "te": 4, "transformer": "off"}, PIPELINE)
    assert [chunks.count_for(*item) for item in PIPELINE.items()] == [1, 4, 2]


@pytest.mark.parametrize("text", ["", "off", "4", "2,te=4,vae=off", "transformer=2,te=8"])
def test_what_is_printed_reads_back(text: str) -> None:
    assert str(parse_chunks(text, PIPELINE)) == text


@pytest.mark.parametrize("asked", ["0", 0, -1, "many", "auto", 65, True, False, 2.5, "te=", "4&2", "٤", "9" * 5000])
def test_anything_else_is_refused(asked: Any) -> None:
    with pytest.raises(SpecError, match=r"chunks|key=value"):
        parse_chunks(asked, PIPELINE)

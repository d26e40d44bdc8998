"""The page of models that were tried names what the tables have; `python -m scripts.models_tried` prints it."""

from __future__ import annotations

from pathlib import Path

from scripts.models_tried import OF_DIFFUSERS, OF_TRANSFORMERS
from testbed.pipelines.every_pipeline import EVERY_PIPELINE
from testbed.zoo.full_size import FULL_SIZE

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()


def test_the_page_has_what_is_tried_and_nothing_else() -> None:
    before, after = PAGE.split("## Components at full size")
    pipelines, configurations = (
        [line.split(" | ")[0].removeprefix("| ") for line in part.splitlines() if line.startswith("| ")][2:]
        for part in (before, after)
    )
    assert configurations == sorted(FULL_SIZE)
    assert pipelines == sorted(set(pipelines))
    assert f"\n{len(EVERY_PIPELINE)} pipelines of {len(pipelines)} classes" in before
    assert f"\n{len(FULL_SIZE)} configurations" in after
    assert f"**diffusers** ({len(OF_DIFFUSERS)}): {', '.join(OF_DIFFUSERS)}.\n" in after
    assert f"**transformers** ({len(OF_TRANSFORMERS)}): {', '.join(OF_TRANSFORMERS)}.\n" in after

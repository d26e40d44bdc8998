"""The page of models that were tried names what the tables have; `python -m scripts.models_tried` prints it."""

from __future__ import annotations

from pathlib import Path

from testbed.pipelines.every_pipeline import EVERY_PIPELINE
from testbed.zoo.everything import CLASSES
from testbed.zoo.full_size import FULL_SIZE
from testbed.zoo.of_transformers import CASES

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text()


def test_the_page_has_what_is_tried() -> None:
    rows = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")}
    assert rows >= set(FULL_SIZE)
    assert f"\n{len(EVERY_PIPELINE)} pipelines of " in PAGE
    assert f"**diffusers** ({len(CLASSES)}): {', '.join(sorted(CLASSES))}.\n" in PAGE
    assert f"**transformers** ({len(CASES)}): {', '.join(sorted(CASES))}.\n" in PAGE

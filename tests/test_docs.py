"""What the documentation shows is what happens."""

import re
from pathlib import Path

import pytest

from dovetail.passes import pipeline
from scripts.fill_docs import FENCE, PAGES, filled


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_print_what_stands_below_them(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "PASSES", dict(pipeline.PASSES))  # a page registers a pass
    shown = page.read_text()
    assert filled(shown, page.name).splitlines() == shown.splitlines(), "run python scripts/fill_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", FENCE.sub("", page.read_text())):
        assert "://" in target or (page.parent / target).exists(), target

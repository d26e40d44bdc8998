"""What the documentation shows is what happens."""

import re
from pathlib import Path

import pytest

import dovetail
from dovetail.passes import pipeline
from scripts.fill_docs import ELSEWHERE, FENCE, PAGES, ROOT, filled

PAINTING = ("quick-start.md", "troubleshooting.md")
"""Pages whose examples paint pictures, beside those of the README."""

EXAMPLES = [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in PAINTING else []) for one in PAGES]


@pytest.mark.fifth
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_print_what_stands_below_them(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "PASSES", dict(pipeline.PASSES))  # a page registers a pass
    shown = page.read_text()
    assert filled(shown, page.name).splitlines() == shown.splitlines(), "run python scripts/fill_docs.py"


def test_a_block_for_other_machines_is_compiled_and_not_run() -> None:
    filled(f"```python\n{ELSEWHERE}two GPUs\nraise AssertionError\n```\n", "page")
    with pytest.raises(SyntaxError):
        filled(f"```python\n{ELSEWHERE}two GPUs\nno Python\n```\n", "page")


def test_every_public_name_stands_in_the_reference() -> None:
    text = (ROOT / "docs" / "python-api.md").read_text()
    assert [name for name in dovetail.__all__ if name != "__version__" and f":: dovetail.{name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", FENCE.sub("", page.read_text())):
        there = page.parent / target if target else page
        assert "://" in target or there.exists(), target
        assert not heading or "://" in target or heading in headings(there), f"{target}#{heading}"


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}

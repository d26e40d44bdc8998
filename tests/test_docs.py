"""What the documentation shows is what happens."""

import contextlib
import gc
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> Iterator[tuple[str, str | None]]:
    """The Python blocks of a page, each with the text that follows directly, if one does."""
    blocks = list(FENCE.finditer(text))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] == "python":
            follows = after and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield block[2], after[2] if after and follows else None


def printed(code: str, names: dict[str, object], page: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_print_what_stands_below_them(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for code, expected in examples(page.read_text()):
        found = printed(code, names, page.name)
        assert expected is None or found.strip() == expected.strip()
    names.clear()
    gc.collect()  # pipelines hold themselves, and memory on simulated devices


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", FENCE.sub("", page.read_text())):
        assert "://" in target or (page.parent / target).exists(), target

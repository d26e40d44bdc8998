"""The documentation as a site."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

HOME = Path(__file__).resolve().parents[1]
TOOLS = ("sphinx", "furo", "myst_parser", "sphinxcontrib.mermaid", "sphinx_copybutton")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name.partition(".")[0]) for name in TOOLS), reason="the extra docs is not here"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CONTRIBUTING says; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "docs", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.stem for page in (HOME / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_links_within_the_site_lead_to_a_place_that_is_there(site: Path) -> None:
    text = {page.name: page.read_text() for page in site.glob("*.html")}
    names = {page: set(re.findall(r'\bid="([^"]+)"', html)) for page, html in text.items()}
    wrong = []
    for page, html in text.items():
        for target in re.findall(r'<a [^>]*href="([^"]+)"', html):
            path, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            there = path or page
            if not (site / there).exists() or (anchor and unquote(anchor) not in names.get(there, {unquote(anchor)})):
                wrong.append(f"{page} → {target}")
    assert wrong == []


@pytest.mark.parametrize("name", ["load_pipeline", "compile_pipeline", "compile", "CompiledModule", "CompiledPipeline"])
def test_public_names_stand_in_the_reference(site: Path, name: str) -> None:
    assert f'id="dovetail.{name}"' in (site / "python-api.html").read_text()


def test_no_docstring_of_a_property_is_taken_for_a_type(site: Path) -> None:
    """What stands before a colon in its first line would be."""
    assert 'Type<span class="colon">' not in (site / "python-api.html").read_text()


def test_signatures_say_types_by_name(site: Path) -> None:
    html = (site / "python-api.html").read_text()
    assert "ForwardRef" not in html
    assert 'class="pre">Places<' in html

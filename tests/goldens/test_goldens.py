"""What is planned, refused and scheduled of tiny pipelines on declared rigs is what the kept texts say."""

from __future__ import annotations

import importlib.metadata
import re
from itertools import product
from pathlib import Path

import pytest

from testbed.goldens import CELLS, PUBLISHED, TEXTS, text_of
from testbed.pipelines.tiny_pipelines import PIPELINES
from tests.cases import drawn

CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"
TRACED_BY = ("torch", "diffusers", "transformers")


def is_pinned(library: str) -> bool:
    """Whether a library is here in the version in `constraints.txt`: others trace other graphs."""
    (version,) = re.findall(rf"^{library}==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    return importlib.metadata.version(library).partition("+")[0] == version


@pytest.mark.slow
@pytest.mark.skipif(not all(map(is_pinned, TRACED_BY)), reason="graphs differ with versions of PyTorch and models")
@pytest.mark.parametrize("name", drawn(PIPELINES, 4))
def test_plans_refusals_and_schedules_are_those_that_are_kept(name: str) -> None:
    kept = (TEXTS / f"{name}.txt").read_text()
    assert text_of(name).splitlines() == kept.splitlines(), "python -m testbed.goldens writes them anew"


@pytest.mark.slow
@pytest.mark.skipif(not all(map(is_pinned, TRACED_BY)), reason="graphs differ with versions of PyTorch and models")
@pytest.mark.parametrize(("name", "title"), drawn(product(PUBLISHED, CELLS), 1))
def test_the_plan_of_a_published_pipeline_is_that_which_is_kept(name: str, title: str) -> None:
    kept = (TEXTS / f"{name}.txt").read_text().partition(f"== {title}\n")[2].partition("\n== ")[0]
    assert text_of(name, titles=[title]).splitlines()[1:] == kept.splitlines(), (
        f"python -m testbed.goldens --only {name}"
    )


def test_every_pipeline_and_rig_has_a_text_that_refuses_one() -> None:
    assert {file.stem for file in TEXTS.glob("*.txt")} == {*PIPELINES, *PUBLISHED}
    for file in TEXTS.glob("*.txt"):
        text = file.read_text()
        assert [line[3:] for line in text.splitlines() if line.startswith("== ")] == [*CELLS]
        assert "refused: " in text.partition("== a refusal")[2]
        assert text.count("schedule of ") > len(CELLS)

"""Every wrong input of docs/errors.md gets the exit code and the message that stand there."""

import json
import os
from pathlib import Path

import filelock
import pytest
import torch

from scripts import bad_input
from scripts.bad_input import CASES, Answer, Case, answers, page

DOCS = Path(__file__).resolve().parents[3] / "docs" / "errors.md"


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What came back of each case, which is asked once in a run: its workers share the answers."""
    own = tmp_path_factory.getbasetemp()
    kept = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "answers.json"
    with filelock.FileLock(f"{kept}.lock"):
        if not kept.exists():
            kept.write_text(json.dumps([(case.typed, answer.code, answer.message) for case, answer in answers()]))
    return {typed: Answer(code, message) for typed, code, message in json.loads(kept.read_text())}


def test_there_are_at_least_twenty_five_cases() -> None:
    assert len({case.typed for case in CASES}) == len(CASES) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.typed)
def test_a_wrong_input_gets_its_exit_code(case: Case, answered: dict[str, Answer]) -> None:
    assert answered[case.typed].code == case.code, answered[case.typed].message


@pytest.mark.fifth
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.typed)
def test_a_wrong_input_gets_a_message_and_no_traceback(case: Case, answered: dict[str, Answer]) -> None:
    message = answered[case.typed].message
    assert len(message) > 20
    assert "Traceback" not in message


def test_the_documentation_shows_what_really_comes_back(answered: dict[str, Answer]) -> None:
    written = page([(case, answered[case.typed]) for case in CASES]).replace("addmm: mat1", "mat1")  # as 2.15 has it
    shown = DOCS.read_text()
    told = [text.partition("## The longer")[0].splitlines() for text in (shown, written)]
    assert told[0] == told[1], "run python -m scripts.bad_input > docs/errors.md"


def test_a_plan_is_cut_at_the_same_place_whatever_the_version_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = set()
    for version in ("2.11.0", "2.15.0+cu130.somebodys.own.build"):
        monkeypatch.setattr(torch, "__version__", version)
        bad_input._edit_a_plan()
        assert version in Path("cut.json").read_text()
        with pytest.raises(json.JSONDecodeError) as raised:
            json.loads(Path("cut.json").read_text())
        found.add((raised.value.lineno, raised.value.colno))
    assert found == {(9, 1)}

"""Every wrong input of docs/errors.md gets the exit code and the message that stand there."""

from pathlib import Path

import pytest

from scripts.bad_input import CASES, Answer, Case, answers, page

DOCS = Path(__file__).resolve().parents[3] / "docs" / "errors.md"


@pytest.fixture(scope="module")
def answered() -> dict[str, Answer]:
    return {case.typed: answer for case, answer in answers()}


def test_there_are_at_least_twenty_five_cases() -> None:
    assert len({case.typed for case in CASES}) == len(CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.typed)
def test_a_wrong_input_gets_its_exit_code(case: Case, answered: dict[str, Answer]) -> None:
    assert answered[case.typed].code == case.code, answered[case.typed].message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.typed)
def test_a_wrong_input_gets_a_message_and_no_traceback(case: Case, answered: dict[str, Answer]) -> None:
    message = answered[case.typed].message
    assert len(message) > 20
    assert "Traceback" not in message


def test_the_documentation_shows_what_really_comes_back(answered: dict[str, Answer]) -> None:
    written = page([(case, answered[case.typed]) for case in CASES])
    shown = DOCS.read_text()
    told = [text.partition("## The longer")[0].splitlines() for text in (shown, written)]
    assert told[0] == told[1], "run python -m scripts.bad_input > docs/errors.md"

"""Every command in a block of README.md and docs/ is one that the command line understands."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from dovetail.cli.app import app

HOME = Path(__file__).resolve().parents[1]
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def lines(page: Path) -> Iterator[str]:
    """The commands in the shell blocks of a page, without what comes before `&&` or behind `|`."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (one.partition(" | ")[0].strip() for one in line.removeprefix("$ ").split(" && "))


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_documented_commands_are_understood(page: Path) -> None:
    for line in lines(page):
        words = shlex.split(line, comments=True)
        if words and words[0].endswith("dovetail") and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, line
            COMMANDS[words[1]].make_context(words[1], words[2:])
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), line


def test_the_readme_has_commands() -> None:
    assert sum(line.startswith("dovetail ") for line in lines(HOME / "README.md")) >= 10


def test_options_that_others_are_told_of_are_there() -> None:
    known = {name for command in COMMANDS.values() for option in command.params for name in option.opts}
    rows = [line.split(" | ") for line in (HOME / "docs" / "coming-from.md").read_text().splitlines() if " | " in line]
    named = {name for *_, ours in rows for name in re.findall(r"`(-[\w-]+)", ours)}
    assert len(named) > 30
    assert named <= known

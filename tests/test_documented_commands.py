"""Every command in a block of README.md and docs/ is one that the command line understands."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dovetail import demo
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


PLANS = ("plan", "explain", "show", "compile", "verify", "convert")
"""Commands that run for any rig, and on the demo in the place of a model that a page does not name."""

LATER = (".json", ".gguf", ".safetensors", "plans/", "prompts.txt")
"""How files end that a command may need from an earlier one."""


def can_run(words: list[str], folder: Path) -> bool:
    """Whether a command of dovetail runs on a machine without a GPU, in seconds, with what is in a folder."""
    line = " ".join(words)
    needs = [word.rpartition("=")[2] for word in words if word.endswith(LATER) and words[words.index(word) - 1] != "-o"]
    there = all((folder / name).exists() for name in needs if not name.startswith(str(demo.folder())))
    on_cards = re.search(r"cuda|--max-vram \d+ ", f"{line} ") and "--rig" not in words
    paints = words[0] == "generate" and (on_cards or "--image" in words or "--model" in words)
    stays = words[0] == "serve"
    downloads = len(words) > 1 and re.fullmatch(r"[\w.-]+/[\w.-]+", words[1]) and not (folder / words[1]).exists()
    asks_for_more = re.search(r"\b(FOLDER|FILE|IN|OUT|PLAN|TOPIC)\b", line)
    return there and not (paints or stays or on_cards or downloads or asks_for_more)


def commands_of(page: Path, folder: Path) -> Iterator[list[str]]:
    """The commands of a page that can run here, after those before them; the demo is in the place of MODEL."""
    for line in lines(page):
        words = [re.sub(r"\bMODEL(_FOLDER)?\b", str(demo.folder()), word) for word in shlex.split(line, comments=True)]
        start = next((index for index, word in enumerate(words) if word.endswith("dovetail")), len(words))
        command = words[start + 1 :]
        if command and (command[0] in PLANS or str(demo.folder()) not in " ".join(words)) and can_run(command, folder):
            yield command


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands keep what they have traced for those after them."""
    return tmp_path_factory.mktemp("traces")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_documented_commands_run(page: Path, tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(traces))
    for command in commands_of(page, tmp_path):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{shlex.join(command)}\n{done.output[-2000:]}"


def test_most_documented_commands_run_here(tmp_path: Path) -> None:
    for name in ("plan.json", "times.json", "plans/"):
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
    found = [command[0] for page in PAGES for command in commands_of(page, tmp_path)]
    assert len(found) > 30
    assert {"generate", "plan", "explain", "show", "verify", "devices", "cache", "convert", "profile"} <= set(found)


def test_the_readme_has_commands() -> None:
    assert sum(line.startswith("dovetail ") for line in lines(HOME / "README.md")) >= 10


def test_options_that_others_are_told_of_are_there() -> None:
    known = {name for command in COMMANDS.values() for option in command.params for name in option.opts}
    rows = [line.split(" | ") for line in (HOME / "docs" / "coming-from.md").read_text().splitlines() if " | " in line]
    named = {name for *_, ours in rows for name in re.findall(r"`(-[\w-]+)", ours)} - {"--help"}  # click's own
    assert len(named) > 30
    assert named <= known

"""Which versions of the libraries dovetail is for, and the script that tries others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import try_version
from scripts.try_version import SMOKE, Tried, constraints, drawn, pinned, torch_of, try_versions

ROOT = try_version.ROOT
OF_2_11 = frozenset(
    """core cudagraph_unsafe data_dependent_output dynamic_output_shape flexible_layout generated inplace_view
    maybe_aliasing_or_mutating needs_contiguous_strides needs_exact_strides needs_fixed_stride_order
    nondeterministic_bitwise nondeterministic_seeded out_variant pointwise pt2_compliant_tag reduction
    view_copy""".split()
)
"""The tags of operations that torch 2.11 has."""


def test_only_tags_of_the_lowest_torch_are_asked_for() -> None:
    assert torch_of(constraints([], "lowest")) == "torch==2.11", "list the tags of that torch here"
    for folder in ("dovetail", "compiler", "passes", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            asked = set(re.findall(r"\btorch\.Tag\.(\w+)", path.read_text()))
            assert asked <= OF_2_11, f"{path} asks for {asked - OF_2_11}"


def test_the_lowest_versions_are_the_bounds_that_the_project_declares() -> None:
    lowest = constraints([], "lowest")
    assert {"torch", "numpy", "diffusers", "transformers"} <= {one.partition("==")[0] for one in lowest}
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", one) for one in lowest)


def test_a_library_without_a_lower_bound_is_named() -> None:
    project = {"dependencies": ["torch>=2.11"], "optional-dependencies": {"diffusers": ["peft", "pillow<9"]}}
    with pytest.raises(SystemExit, match="no lower bound in: peft, pillow<9"):
        try_version.lowest(project)


def test_another_torch_brings_along_its_own_libraries() -> None:
    assert constraints(["torch==2.12.1"], "newest") == ["torch==2.12.1"]
    told = constraints(["torch==2.12.1"], "tested")
    assert [one for one in told if re.match("torch==|triton|nvidia|cuda", one)] == ["torch==2.12.1"]
    assert set(pinned()) - set(told) >= {torch_of(pinned())}


@pytest.mark.parametrize("asked", ["diffusers==0.41.0", "jinja2>=3", "huggingface-hub<2"])
def test_what_was_asked_for_stands_in_the_place_of_what_is_tested_however_it_is_spelled(asked: str) -> None:
    name = try_version._name_in(asked)
    assert [one for one in constraints([asked], "tested") if try_version._name_in(one) == name] == [asked]
    assert any(try_version._name_in(one) == name for one in pinned())


def test_what_pip_cannot_install_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(command: list[Any], **_: Any) -> None:
        if "install" in command:
            raise subprocess.CalledProcessError(1, command)
        Path(command[-1]).mkdir()

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(SystemExit, match=r"pip cannot install torch==9\.9: why stands above"):
        try_version.install(tmp_path / "one", SMOKE, ["torch==9.9"], sys.executable, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--draw", "7", "torch==2.11.0"], "--draw draws the versions"),
        (["--python", "python9"], "no Python called python9"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_is_installed(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["try_version.py", *words])
    with pytest.raises(SystemExit):
        try_version.main()
    assert told in capsys.readouterr().err


def test_a_seed_draws_the_lowest_or_the_newest_torch_and_so_for_the_others() -> None:
    assert drawn(7) == drawn(7)
    found = {(torch, rest) for (torch,), rest in map(drawn, range(40))}
    assert found == {("torch==2.11", "lowest"), ("torch", "newest")}


def test_where_installing_takes_too_long_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(command: list[Any], timeout: float | None = None, **_: Any) -> None:
        if "install" in command:
            raise subprocess.TimeoutExpired(command, timeout or 0)
        Path(command[-1]).mkdir()

    monkeypatch.setattr(try_version.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", hang)
    assert try_versions(SMOKE, ["torch==2.11"], sys.executable, within=1) is None
    assert not list(tmp_path.iterdir())


def test_where_installing_takes_too_long_the_tested_torch_is_taken_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[list[str]] = []

    def tried(_tests: Any, pins: list[str], _python: str, within: float | None = None) -> Tried | None:
        told.append(pins)
        return None if within else Tried(0, (), "| a row |")

    monkeypatch.setattr(try_version, "try_versions", tried)
    monkeypatch.setattr(sys, "argv", ["try_version.py", "torch==2.15.0", "peft==0.20", "--within", "300"])
    assert try_version.main() == 0
    assert told == [["torch==2.15.0", "peft==0.20"], [torch_of(pinned()), "peft==0.20"]]
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == [
        f"installing took more than 300 s: the tested {torch_of(pinned())} is taken in its place",
        "| a row |",
    ]


def test_what_failed_is_printed_last_and_ends_in_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Tried(1, ("FAILED tests/test_a.py::test_b - assert 0",), "| a row |")
    monkeypatch.setattr(try_version, "try_versions", lambda *_: outcome)
    monkeypatch.setattr(sys, "argv", ["try_version.py", "torch==2.15.0"])
    assert try_version.main() == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [*outcome.failed, outcome.row]


def test_the_lines_about_what_failed_are_found_in_what_pytest_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    code = "print('.F\\nFAILED one\\n1 failed, 1 passed in 2 s'); raise SystemExit(1)"
    monkeypatch.setattr(try_version, "PYTEST", ("-c", code))
    assert try_version.run_tests(tmp_path, SMOKE) == (1, [".F", "FAILED one", "1 failed, 1 passed in 2 s"])


def test_the_table_of_versions_has_the_lowest_the_tested_and_a_newer_torch() -> None:
    page = (ROOT / "docs" / "devices.md").read_text()
    rows = re.findall(r"^\| [\d.]+ \| (\d+)\.(\d+)\.\d+ \|", page, flags=re.MULTILINE)
    found = {(int(major), int(minor)) for major, minor in rows}
    at_least, known = (
        tuple(map(int, torch_of(pins).removeprefix("torch==").split(".")[:2]))
        for pins in (constraints([], "lowest"), pinned())
    )
    assert {at_least, known} <= found
    assert max(found) > known

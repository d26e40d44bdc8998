from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dovetail.compiler.errors import UsageError
from dovetail.jobs.bulk.prompts import Line
from dovetail.jobs.bulk.record import Record, named
from dovetail.jobs.job import Job

OPTIONS = {"--model": "flux"}


def lines(*prompts: str) -> list[Line]:
    return [Line(number, Job(prompt)) for number, prompt in enumerate(prompts, start=1)]


def painted(record: Record, line: Line) -> None:
    file = record.path.with_name(f"{line.number}.png")
    file.touch()
    record.done(line, [file], 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Record.beside(tmp_path / "out.png")


def test_what_is_done_is_left_out_the_next_time_and_what_failed_is_not(path: Path) -> None:
    record, some = Record(path, OPTIONS, 5), lines("a", "b", "c")
    painted(record, some[0])
    record.failed(some[1], "it was to fail")
    again = Record(path, OPTIONS, 9)
    assert [line.number for line in again.left(some)] == [2, 3]
    assert again.seed == 5
    assert json.loads(path.read_text())["lines"]["2"]["error"] == "it was to fail"


def test_lines_may_be_added_and_a_picture_that_is_gone_is_painted_anew(path: Path) -> None:
    record, some = Record(path, OPTIONS, 0), lines("a", "b")
    for line in some:
        painted(record, line)
    path.with_name("1.png").unlink()
    assert [line.number for line in Record(path, OPTIONS, 0).left(lines("a", "b", "c"))] == [1, 3]


def test_a_line_that_was_painted_and_is_another_now_is_refused_until_its_picture_is_gone(path: Path) -> None:
    record, some = Record(path, OPTIONS, 0), lines("a", "b")
    for line in some:
        painted(record, line)
    with pytest.raises(UsageError, match=re.escape("1 of the 2 pictures that are done would be others now")):
        Record(path, OPTIONS, 0).left(lines("a", "x"))
    path.with_name("2.png").unlink()
    assert [line.number for line in Record(path, OPTIONS, 0).left(lines("a", "x"))] == [2]


def test_other_options_are_told(path: Path) -> None:
    painted(Record(path, OPTIONS, 0), lines("a")[0])
    with pytest.raises(UsageError, match="--dtype was not given and is float16; --model was flux and is sdxl"):
        Record(path, {"--model": "sdxl", "--dtype": "float16"}, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99, "options": {}, "seed": 0}'])
def test_a_file_that_is_no_record_is_refused_and_stays(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match="name another file, -o, or remove it"):
        Record(path, OPTIONS, 0)
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["../x.png", "/x.png", "", ".", "..", "a\0b", "a" * 5000])
def test_a_file_that_names_pictures_elsewhere_is_refused(path: Path, name: str) -> None:
    done = {"of": "x", "files": [name]}
    path.write_text(json.dumps({"version": 1, "options": OPTIONS, "seed": 0, "lines": {"1": done}}))
    with pytest.raises(UsageError, match="does not say what is done of a list"):
        Record(path, OPTIONS, 0)


def test_pictures_may_have_any_name_that_a_file_has(path: Path) -> None:
    record, (line,) = Record(path, OPTIONS, 0), lines("a")
    file = path.with_name("c:a\\b ö.png")
    file.touch()
    record.done(line, [file], 1.0)
    assert not Record(path, OPTIONS, 0).left([line])


def test_a_list_is_held_by_one_process(path: Path) -> None:
    output = path.with_name("out.png")
    with Record.held(output), pytest.raises(UsageError, match="another process works on"), Record.held(output):
        pass
    draft = path.with_name(f".{'0a' * 8}.{path.name}")
    draft.touch()
    with Record.held(output):
        assert not draft.exists()  # of a process that was killed
    with pytest.raises(UsageError, match="cannot write"), Record.held(path.parent / "none" / "out.png"):
        pass


def test_pictures_are_named_by_their_lines() -> None:
    assert named(Path("a/out.png"), 7, 200) == Path("a/out-007.png")
    assert named(Path("out.png"), 7, 12345) == Path("out-00007.png")

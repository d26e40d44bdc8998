from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dovetail.compiler.errors import DovetailError
from dovetail.jobs.bulk.board import Quiet
from dovetail.jobs.bulk.prompts import Line
from dovetail.jobs.bulk.record import Record, named
from dovetail.jobs.bulk.result import Result
from dovetail.jobs.bulk.summary import Summary
from dovetail.jobs.bulk.work import Work
from dovetail.jobs.job import Job
from dovetail.jobs.replicas import Replicas, seat
from dovetail.jobs.replicas.promised import Promised
from dovetail.jobs.replicas.tally import Tally
from dovetail.jobs.runner import Opening
from testbed.fake_replica import Fake

FAKE = (sys.executable, "-m", "testbed.fake_replica")


def listed(prompts: list[str]) -> list[Line]:
    good = [Line(number, Job(prompt, seed=number)) for number, prompt in enumerate(prompts, start=1)]
    return [*good, Line(len(prompts) + 1, error="this is no JSON")]


def work_on(folder: Path, lines: list[Line], board: Quiet | None = None) -> Work:
    record = Record(Record.beside(folder / "out.png"), {}, 0)

    def save(line: Line, pictures: list[Image.Image]) -> list[Path]:
        file = named(folder / "out.png", line.number, 9)
        pictures[0].save(file)
        return [file]

    return Work(record.left(lines), record, save, board or Quiet(len(lines)))


def seeds(folder: Path) -> dict[str, int]:
    return {path.name: Image.open(path).getpixel((0, 0))[0] for path in sorted(folder.glob("*.png"))}  # type: ignore[index]


class Interrupting(Quiet):
    def ended(self, result: Result) -> None:
        super().ended(result)
        if self.done == 3:
            raise KeyboardInterrupt


@pytest.mark.fifth
@pytest.mark.parametrize("count", [0, 3])
def test_an_interrupted_list_is_gone_on_with_and_each_line_painted_once(tmp_path: Path, count: int) -> None:
    lines = listed(["a cat"] * 8)

    def paint(work: Work) -> None:
        if not count:
            work.alone(Fake())
            return
        with Replicas({f"replica {number}": Opening() for number in range(count)}, command=FAKE) as replicas:
            work.over(replicas)

    first = work_on(tmp_path, lines, Interrupting(len(lines)))
    with pytest.raises(KeyboardInterrupt):
        paint(first)
    before = len(seeds(tmp_path))
    assert before >= 3
    assert sum(not one.error for one in first.results) == before
    again = work_on(tmp_path, lines)
    assert len(again.lines) == 9 - before
    paint(again)
    assert seeds(tmp_path) == {f"out-{number:03}.png": number for number in range(1, 9)}
    assert [one.line.number for one in Summary(again.results, before, 1.0, [], again.record.path).failed] == [9]
    assert work_on(tmp_path, lines).lines == lines[-1:]


@pytest.mark.fifth
def test_a_picture_that_is_written_is_noted_though_an_interrupt_comes_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, calls, note = work_on(tmp_path, listed(["a cat"] * 8)), [0], Work._note

    def interrupted(self: Work, result: Result, **more: bool) -> None:
        calls[0] += 1
        if calls[0] == 3:  # the first is that of the line without a job
            raise KeyboardInterrupt
        note(self, result, **more)

    monkeypatch.setattr(Work, "_note", interrupted)
    replicas = Replicas({name: Opening() for name in ("one", "two")}, command=FAKE)
    with replicas, pytest.raises(KeyboardInterrupt):
        work.over(replicas)
    written = len(seeds(tmp_path))
    assert written >= 2
    assert sum(not one.error for one in work.results) == written
    assert len(Record(work.record.path, {}, 0).left(work.lines)) == 9 - written


@pytest.mark.fifth
def test_lines_that_fail_or_end_replicas_lose_no_other(tmp_path: Path) -> None:
    work = work_on(tmp_path, listed(["a cat", "fail", "a dog", "die", "a cow", f"once {tmp_path / 'file'} die"]))
    with Replicas({name: Opening() for name in ("one", "two")}, command=FAKE) as replicas:
        work.over(replicas)
    summary = Summary(work.results, 0, 3600.0, ["one", "two"], work.record.path)
    assert list(seeds(tmp_path).values()) == [1, 3, 5, 6]
    told = list(summary.lines())
    assert told[0] == "4 pictures in 3600 s over 2 replicas: 4 an hour"
    assert told[1] == "3 failed, and the same command tries them again:"
    assert told[2] == "  line 2: it was to fail"
    assert told[3].startswith("  line 4: 2 replicas ended while they had it; the last: process ")
    assert told[4] == "  line 7: this is no JSON"
    assert summary.document()["painted"] == 4


class Board(Quiet):
    """Interrupts at a line."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self.at = at

    def ended(self, result: Result) -> None:
        super().ended(result)
        if result.line.number == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [-1, 3990])
def test_a_long_list_is_written_seldom_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    written: list[int] = []
    own = Record.write
    monkeypatch.setattr(Record, "write", lambda record: (written.append(1), own(record))[1])
    lines = [Line(number, error="this is no JSON") for number in range(1, 4000)]
    work = work_on(tmp_path, [*lines, *(Line(number, Job("a cat")) for number in range(4000, 4004))], Board(at))
    if at > 0:
        with pytest.raises(KeyboardInterrupt):
            work.alone(Fake())
    else:
        work.alone(Fake())
    assert len(written) < 400
    again = Record(work.record.path, {}, 0)
    assert len(again.left(work.lines)) == (4003 if at > 0 else 3999)
    assert len(json.loads(work.record.path.read_text())["lines"]) == (3990 if at > 0 else 4003)


@pytest.mark.fifth
def test_a_picture_that_cannot_be_written_ends_the_list(tmp_path: Path) -> None:
    work = work_on(tmp_path, listed(["a cat"] * 4))

    def save(line: Line, pictures: list[Image.Image]) -> list[Path]:
        raise DovetailError("cannot write it: the disk is full")

    work.save = save
    with pytest.raises(DovetailError, match="disk is full"), Replicas({"one": Opening()}, command=FAKE) as replicas:
        work.over(replicas)
    with pytest.raises(DovetailError, match="disk is full"):
        work.alone(Fake())


def ends(work: Work, replicas: Replicas) -> bool:
    thread = threading.Thread(target=work.over, args=(replicas,), daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


@pytest.mark.fifth
def test_pictures_that_cannot_be_read_fail_their_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = seat.unpacked_pictures

    def failing(facts: Any, data: bytes) -> list[Image.Image]:
        if data[0] == 2:
            raise KeyError("ZZZ")
        return unpacked(facts, data)

    monkeypatch.setattr(seat, "unpacked_pictures", failing)
    work = work_on(tmp_path, listed(["a cat"] * 4))
    with Replicas({"one": Opening()}, command=FAKE) as replicas:
        assert ends(work, replicas)
        assert replicas.seats[0].lost is None
    assert list(seeds(tmp_path).values()) == [1, 3, 4]
    assert ["cannot be read: KeyError: 'ZZZ'" in one.error for one in work.results if one.line.number == 2] == [True]


@pytest.mark.fifth
def test_a_seat_that_fails_by_a_defect_fails_its_line_and_the_list_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = threading.Semaphore()

    def failing(tally: Tally, name: str, facts: Any) -> None:
        if first.acquire(blocking=False):
            raise KeyError("ZZZ")

    monkeypatch.setattr(Tally, "add", failing)
    work = work_on(tmp_path, listed(["a cat"] * 8))
    with Replicas({"one": Opening(), "two": Opening()}, command=FAKE) as replicas:
        assert ends(work, replicas)
    failed = [one.error for one in work.results if one.error and one.line.job]
    assert [error.partition(": ")[2] for error in failed] == ["KeyError: 'ZZZ'"]
    assert len(seeds(tmp_path)) == 7


def test_a_job_that_is_cancelled_elsewhere_counts_as_failed(tmp_path: Path) -> None:
    class Cancelling:
        def submit(self, job: Job, on_step: Any) -> Promised:
            promised = Promised(job, on_step)
            promised.cancel()
            return promised

    work = work_on(tmp_path, listed(["a cat"] * 2))
    work.over(Cancelling())
    assert sum("ended before it was painted" in one.error for one in work.results) == 2

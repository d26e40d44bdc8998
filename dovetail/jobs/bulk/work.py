"""Paints a list of prompts, one after another or over replicas, and notes what is done."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..expecting import Expecting
from ..job import Job
from ..replicas.payload import told_of
from ..replicas.promised import Promised
from ..steps import OnStep
from .board import Quiet
from .prompts import Line
from .record import Record
from .result import Result

if TYPE_CHECKING:
    from PIL import Image

    from ..runner import Painter

SAVERS = 4
"""So many pictures are written at the same time."""


class Crew(Protocol):
    """What paints several jobs at the same time."""

    def submit(self, job: Job, on_step: OnStep) -> Promised:
        """The pictures of a job, once they are painted."""


@dataclass
class Work:
    """The lines that are to be painted, and where the pictures go.

    Args:
        lines: those that are not done.
        record: where it is noted what is done.
        save: writes the pictures of a line to files.
        board: is told how far it is.
    """

    lines: Sequence[Line]
    record: Record
    save: Callable[[Line, list[Image.Image]], list[Path]]
    board: Quiet = field(default_factory=Quiet)
    results: list[Result] = field(default_factory=list)
    """What became of the lines that are done now, in the order in which they ended."""

    def alone(self, painter: Painter | None) -> None:
        """Paints in this process, one line after another; ``painter`` is None where no line can be painted."""
        with self.record.changed():
            lines = self._sound()
            for line, following in zip_longest(lines, lines[1:]):
                assert painter is not None
                if isinstance(painter, Expecting):
                    painter.expect(following.job if following is not None else None)
                self._note(self._painted(line, painter))

    def _painted(self, line: Line, painter: Painter) -> Result:
        """What became of a line that is painted here."""
        began = time.perf_counter()

        def on_step(done: int, total: int, latents: object) -> None:
            self.board.stepped(line, "", done, total)

        assert line.job is not None
        try:
            pictures = painter.run(line.job, on_step)
        except Exception as error:  # of one line: the others are painted all the same
            return Result(line, error=told_of(error)["error"])
        return self._saved(line, pictures, began)

    def over(self, crew: Crew) -> None:
        """Paints over several replicas; what is painted is written while they paint on.

        What was painted when this is interrupted is written and noted still.
        """
        results: list[Result] = []  # an interrupt that comes between taking one and noting it loses none
        more: queue.SimpleQueue[None] = queue.SimpleQueue()
        promised: dict[int, Promised] = {}

        def end(result: Result) -> None:
            results.append(result)
            more.put(None)

        with self.record.changed(), ThreadPoolExecutor(SAVERS, "dovetail-saving") as savers:
            lines = self._sound()
            try:
                for line in lines:
                    self._submit(crew, line, promised, savers, end)
                for at in range(len(lines)):
                    more.get()
                    self._note(results[at])
            except BaseException:
                unwanted = list(promised.values())
                promised.clear()
                for one in unwanted:
                    one.cancel()
                savers.shutdown()
                for result in results:
                    if all(result is not noted for noted in self.results):
                        self._note(result, is_over=True)
                raise

    def _sound(self) -> list[Line]:
        """The lines that have a job; of the others it is noted that they have none."""
        for line in self.lines:
            if line.job is None:
                self._note(Result(line, error=line.error))
        return [line for line in self.lines if line.job is not None]

    def _submit(
        self, crew: Crew, line: Line, promised: dict[int, Promised], savers: ThreadPoolExecutor,
        end: Callable[[Result], None],
    ) -> None:  # fmt: skip
        """Has a line be painted, then written, and tells ``end`` then what became of it."""
        assert line.job is not None
        began = [0.0]

        def on_step(done: int, total: int, latents: object) -> None:
            began[0] = began[0] or time.perf_counter()
            known = promised.get(line.number)  # a replica may be quicker than this thread
            self.board.stepped(line, known.replica if known is not None else "", done, total)

        def save(one: Promised) -> None:
            promised.pop(line.number, None)  # which has the picture
            error = one.exception()
            failed = Result(line, error=told_of(error)["error"]) if error is not None else None
            end(failed or self._saved(line, one.result(), began[0]))

        def painted(one: Any) -> None:
            if one.cancelled():
                if promised.pop(line.number, None) is not None:  # else it is not waited for any more
                    end(Result(line, error="its replica was ended before it was painted"))
                return
            with contextlib.suppress(RuntimeError):  # where this was interrupted nothing more is written
                savers.submit(save, one)

        promised[line.number] = crew.submit(line.job, on_step)
        promised[line.number].add_done_callback(painted)

    def _saved(self, line: Line, pictures: list[Image.Image], began: float) -> Result:
        seconds = time.perf_counter() - began
        try:
            return Result(line, self.save(line, pictures), seconds=seconds)
        except Exception as error:
            return Result(line, error=told_of(error)["error"], fatal=error)

    def _note(self, result: Result, *, is_over: bool = False) -> None:
        """Notes what became of a line; raises what hinders all of them, unless it is over anyway."""
        if result.fatal is not None and is_over:
            return
        if result.fatal is not None:
            raise result.fatal
        if result.error:
            self.record.failed(result.line, result.error)
        else:
            self.record.done(result.line, result.files, result.seconds)
        self.results.append(result)
        self.board.ended(result)

"""The place of one replica: has its process be started, gives it jobs, and has another one take its place if it ends.

One thread does all this. What a process is told from elsewhere is that a job is not wanted any more, and to end.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pydantic import TypeAdapter

from ...compiler.errors import DovetailError
from ..facts import Facts
from .payload import error_of, unpacked_latents, unpacked_pictures
from .process import Process
from .promised import Promised, Waiting
from .tally import Tally
from .wire import Message

STARTS = 2
"""So often in a row a process may end before it is ready."""

DEATHS = 5
"""So often in a row a process may end that was ready, without a job being done in between."""

KILLED = 2
"""So many replicas may end while they have one job."""

_LOOK = 1.0
"""Seconds after which a thread that waits for a job looks whether its process is there still."""

_numbers = itertools.count(1)


class Seat:
    """One replica, whichever process it is.

    Args:
        name: what it is called.
        command: what starts a process.
        setup: what that is told first.
        waiting: where jobs come from, and go back to.
        tally: is given what a process says of itself after each job.
        told: is given what is to be known of it.
        gone: is called when it has ended for good.
    """

    def __init__(
        self, name: str, command: Sequence[str], setup: Mapping[str, Any], waiting: Waiting, tally: Tally,
        told: Callable[[str], None], gone: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.ready: Future[None] = Future()
        """Whether it was opened; the error where it cannot be."""
        self.lost: DovetailError | None = None
        """Why there is no process any more."""
        self._command, self._setup, self._waiting, self._tally = command, setup, waiting, tally
        self._told, self._gone = told, gone
        self._process: Process | None = None
        self._has: Promised | None = None
        self._is_closing = False
        self._changing = threading.Lock()
        self._deaths = 0
        self._thread = threading.Thread(target=self._run, name=f"dovetail {name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The number of its process, if there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begins to start it, and does not wait for that."""
        self._thread.start()

    def let_go(self) -> None:
        """Has it end, and does not wait for that; what it has is not painted."""
        with self._changing:
            self._is_closing = True
            if self._process is not None:
                self._process.let_go()
        if self._has is not None:
            self._has.cancel()

    def end(self) -> None:
        """Has it end, and waits for that."""
        self.let_go()
        if self._process is not None:
            self._process.end()
        if self._thread.is_alive():
            self._thread.join(_LOOK)

    def _run(self) -> None:
        try:
            while (process := self._started()) is not None:
                self._work(process)
                process.end()
        except Exception as error:  # a defect of ours: nobody is to wait for ever
            self._fail(DovetailError(f"{self.name}: {type(error).__name__}: {error}"))
        finally:
            if self._has is not None:
                self._has.cancel()
            self._gone()

    def _started(self) -> Process | None:
        """A process that is ready; None where none can be, or none is wanted."""
        why = ""
        for _ in range(STARTS):
            process = self._new_process()
            message = process.hear() if process is not None else None
            if process is not None and message is not None and message.what == "ready":
                if not self.ready.done():
                    self.ready.set_result(None)
                return process
            if process is None or self._is_closing:
                return None
            why = "" if message is not None else process.how_it_ended()
            process.end()
            if message is not None:
                self._give_up(error_of(message.said["error"]))
                return None
        self._give_up(DovetailError(f"{self.name} cannot start: {why}"))
        return None

    def _new_process(self) -> Process | None:
        with self._changing:
            if self._is_closing or self._deaths >= DEATHS:
                return None
            try:
                self._process = Process(self._command, self._setup, self._told)
            except OSError as error:
                self._give_up(DovetailError(f"{self.name} cannot start: {error.strerror or error}"))
                return None
            return self._process

    def _work(self, process: Process) -> None:
        """Gives jobs to a process until it ends, or is to end."""
        while not self._is_closing:
            self._has = self._waiting.take(_LOOK)
            if self._has is None and not process.is_alive:
                self._died(process, None)
                return
            if self._has is not None and not self._painted(process, self._has):
                self._died(process, self._has)
                return

    def _painted(self, process: Process, promised: Promised) -> bool:
        """Has a job be painted; whether the process lives."""
        number = next(_numbers)
        if not promised.begins(self.name, lambda: process.tell("cancel", number=number)):
            return True
        what = "check" if promised.checks else "paint"
        likely = self._waiting.likely()
        job, following = promised.job.to_json(), likely.to_json() if likely is not None else ""
        if not process.tell(what, number=number, job=job, following=following, latents=promised.latents):
            return False
        while (message := process.hear()) is not None:
            if message.what == "step":
                self._step(process, promised, message)
                continue
            if message.what == "done":
                self._tally.add(self.name, TypeAdapter(Facts).validate_python(message.said["facts"]))
                self._keep(promised, message)
            elif message.what == "failed":
                promised.fail(error_of(message.said["error"]))
            self._deaths = 0
            return True
        return False

    def _keep(self, promised: Promised, message: Message) -> None:
        """Hands on the pictures of a job, which fails where they cannot be read; the process goes on."""
        try:
            pictures = unpacked_pictures(message.said["pictures"], message.data)
        except Exception as error:
            promised.fail(DovetailError(f"its pictures cannot be read: {type(error).__name__}: {error}"))
            return
        promised.keep(pictures)

    def _step(self, process: Process, promised: Promised, message: Message) -> None:
        """Tells who wanted a job of a step; what is raised there ends the job."""
        if promised.done():
            return
        said = message.said
        try:
            promised.on_step(said["done"], said["total"], unpacked_latents(said["shape"], message.data))
        except Exception as error:
            promised.fail(error)
            process.tell("cancel", number=said["number"])

    def _died(self, process: Process, promised: Promised | None) -> None:
        """A process has ended that was not to: its job goes to another one, if that may be."""
        if self._is_closing:
            return
        why = process.how_it_ended()
        self._deaths += 1
        if promised is not None and not promised.done():
            promised.deaths += 1
            if promised.deaths >= KILLED:
                promised.fail(DovetailError(f"{promised.deaths} replicas ended while they had it; the last: {why}"))
            else:
                self._waiting.put(promised, first=True)
        self._has = None
        if self._deaths < DEATHS:
            self._told(f"{why}: another one takes its place")
            return
        self._give_up(DovetailError(f"{self.name} ended {DEATHS} times in a row; the last time, {why}"))

    def _fail(self, error: DovetailError) -> None:
        """Ends its job with an error, and then the process."""
        if self._has is not None:
            self._has.fail(error)
        self._give_up(error)
        if self._process is not None:
            self._process.end()

    def _give_up(self, error: DovetailError) -> None:
        self.lost = error
        if not self.ready.done():
            self.ready.set_exception(error)
            return
        self._told(f"no other one takes its place: {error}")

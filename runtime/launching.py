"""Calls that go on while their caller does: each in a thread, on a stream of its own, from inputs that nobody writes.

A launched call has copies of its inputs, made before it is launched, so that the caller may write to its own. On its
device it comes after what the caller has put on the current stream before. Calls on one device follow each other in the
order in which they were launched. Whoever reads a result waits for the call, and the device that it is read on waits
for its event.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from ..compiler.errors import ExecutionError
from .devices.accelerator import Event, accelerator_of
from .devices.transfers import Arrival, start_snapshot

_LOOK = 0.2
"""After so many seconds who waits for a call looks whether it is over."""

_START = 0.2
"""So many seconds may pass until a thread has begun whose start was interrupted."""

Run = Callable[[list[torch.Tensor]], list[Any]]
"""Computes the leaves of a result from inputs on the device; takes the list over."""


class Launched:
    """A call that was launched on a device.

    Args:
        name: what is said of it where it fails.
        device: where it computes.
        run: does so.
        inputs: the tensors of the call, wherever they lie.
        after: the call that was launched on the device before.

    Raises what copying an input raises; nothing goes on then.
    """

    def __init__(
        self, name: str, device: torch.device, run: Run, inputs: Sequence[torch.Tensor], after: Launched | None = None
    ) -> None:
        self.name, self.device = name, device
        self._run, self._after = run, after
        self._coming: list[Arrival] = [start_snapshot(one, device) for one in inputs]
        there = accelerator_of(device)
        self._ready = there.record(there.current_stream())  # weights that were brought there, say
        self._inputs: list[torch.Tensor] = []
        self._leaves: list[Any] = []
        self._done: Event = None
        self._error: BaseException | None = None
        self._is_done = False
        self._made, self._process = time.monotonic(), os.getpid()
        self._working = threading.Lock()  # a join that is interrupted takes a thread for ended that works
        self._working.acquire()
        self._mode = torch.is_inference_mode_enabled()
        work = contextvars.copy_context().run, (self._work,)
        # No daemon: the interpreter waits for it at its end, where PyTorch would abort a thread that is cut off.
        self._thread = threading.Thread(target=work[0], args=work[1], name=f"launched: {name}", daemon=False)

    def start(self) -> None:
        """Has it begin; whoever keeps it waits for it, whatever interrupts this."""
        self._thread.start()

    def join(self) -> None:
        """Waits until it was issued, or has failed."""
        while not self.is_over:
            if self._working.acquire(timeout=_LOOK):
                self._working.release()  # for others who wait
        if self._thread.ident is not None and self._process == os.getpid():
            self._thread.join(_LOOK)  # which has nothing left to do

    @property
    def is_over(self) -> bool:
        """Whether it was issued, has failed, or never began; in a forked child nothing goes on."""
        never = self._thread.ident is None and time.monotonic() > self._made + _START  # until then it may begin yet
        return self._is_done or never or self._process != os.getpid()

    def wait(self) -> None:
        """Has what comes next on the current stream of its device come after it, when it is over."""
        there = accelerator_of(self.device)
        there.wait(there.current_stream(), self._done)

    @property
    def error(self) -> BaseException | None:
        """What it has failed with."""
        return self._error

    def leaves(self) -> list[Any]:
        """The leaves of its result, on its device, to be used on the current stream there; raises its error."""
        self.join()
        if not self._is_done:
            raise ExecutionError(
                f"{self.name} was launched on {self.device} and is not done: it never began, or did in another process"
            )
        if self._error is not None:
            raise self._error
        self.wait()
        there = accelerator_of(self.device)
        for one in self._leaves:
            if isinstance(one, torch.Tensor):
                there.keep(one, there.current_stream())
        return self._leaves

    def again(self) -> None:
        """Computes it once more, on the thread of the caller, where it has failed."""
        self._error = None
        self._try()

    def end(self) -> None:
        """Lets go of its inputs and results."""
        self._coming, self._inputs, self._leaves, self._after = [], [], [], None

    def _work(self) -> None:
        try:
            if self._after is not None:
                self._after.join()
            self._try()
        finally:
            self._after = None
            self._is_done = True
            self._working.release()

    def _try(self) -> None:
        there = accelerator_of(self.device)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode(self._mode))  # which turns gradients on
                stack.enter_context(torch.no_grad())
                stack.enter_context(there.use(there.side_stream("launched")))
                there.wait(there.current_stream(), self._ready)
                self._inputs += [one.wait() for one in self._coming]
                self._coming = []
                self._leaves = self._run(list(self._inputs))
                self._inputs = []
        except BaseException as error:
            self._error = error
        self._done = there.record(there.side_stream("launched"))

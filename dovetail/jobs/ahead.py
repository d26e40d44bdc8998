"""Encodes the prompt of the next job while the last one is sampled, on a thread of ours, where devices allow.

The thread begins after the first step, and is joined before the job's call is over for its caller, whatever happens in
it: none outlives a job. What it fails with is dropped, for the next job itself will raise it.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..components.encoded import Encoded, Encoding, answering_from
from ..components.running_ahead import EndedError, GivenNumbersAlone, run_ahead
from ..planning.ahead import NotAheadError, encoding_ahead
from ..planning.isolated import isolated_beside, quiet
from ..runtime.devices.accelerator import Event, accelerator_of

if TYPE_CHECKING:
    from ..pipelines.pipeline import CompiledPipeline

logger = logging.getLogger(__name__)

_LOOK = 0.2
"""After so many seconds who waits for the thread looks whether it is over."""

_START = 0.2
"""So many seconds may pass until the thread has begun whose start was interrupted."""

_PURPOSE = "encoding ahead"


class EncoderThread:
    """A thread that makes the front of a call.

    On each device it works on a stream of its own, which comes after what the caller has put on the current one.

    Args:
        call: makes the call, until an EndedError.
        encoding: has its calls of encoders answered, and stops it.
        devices: those that it works on.
    """

    def __init__(self, call: Callable[[], Any], encoding: Encoding, devices: Sequence[torch.device]) -> None:
        self._call, self._encoding = call, encoding
        self._there = [there for one in devices if (there := accelerator_of(one)).has_streams]
        self._ready: list[Event] = [there.record(there.current_stream()) for there in self._there]
        self._current = [accelerator_of(one) for one in _current_among(devices)]
        self._process, self._mode = os.getpid(), torch.is_inference_mode_enabled()
        self._count = torch.get_num_threads()
        self._begun = 0.0
        run = contextvars.copy_context().run
        # No daemon: the interpreter waits for it at its end, where PyTorch would abort a thread that is cut off.
        self._thread = threading.Thread(target=run, args=(self._work,), name="dovetail encoding", daemon=False)

    def start(self) -> None:
        """Has it begin; whoever keeps it joins it, whatever interrupts this."""
        self._begun = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Asks it to end at its next call of a component."""
        self._encoding.is_stopped = True

    def join(self) -> None:
        """Waits until it is over; an interrupt meanwhile stops it, and is raised then. In a fork there is none."""
        interrupted: BaseException | None = None
        while self._is_going:
            try:
                self._thread.join(_LOOK) if self._thread.ident is not None else time.sleep(0)
            except BaseException as error:  # an interrupt, of which there may be several
                interrupted = error
                self.stop()
        if interrupted is not None:
            raise interrupted

    @property
    def _is_going(self) -> bool:
        """Whether it works, or may begin yet, for its start was interrupted."""
        may_begin = self._thread.ident is None and time.monotonic() < self._begun + _START
        return self._process == os.getpid() and (self._thread.is_alive() or may_begin)

    def _work(self) -> None:
        try:
            torch.set_num_threads(self._count)  # each thread has a number of its own until it asks
            with contextlib.ExitStack() as stack:
                stack.enter_context(answering_from(None))
                stack.enter_context(run_ahead(self._encoding))
                stack.enter_context(quiet())
                stack.enter_context(np.errstate(all="ignore"))
                stack.enter_context(torch.inference_mode(self._mode))  # which turns gradients on
                stack.enter_context(torch.no_grad())
                self._on_streams(stack)
                stack.enter_context(GivenNumbersAlone())
                self._call()
        except EndedError as why:
            logger.debug("encoding ahead has ended: %s", str(why))
        except BaseException as error:
            logger.debug("encoding ahead has failed: %s: %s", type(error).__name__, str(error))
        finally:
            del self._call  # which has a pipeline

    def _on_streams(self, stack: contextlib.ExitStack) -> None:
        """Has this thread work on streams of its own, all of which is done at the end."""
        for there, ready in zip(self._there, self._ready, strict=True):
            stream = there.side_stream(_PURPOSE)
            stack.enter_context(there.use(stream))
            stack.callback(there.finish)
            there.wait(stream, ready)
        for there in self._current:  # which choosing a stream changes
            stack.enter_context(there.as_current())


def _current_among(devices: Sequence[torch.device]) -> list[torch.device]:
    """The current device of each type of device that has streams."""
    kinds = dict.fromkeys(one.type for one in devices if accelerator_of(one).has_streams)
    return [torch.device(kind, torch.get_device_module(torch.device(kind)).current_device()) for kind in kinds]


@dataclass(frozen=True)
class NextCall:
    """The call that likely comes next: of which pipeline, and with which arguments."""

    pipe: Any
    arguments: Mapping[str, Any]


class Ahead:
    """What is encoded ahead for the jobs of one pipeline, one after another."""

    def __init__(self) -> None:
        self._encoded = Encoded()
        self._beside: Hashable = None
        self.taken = 0
        """How many calls of encoders were answered with what was there."""

    @contextlib.contextmanager
    def painting(self, beside: Hashable, following: NextCall | None) -> Iterator[Callable[[], None]]:
        """A job: its calls of encoders take what is there, and the next call is encoded meanwhile.

        What is there and not taken is dropped.

        Args:
            beside: what has to be as it was when that was encoded: the adapters.
            following: the call that likely comes next with the same, if one is known.

        Gives what is to be called, by the thread of the job, when a step has ended after which nothing but sampling and
        decoding comes.
        """
        known, self._encoded = self._encoded, Encoded()
        if beside != self._beside:
            known.drop()
        self._beside = beside
        begun, is_done = _Begun(known, self._encoded, following), False
        try:
            with answering_from(known):
                yield begun.step_ended
            is_done = True
        finally:
            self.taken += known.taken
            self._end(begun, is_done)

    def _end(self, begun: _Begun, is_done: bool) -> None:
        """Waits for the thread of a job; of one that was broken off it is stopped, and nothing stays that it made."""
        try:
            if not is_done:
                begun.stop()
            begun.join()
        except BaseException:
            is_done = False
            raise
        finally:
            if not is_done:
                self._encoded.drop()

    def drop(self) -> None:
        """Lets go of what is there: something was changed that it may depend on."""
        self._encoded.drop()


class _Begun:
    """The thread of one job, once it has begun."""

    def __init__(self, known: Encoded, kept: Encoded, following: NextCall | None) -> None:
        self._known, self._kept, self._following = known, kept, following
        self._thread: EncoderThread | None = None

    def step_ended(self) -> None:
        """Starts the thread after the first step, where that may be."""
        self._known.drop()
        following, self._following = self._following, None
        if following is None:
            return
        try:
            self._thread = _thread_of(following, self._kept)
            self._thread.start()
        except Exception as why:
            logger.debug("nothing is encoded ahead: %s", str(why))

    def stop(self) -> None:
        """Asks the thread to end soon."""
        if self._thread is not None:
            self._thread.stop()

    def join(self) -> None:
        """Waits for the thread, if there is one."""
        if self._thread is not None:
            self._thread.join()


def _thread_of(following: NextCall, kept: Encoded) -> EncoderThread:
    """The thread that makes the front of a call; raises whatever hinders that."""
    handle: CompiledPipeline = following.pipe.dovetail
    if handle.called is None:
        raise NotAheadError("this call could not be planned")
    encoding = encoding_ahead(handle, handle.called, kept)
    cls = type(following.pipe)._dovetail_base
    call = isolated_beside(following.pipe, cls, following.arguments)
    devices = [one.torch for one in dict.fromkeys((*handle.rig, handle.main)) if not one.is_host]
    return EncoderThread(call, encoding, devices)

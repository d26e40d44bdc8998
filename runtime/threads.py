"""Issues a schedule from a thread a device, so that devices whose kernels the host computes or launches work at once.

Each thread takes the instructions of its device in the order of the schedule. Where one needs what another device's
thread does, it waits until that has been issued: what was sent to it, memory that it sends into, and a Python number.
What lands in memory of its own is sent when its target has issued all that stands before it in the schedule, so that
each device allocates in the order of the schedule; and the target goes on when it was sent. So the peak of a device is
that of one thread. Whatever an instruction waits for stands before it in the schedule; so no wait can be for ever.

Micro-batches go through a layer split in turn: there the target issues what is copied between runs, when it comes to
read it, so that no device waits for one that still computes the part before; and what was copied is freed after that.

The calling thread is that of the main device. The others live for one call: they start where the caller is (its
inference mode, the streams that it uses), and are joined before the call returns or raises. The first error stops all.

What an interrupt can break off is without locks that several take: each wait has a signal of its own, and a thread that
waits looks now and then whether all are to stop.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.ops import RESHARD, TRANSFER
from ..compiler.ir.program import IN_PARTS, Program, tensors_of, weight_name
from ..compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Lifetime,
    Load,
    Output,
    Release,
    Run,
    Schedule,
    ValueRef,
    read_on,
    resting_place,
)
from .devices.accelerator import Stream, accelerator_of
from .steps import Step, Values

_LOOK = 0.05
"""After so many seconds a thread that waits looks whether all are to stop."""

_START = 0.2
"""So many seconds may pass until a thread has begun whose start was interrupted."""


@dataclass(frozen=True)
class Turn:
    """An instruction on the thread of its device: its number in the schedule, what it waits for, who waits for it."""

    number: int
    waits: tuple[int, ...]
    awaited_by: tuple[Device, ...]


Turns = Mapping[Device, Sequence[Turn]]


def turns_of(program: Program, schedule: Schedule) -> Turns | None:
    """The instructions of each device; None for a program that one thread issues, whose devices do not work at once."""
    if not program.works_at_once:
        return None
    numbered = _Numbered(_fetcher if IN_PARTS in program.facts else _issuer)
    placed = [(number, *numbered.take(number, one)) for number, one in enumerate(schedule) if _is_issued(one)]
    awaited: dict[int, list[Device]] = defaultdict(list)
    for _, device, waits in placed:
        for number in waits:
            awaited[number].append(device)
    found: dict[Device, list[Turn]] = defaultdict(list)
    for number, device, waits in placed:
        found[device].append(Turn(number, waits, tuple(awaited[number])))
    return found


def is_observed() -> bool:
    """Whether something sees operations of the calling thread alone: a profiler of PyTorch's, or a dispatch mode."""
    return torch._C._autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack() > 0


def _is_issued(one: Instruction) -> bool:
    stays = isinstance(one, Load) and one.lifetime is Lifetime.PROGRAM
    return not (stays or isinstance(one, (Input, Output)))


class _Numbered:
    """What was issued so far, by the number of its instruction: what makes or allocates values, and what sends."""

    def __init__(self, issuer: Callable[[Instruction], Device]) -> None:
        self._issuer = issuer
        self._read_elsewhere: dict[tuple[Node, Device], list[tuple[Device, int]]] = defaultdict(list)
        self._made: dict[tuple[Node, Device], tuple[Device, int]] = {}
        self._sent: dict[tuple[Node, Device, Device], tuple[Device, int]] = {}
        self._last: dict[Device, int] = {}
        self._coming: dict[Device, list[tuple[Device, int]]] = defaultdict(list)  # what a device is to see sent first
        self._seen: dict[Device, dict[Device, int]] = defaultdict(dict)  # what a device has waited for

    def take(self, number: int, one: Instruction) -> tuple[Device, tuple[int, ...]]:
        """The device of an instruction, and the numbers of those that it waits for."""
        device = self._issuer(one)
        waits: dict[Device, int] = {}
        for other, earlier in (*self._needed(one), *self._coming.pop(device, ())):
            if other != device and earlier > max(waits.get(other, -1), self._seen[device].get(other, -1)):
                waits[other] = earlier
        self._seen[device] |= waits
        for value in _made_by(one):
            self._made[value.node, resting_place(value, device)] = device, number
        for copy in _sends(one):
            self._sent[copy.value.node, copy.source, copy.target] = device, number
            if copy.source != device:
                self._read_elsewhere[copy.sent.node, copy.source].append((device, number))
            if not copy.landings:
                self._made[copy.value.node, copy.target] = device, number
                self._coming[copy.target].append((device, number))
        self._last[device] = number
        return device, tuple(waits.values())

    def _needed(self, one: Instruction) -> Iterator[tuple[Device, int]]:
        for value, device in _read_by(one):
            place = resting_place(value, device)
            if (value.node, place) in self._made:
                yield self._made[value.node, place]
        for awaited in _awaits(one):
            yield self._sent[awaited.value.node, awaited.source, awaited.target]
        if isinstance(one, Copy) and (one.sent.node, one.source) in self._made:
            yield self._made[one.sent.node, one.source]
        for free in _frees(one):
            yield from self._read_elsewhere.get((free.value.node, free.device), ())
        for copy in _sends(one):
            if copy.landings:
                yield self._made[copy.value.node, copy.target]
            elif copy.target in self._last:
                yield copy.target, self._last[copy.target]
        if isinstance(one, Free) and not tensors_of(one.value.node):  # a number, which others read where it lies
            yield from self._last.items()


def _fetcher(one: Instruction) -> Device:
    """The same where devices fetch what they read, when they come to it: between runs, the target of a copy."""
    return one.target if isinstance(one, Copy) else _issuer(one)


def _issuer(one: Instruction) -> Device:
    """The device whose thread issues an instruction: that which sends, of a copy."""
    match one:
        case Copy(_, source):
            return source
        case Run(device=device) | Allocate(device=device) | Await(device=device) | Free(device=device):
            return device
        case Load(device=device) | Release(Load(device=device)):
            return device
    raise ValueError(f"{one} is issued by no device")


def _made_by(one: Instruction) -> list[ValueRef]:
    if isinstance(one, Allocate):
        return [one.value]
    return [ValueRef(step.node) for step in one.steps] if isinstance(one, Run) else []


def _read_by(one: Instruction) -> Iterator[tuple[ValueRef, Device]]:
    """What a run reads that another device may have made or sent, and on which device: all else was made there."""
    if not isinstance(one, Run):
        return
    for step in one.steps:
        for operand in step.node.all_input_nodes:
            is_sent = operand.target is RESHARD or operand.target is TRANSFER
            if is_sent or not (tensors_of(operand) or weight_name(operand)):
                yield read_on(operand, one.device), one.device


def _awaits(one: Instruction) -> Iterator[Copy]:
    """The copies to its own device that an instruction awaits."""
    steps = one.steps if isinstance(one, Run) else ()
    for awaited in (*([one] if isinstance(one, Await) else ()), *(each for step in steps for each in step.awaits)):
        if isinstance(awaited.started, Copy) and awaited.device == awaited.started.target:
            yield awaited.started


def _sends(one: Instruction) -> Iterator[Copy]:
    yield from (one,) if isinstance(one, Copy) else ()
    for step in one.steps if isinstance(one, Run) else ():
        yield from step.sends


def _frees(one: Instruction) -> Iterator[Free]:
    yield from (one,) if isinstance(one, Free) else ()
    for step in one.steps if isinstance(one, Run) else ():
        yield from step.frees


class StoppedError(Exception):
    """Another thread of a call has failed; it is seen by nobody but these."""


class Threads:
    """The threads of one call."""

    def __init__(self, turns: Turns, steps: Mapping[int, Step], values: Values) -> None:
        self._turns = turns
        self._steps = steps
        self._values = values
        self._signals = {
            (turn.number, waiting): threading.Lock()
            for some in turns.values()
            for turn in some
            for waiting in turn.awaited_by
        }
        for signal in self._signals.values():
            signal.acquire()
        self._errors: list[BaseException] = []
        self._is_stopped = False

    def run(self, main: Device) -> None:
        """Issues all instructions; raises the first error of any thread when no other works any more."""
        streams = [(one, accelerator_of(one.torch).current_stream()) for one in self._turns]
        others = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._as_here, device, streams), daemon=True)
            for device in self._turns
            if device != main
        ]
        started: list[threading.Thread] = []
        try:
            for thread in others:
                started.append(thread)
                thread.start()
            self._issue(main)
        except StoppedError:
            pass
        except BaseException as error:
            self._stop(error)
        finally:
            self._join(started)
        if self._errors:
            raise self._errors[0]

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Waits for all; an interrupt meanwhile stops them.

        One whose start was interrupted may begin yet; it does nothing then.
        """
        latest = time.monotonic() + _START
        for thread in threads:
            while thread.is_alive() or (thread.ident is None and time.monotonic() < latest):
                try:
                    thread.join() if thread.ident is not None else time.sleep(0)
                except BaseException as error:  # an interrupt, of which there may be several
                    self._stop(error)

    def _as_here(self, device: Device, streams: Sequence[tuple[Device, Stream]]) -> None:
        """Issues what is a device's on a thread that goes by the caller's streams."""
        with ExitStack() as stack:
            try:
                stack.enter_context(torch.inference_mode())
                for one, stream in streams:
                    stack.enter_context(accelerator_of(one.torch).use(stream))
                self._issue(device)
            except StoppedError:
                pass
            except BaseException as error:
                self._stop(error)

    def _issue(self, device: Device) -> None:
        for turn in self._turns[device]:
            for number in turn.waits:
                signal = self._signals[number, device]
                while not (signal.acquire(timeout=_LOOK) or self._is_stopped):
                    pass
            if self._is_stopped:
                raise StoppedError
            step = self._steps.get(turn.number)
            if step is not None:
                step(self._values)
            for waiting in turn.awaited_by:
                self._signals[turn.number, waiting].release()

    def _stop(self, error: BaseException) -> None:
        self._errors.append(error)
        self._is_stopped = True

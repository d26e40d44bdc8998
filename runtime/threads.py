"""Issues a schedule from a thread a device, so that devices whose kernels the host computes or launches work at once.

Each thread takes the instructions of its device in the order of the schedule. Where one needs what another device's
thread does, it waits until that has been issued: what was sent to it, memory that it sends into, and a Python number.
What lands in memory of its own is sent when its target has issued all that stands before it in the schedule, so that
each device allocates in the order of the schedule: its peak is that of one thread. Whatever an instruction waits for
stands before it in the schedule; so no wait can be for ever.

The calling thread is that of the main device. The others live for one call: they start where the caller is (its
inference mode, the streams that it uses), and are joined before the call returns or raises. The first error stops all.
"""

from __future__ import annotations

import contextvars
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from ..compiler.devices.device import Device
from ..compiler.ir.program import Program, tensors_of, weight_name
from ..compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Instruction,
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

Waits = Mapping[Device, int]
"""The last instruction of each other device, by its number, that must have been issued."""


@dataclass(frozen=True)
class Turn:
    """An instruction on the thread of its device: its number in the schedule, what it waits for, who waits for it."""

    number: int
    waits: tuple[tuple[Device, int], ...]
    is_awaited: bool


Turns = Mapping[Device, Sequence[Turn]]


def turns_of(program: Program, schedule: Schedule) -> Turns | None:
    """The instructions of each device; None for a schedule that one thread issues.

    That is one whose devices work one after another, which brings weights in a call, or has sizes that are not known.
    """
    if program.symbols or not program.is_grouped:
        return None
    loads = [one for one in schedule if isinstance(one, Load) and one.lifetime is not one.lifetime.PROGRAM]
    if loads:
        return None
    numbered = _Numbered(program)
    placed = [(number, *numbered.take(number, one)) for number, one in enumerate(schedule) if _is_issued(one)]
    awaited = {pair for _, _, waits in placed for pair in waits.items()}
    found: dict[Device, list[Turn]] = defaultdict(list)
    for number, device, waits in placed:
        found[device].append(Turn(number, tuple(waits.items()), (device, number) in awaited))
    return found


def _is_issued(one: Instruction) -> bool:
    return not isinstance(one, (Input, Output, Load))


class _Numbered:
    """What was issued so far, by the number of its instruction: what makes or allocates values, and what sends."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made: dict[tuple[ValueRef, Device], tuple[Device, int]] = {}
        self._sent: dict[Copy, tuple[Device, int]] = {}
        self._last: dict[Device, int] = {}

    def take(self, number: int, one: Instruction) -> tuple[Device, Waits]:
        """The device of an instruction, and what it waits for."""
        device = _issuer(one)
        waits: dict[Device, int] = {}
        for other, earlier in self._needed(one):
            if other != device:
                waits[other] = max(earlier, waits.get(other, -1))
        for value in _made_by(one):
            self._made[value, resting_place(value, device)] = device, number
        for copy in _sends(one):
            self._sent[copy] = device, number
            if not copy.landings:
                self._made[copy.value, copy.target] = device, number
        self._last[device] = number
        return device, waits

    def _needed(self, one: Instruction) -> Iterator[tuple[Device, int]]:
        for value, device in _read_by(one):
            place = resting_place(value, device)
            if (value, place) in self._made:
                yield self._made[value, place]
        for awaited in _awaits(one):
            yield self._sent[awaited]
        for copy in _sends(one):
            if copy.landings:
                yield self._made[copy.value, copy.target]
            elif copy.target in self._last:
                yield copy.target, self._last[copy.target]
        if isinstance(one, Free) and not tensors_of(one.value.node):  # a number, which others read where it lies
            yield from self._last.items()


def _issuer(one: Instruction) -> Device:
    """The device whose thread issues an instruction: that which sends, of a copy."""
    match one:
        case Copy(_, source):
            return source
        case Release(load):
            return load.device
        case Run(device=device) | Allocate(device=device) | Await(device=device) | Free(device=device):
            return device
    raise ValueError(f"{one} is issued by no device")


def _made_by(one: Instruction) -> list[ValueRef]:
    if isinstance(one, Allocate):
        return [one.value]
    return [ValueRef(step.node) for step in one.steps] if isinstance(one, Run) else []


def _read_by(one: Instruction) -> Iterator[tuple[ValueRef, Device]]:
    """What a run reads, and on which device."""
    if not isinstance(one, Run):
        return
    for step in one.steps:
        for operand in step.node.all_input_nodes:
            if not weight_name(operand):
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


class StoppedError(Exception):
    """Another thread of a call has failed; it is seen by nobody but these."""


class Threads:
    """The threads of one call."""

    def __init__(self, turns: Turns, steps: Mapping[int, Step], values: Values) -> None:
        self._turns = turns
        self._steps = steps
        self._values = values
        self._issued = dict.fromkeys(turns, -1)
        self._changed = threading.Condition()
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
                thread.start()
                started.append(thread)
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
        """Waits for all; an interrupt meanwhile stops them."""
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join()
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
            for other, number in turn.waits:
                if self._issued[other] < number:
                    self._wait(other, number)
            if self._is_stopped:
                raise StoppedError
            step = self._steps.get(turn.number)
            if step is not None:
                step(self._values)
            if turn.is_awaited:
                with self._changed:
                    self._issued[device] = turn.number
                    self._changed.notify_all()

    def _wait(self, other: Device, number: int) -> None:
        with self._changed:
            while self._issued[other] < number and not self._is_stopped:
                self._changed.wait()
        if self._is_stopped:
            raise StoppedError

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            self._errors.append(error)
            self._is_stopped = True
            self._changed.notify_all()

"""What must hold where a thread issues to each real device, and where calls go on while their caller does.

`testbed.gpu` and tests/gpu run them on cards, and the tests on simulated devices. Other checks delay operations from a
dispatch mode, which has one thread issue all of a program; here threads are those that it has otherwise, and each of
them, and its device, is delayed before instructions of the schedule.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest import mock

import torch

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import ExecutionError
from dovetail.passes.batches.divide import micro_batches_of
from dovetail.runtime import executor
from dovetail.runtime.launching import Launched
from dovetail.runtime.steps import Step, Values
from dovetail.runtime.threads import Threads, Turns

from .gpu_checks import Call, allocated, on, torch_device
from .gpu_mode_checks import FULL_FLOATS, NotAsked, modes_for, of_mode, result, together

_LONGEST = 400_000
"""So many cycles of a card a delay takes at most."""


def delay(device: torch.device, part: float) -> None:
    """Has a device do nothing for a part of the longest delay; on others than CUDA nothing is known that does."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda._sleep(int(part * _LONGEST))


@contextlib.contextmanager
def with_each_step(around: Callable[[Device, int, Step], Step]) -> Iterator[None]:
    """Has steps that threads issue meanwhile be others, by the device, the number of the instruction and the step."""

    class Other(Threads):
        def __init__(self, turns: Turns, steps: Mapping[int, Step], values: Values) -> None:
            places = {turn.number: device for device, some in turns.items() for turn in some}
            others = {at: around(places[at], at, one) if at in places else one for at, one in steps.items()}
            super().__init__(turns, others, values)

    with mock.patch.object(executor, "Threads", Other):
        yield


def _late(chance: random.Random, seen: set[int]) -> Callable[[Device, int, Step], Step]:
    """Steps before which the thread waits, or its device does; ``seen`` has the threads."""

    def around(device: Device, at: int, step: Step) -> Step:
        kind, part = chance.randrange(4), chance.random()

        def late(values: Values) -> None:
            seen.add(threading.get_ident())
            if kind == 0:
                time.sleep(part / 1000)
            if kind == 1:
                delay(device.torch, part)
            step(values)

        return late

    return around


def left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that have come, but for those that bring weights, which end when they are idle."""
    new = set(threading.enumerate()) - before
    return [one for one in new if not one.name.startswith("dovetail-lane")]


def _programs(cards: Sequence[str]) -> Iterator[tuple[str, dovetail.CompiledModule, Call]]:
    """A program that threads issue: of each mode, of two to which weights come, and of micro-batches."""
    for mode in modes_for(cards):
        yield mode, *together(mode, cards)
    for mode in ("sequence", "tensor"):
        yield f"{mode} while weights come", *together(mode, cards, params_backend="cpu")
    module, call = of_mode("batch")
    program = dovetail.compile(module, kwargs=call, backend="&".join(cards), micro_batches=2)
    assert micro_batches_of(program.program) == 2, "the pictures are computed at once"
    yield "micro-batches", program, call


def threads(cards: Sequence[str], calls: int = 20) -> str:
    """In each mode, while weights come, and in micro-batches, a thread issues to each device; delays change no bit."""
    if len(cards) < 2:
        raise NotAsked(f"a thread a device takes two, and {cards[0]} is alone")
    found, before = [], set(threading.enumerate())
    with FULL_FLOATS():
        for name, program, call in _programs(cards):
            expected, most = result(program, call), 0
            for seed in range(calls):
                seen: set[int] = set()
                with with_each_step(_late(random.Random(seed), seen)):
                    assert torch.equal(result(program, call), expected), f"{name}: other bits in call {seed}"
                most = max(most, len(seen))
            assert most == len(cards), f"{name}: {most} threads issue to {len(cards)} devices"
            program.unload()
            found.append(name)
    assert not left_since(before), "threads are left"
    return f"{', '.join(found)}: {len(cards)} threads, {calls} calls with delays, the same bits"


def errors_in_threads(cards: Sequence[str]) -> str:
    """An error on one device is raised where the program is called, nothing is left, and the next call is right."""
    if len(cards) < 2:
        raise NotAsked(f"a thread a device takes two, and {cards[0]} is alone")
    threads_before, found = set(threading.enumerate()), []
    with FULL_FLOATS():
        for name, program, call in _programs(cards):
            expected = result(program, call)
            held = allocated(cards)
            for device in map(Device.named, cards):
                with with_each_step(functools.partial(_failing, device)), contextlib.suppress(ExecutionError):
                    result(program, call)
                    raise AssertionError(f"{name}: an error on {device} is raised nowhere")
                assert allocated(cards) == held, f"{name}: {allocated(cards)} bytes after an error, {held} before"
                assert torch.equal(result(program, call), expected), f"{name}: other bits after an error on {device}"
            program.unload()
            found.append(name)
    assert not left_since(threads_before), "threads are left"
    return f"{', '.join(found)}: an error on each device, nothing left, the same bits then"


def _failing(where: Device, device: Device, at: int, step: Step) -> Step:
    def fail(values: Values) -> None:
        raise ValueError(f"injected on {device}")

    return fail if device == where and at % 3 == 0 else step


def launched_calls(cards: Sequence[str], calls: int = 20) -> str:
    """Calls that go on while their caller does read no input that is written after them, and are right when read."""
    found = []
    for card in cards:
        device, (module, call) = torch_device(card), of_mode("sequence")
        there = copy.deepcopy(module).to(device)
        given = on(device, call)
        names = [name for name, one in given.items() if isinstance(one, torch.Tensor)]
        with torch.inference_mode():
            expected = there(**given)[0].cpu()

        def run(
            inputs: list[torch.Tensor], there: torch.nn.Module = there, names: Sequence[str] = names
        ) -> list[object]:
            delay(inputs[0].device, 0.5)
            return [there(**dict(zip(names, inputs, strict=True)), return_dict=False)[0]]

        for seed in range(calls):
            delay(device, random.Random(seed).random())
            fresh = {name: one.clone() for name, one in given.items() if isinstance(one, torch.Tensor)}
            first = Launched("the first call", device, run, list(fresh.values()))
            second = Launched("the second call", device, run, list(fresh.values()), first)
            try:
                first.start()
                second.start()
                for one in fresh.values():
                    one.zero_()
                for made in (second, first):
                    (leaf,) = made.leaves()
                    assert torch.equal(leaf.clone().cpu(), expected), f"call {seed} on {card} is another one"
                    made.end()
            finally:
                first.join()
                second.join()
        found.append(card)
    return f"{calls} times two calls on {', '.join(found)}, whose inputs are written meanwhile: the bits of eager"


THREAD_CHECKS: tuple[Callable[[Sequence[str]], str], ...] = (launched_calls, threads, errors_in_threads)
"""The checks of threads; the first takes one device."""

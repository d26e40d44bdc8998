"""The steps between runs: each is a function over the slots that hold the values of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..compiler.ir.boxes import Box, Landing
from ..compiler.ir.schedule import Copy
from ..compiler.ir.split import is_packed
from .devices.transfers import Arrivals, fill
from .devices.transfers import fence as fence
from .transport import Coming, SendBoxes

Values = list[Any]
Step = Callable[[Values], None]
Steps = Mapping[int, Step]
"""Steps by the number of their instruction in the schedule, in its order."""


def in_parts(send: SendBoxes, copy: Copy) -> Callable[[torch.Tensor, torch.Tensor], Coming]:
    """Starts to send boxes of a value into their places in memory on the target.

    A box that does not lie as its place does is packed on its own device first: the place has no room for what lies
    around it. Then each is sent by itself, so that one is there at a time.
    """
    boxes = [(one, is_packed(copy.value.node, copy.source, copy.target, one)) for one in copy.landings]

    def start(value: torch.Tensor, memory: torch.Tensor) -> Coming:
        return send([one.taken.of(value) for one, _ in boxes], [one.into.of(memory) for one, _ in boxes])

    def start_each(value: torch.Tensor, memory: torch.Tensor) -> Coming:
        return Arrivals([send([_box(value, one, packs)], [one.into.of(memory)]) for one, packs in boxes])

    return start_each if any(packs for _, packs in boxes) else start


def _box(value: torch.Tensor, landing: Landing, packs: bool) -> torch.Tensor:
    box = landing.taken.of(value)
    return box.clone(memory_format=torch.contiguous_format) if packs else box


def fill_parts(value: torch.Tensor, memory: torch.Tensor, landings: Sequence[Landing]) -> None:
    """Copies boxes of a value into their places in memory on the same device."""
    for one in landings:
        fill(one.into.of(memory), one.taken.of(value))


def copy(send: Callable[..., Coming], source: int, target: int, event: int | None, memory: int | None) -> Step:
    """Starts to send a value into memory of its own, or boxes of it into memory that lies in a slot."""

    def start(values: Values) -> None:
        values[target] = send(values[source], *(() if memory is None else (values[memory],)))
        if event is not None:
            values[event] = values[target].done

    return start


def fill_own(source: int, memory: int, landings: Sequence[Landing]) -> Step:
    """Copies boxes of a value into their places in memory on the same device."""

    def start(values: Values) -> None:
        fill_parts(values[source], values[memory], landings)

    return start


def wait(slot: int) -> Step:
    """Waits on the device of a value that was sent, and puts the value in the place of what is on its way."""

    def arrive(values: Values) -> None:
        values[slot] = values[slot].wait()

    return arrive


def landed(slot: int) -> Step:
    """Waits for what was sent into memory that was set aside."""

    def arrive(values: Values) -> None:
        values[slot].wait()
        values[slot] = None

    return arrive


def allocate(
    slot: int,
    sizes: Callable[[Values], Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
    stride: Callable[[Values], Sequence[int]] | None = None,
    zeros: Sequence[Box] = (),
) -> Step:
    """Sets memory aside, which holds nothing yet but some boxes of zeros.

    ``sizes`` and ``stride`` may look them up in other values; it is dense without the latter.
    """

    def make(values: Values) -> None:
        if stride is None:
            values[slot] = torch.empty(sizes(values), dtype=dtype, device=device)
        else:
            values[slot] = torch.empty_strided(sizes(values), stride(values), dtype=dtype, device=device)
        for box in zeros:
            box.of(values[slot]).zero_()

    return make


def free(slot: int) -> Step:
    """Lets go of a value."""

    def drop(values: Values) -> None:
        values[slot] = None

    return drop


def release(slot: int) -> Step:
    """Lets go of the weights of a load."""

    def let_go(values: Values) -> None:
        values[slot].release()
        values[slot] = None

    return let_go

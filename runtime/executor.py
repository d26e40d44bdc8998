"""Runs a schedule: one Python call an instruction, over a list of slots that holds the values of one call."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch.fx import Node

from ..compiler.aliasing import readings
from ..compiler.devices import Device
from ..compiler.errors import DoesNotFitError, ExecutionError
from ..compiler.program import Program, Weight, origin_of, weight_of
from ..compiler.schedule import (
    Copy,
    Free,
    Instruction,
    Load,
    Release,
    Return,
    Run,
    Schedule,
    State,
    Wait,
    resting_place,
)
from .accelerator import accelerator_of
from .codegen import SegmentSource, write_segment
from .transfers import start_copy

Slots = list[Any]
Step = Callable[[Slots], None]
WeightSource = Callable[[Weight, torch.device], torch.Tensor]
"""Gives the data of a weight on a device."""


@dataclass(frozen=True)
class _Layout:
    """The slot of each value that outlives an instruction, by value and device."""

    slots: dict[tuple[State, Device], int]

    @staticmethod
    def of(program: Program, schedule: Schedule) -> _Layout:
        slots: dict[tuple[State, Device], int] = {}
        for node in program.inputs():
            slots[State(node), program.main] = len(slots)
        for instruction in schedule:
            for key in _made(instruction):
                slots.setdefault(key, len(slots))
        return _Layout(slots)

    def on(self, device: Device) -> dict[State, int]:
        """The slots of what work on a device can see."""
        return {state: slot for (state, where), slot in self.slots.items() if where == resting_place(state, device)}


def _made(instruction: Instruction) -> list[tuple[State, Device]]:
    match instruction:
        case Copy(value, _, target):
            return [(value, target)]
        case Run(segment, _, yields):
            return [(state, segment.device) for state in yields]
    return []


class Executor:
    """A schedule made ready to run: generated code for each segment, and steps over slots."""

    def __init__(self, program: Program, schedule: Schedule) -> None:
        self._program = program
        self._schedule = schedule.instructions
        self._layout = _Layout.of(program, schedule)
        self._leaves: list[Any] = list(program.output.args[0])  # type: ignore[arg-type]
        self.sources = self._generate()
        self._by_file = {source.filename: source for source in self.sources.values()}
        self._outputs = self._output_slots()
        self._steps: list[Step] | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the weights are there."""
        return self._steps is not None

    def bind(self, weights: WeightSource) -> None:
        """Fetches each weight to each device that loads it, and makes the steps."""
        held: dict[tuple[str, Device], torch.Tensor] = {}
        with torch.inference_mode(False):
            for load in (instruction for instruction in self._schedule if isinstance(instruction, Load)):
                for weight in load.weights:
                    held[weight.name, load.device] = _as_traced(weight, weights(weight, load.device.torch))
        self._held = held
        self._constants = {
            slot: held[_weight(item).name, self._program.main]
            for slot, item in enumerate(self._leaves)
            if isinstance(item, Node) and weight_of(item)
        }
        self._steps = [step for index in range(len(self._schedule)) for step in self._steps_of(index)]

    def unbind(self) -> None:
        """Lets go of all weights."""
        self._steps = None
        self._held = {}
        self._constants = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Runs the schedule on tensors that lie on the main device; returns the leaves of the result.

        Raises ExecutionError (or DoesNotFitError when memory ran out) that names the node and its source line.
        """
        assert self._steps is not None
        slots: Slots = [*inputs, *[None] * (len(self._layout.slots) - len(inputs))]
        del inputs
        try:
            with torch.inference_mode():
                for step in self._steps:
                    step(slots)
        except Exception as error:
            raise self._explain(error) from error
        return [self._result(slots, item, index) for index, item in enumerate(self._outputs)]

    def _result(self, slots: Slots, item: Any, index: int) -> Any:
        if index in self._constants:
            return self._constants[index]
        return _ordinary(slots[item.index]) if isinstance(item, _Slot) else item

    def _generate(self) -> dict[int, SegmentSource]:
        versions = {(reader, value): version for reader, value, version in readings(self._program) if version}
        sources = {}
        for index, instruction in enumerate(self._schedule):
            if isinstance(instruction, Run):
                segment = instruction.segment
                name = f"{self._program.name} segment {segment.index}"
                freed = frozenset(_freed_inside(self._schedule, index))
                slots = self._layout.on(segment.device)
                sources[segment.index] = write_segment(instruction, slots, freed, versions, name)
        return sources

    def _output_slots(self) -> list[Any]:
        values = next(i.values for i in self._schedule if isinstance(i, Return))
        slots = self._layout.on(self._program.main)
        given = {state.node: _Slot(slots[state]) for state in values}
        leaves: Any = self._program.output.args[0]
        return [given.get(leaf, leaf) if isinstance(leaf, Node) else leaf for leaf in leaves]

    def _steps_of(self, index: int) -> list[Step]:
        instruction = self._schedule[index]
        slots = self._layout.slots
        match instruction:
            case Run(segment):
                source = self.sources[segment.index]
                weights = {name: self._held[_weight(n).name, segment.device] for name, n in source.weights.items()}
                return [source.bind(weights)]
            case Copy(value, origin, target):
                return [_copy_step(slots[State(value.node), origin], slots[value, target], target.torch)]
            case Wait(value, origin, target, device):
                slot = slots[value, target]
                return [_wait_step(slot) if device == target else _fence_step(slot, origin.torch)]
            case Free(value, device) if not _is_folded(self._schedule, index):
                return [_free_step(slots[value, device])]
            case Load() | Release() | Return() | Free():
                return []

    def _explain(self, error: Exception) -> Exception:
        """The error with the node and source line at which it came up."""
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            source = self._by_file.get(frame.filename)
            node = source.lines.get(frame.lineno or 0) if source else None
            if node is not None:
                origin = origin_of(node)
                where = f"%{node.name} ({node.target}) in {origin.module or self._program.name}, {origin.source}"
                kind = DoesNotFitError if isinstance(error, torch.OutOfMemoryError) else ExecutionError
                return kind(f"{where}: {type(error).__name__}: {error}")
        return ExecutionError(f"{self._program.name} failed between segments: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Slot:
    index: int


def _ordinary(value: Any) -> Any:
    """A result that callers may write to: inference mode would have no in-place op touch it outside that mode."""
    if not isinstance(value, torch.Tensor) or not value.is_inference() or torch.is_inference_mode_enabled():
        return value
    return accelerator_of(value.device).ordinary(value)


def _as_traced(weight: Weight, data: torch.Tensor) -> torch.Tensor:
    """The data requiring a gradient as the module's own tensor does: kernels are picked by it even in inference."""
    return data if data.is_inference() else data.detach().requires_grad_(weight.requires_grad)


def _weight(node: Node) -> Weight:
    weight = weight_of(node)
    assert weight is not None
    return weight


def _freed_inside(schedule: Sequence[Instruction], index: int) -> list[State]:
    """The values that a run lets go of at their last reading: those freed directly after it."""
    run = schedule[index]
    assert isinstance(run, Run)
    frees = takewhile(lambda instruction: isinstance(instruction, Free), schedule[index + 1 :])
    return [free.value for free in frees if isinstance(free, Free) and _ends_in(free, run)]


def _is_folded(schedule: Sequence[Instruction], index: int) -> bool:
    """Whether a free takes effect inside the run before it."""
    free = schedule[index]
    while index and isinstance(schedule[index], Free):
        index -= 1
    before = schedule[index]
    return isinstance(free, Free) and isinstance(before, Run) and _ends_in(free, before)


def _ends_in(free: Free, run: Run) -> bool:
    return free.value in run.reads and free.device == resting_place(free.value, run.segment.device)


def _copy_step(source: int, target: int, device: torch.device) -> Step:
    def copy(slots: Slots) -> None:
        slots[target] = start_copy(slots[source], device)

    return copy


def _wait_step(slot: int) -> Step:
    def wait(slots: Slots) -> None:
        slots[slot] = slots[slot].wait()

    return wait


def _fence_step(slot: int, source: torch.device) -> Step:
    def fence(slots: Slots) -> None:
        slots[slot].fence(source)

    return fence


def _free_step(slot: int) -> Step:
    def free(slots: Slots) -> None:
        slots[slot] = None

    return free

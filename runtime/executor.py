"""Runs a schedule: one Python call an instruction, over a list of slots that holds the values of one call.

A weight that is never released is fetched once, when weights are bound. One that is released is a value of the call
like others: fetched in the step that loads it, gone after the step that releases it, whatever happens between.

What may be computed in its operand's memory is looked at in the first call for the strides of its inputs (`reusing`).
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch.fx import Node

from ..compiler.errors import DoesNotFitError, DovetailError, ExecutionError
from ..compiler.ir.aliasing import readings
from ..compiler.ir.program import Program, Weight, device_of, origin_of, tensors_of, weight_name
from ..compiler.ir.schedule import Copy, Free, Instruction, Load, Release, Return, Run, Schedule, State, Wait
from ..compiler.spec.devices import Device
from ..compiler.spec.units import format_bytes
from . import quantized as quantized  # registers the kernels that packed weights need
from .codegen import SegmentSource, write_segment
from .devices.accelerator import accelerator_of
from .devices.out_of_memory import came_late, fetched, ran_out
from .folding import Folding
from .in_place import Candidates, Layouts, Look, Settled, layouts_of
from .steps import Slots, Step, copy_step, fence_step, free_step, wait_step
from .store.source import WeightSource


@dataclass(frozen=True)
class _Layout:
    """The slot of each value that outlives an instruction, by value and device, and of each weight that is released."""

    slots: dict[tuple[State, Device], int]
    staged: dict[tuple[str, Device], int] = field(default_factory=dict)

    @staticmethod
    def of(program: Program, schedule: Schedule) -> _Layout:
        slots: dict[tuple[State, Device], int] = {}
        for node in program.inputs():
            slots[State(node), program.main] = len(slots)
        for instruction in schedule:
            for key in _made(instruction):
                slots.setdefault(key, len(slots))
        released = (one for one in schedule if isinstance(one, Release))
        names = dict.fromkeys((weight.name, one.device) for one in released for weight in one.weights)
        return _Layout(slots, {key: len(slots) + index for index, key in enumerate(names)})

    @property
    def size(self) -> int:
        """How many slots there are."""
        return len(self.slots) + len(self.staged)

    def weights_on(self, device: Device) -> dict[str, int]:
        """The slots of the weights that come and go on a device, by name."""
        return self._staged_on[device]

    def ends_of(self, copies: Sequence[Copy]) -> list[tuple[Copy, int, int]]:
        """Copies, each with the slot of the value on its target and that of the whole it lands in, -1 for none."""
        lands = [self.slots[copy.into.value, copy.target] if copy.into else -1 for copy in copies]
        return [(copy, self.slots[copy.value, copy.target], slot) for copy, slot in zip(copies, lands, strict=True)]

    def on(self, device: Device) -> Mapping[State, int]:
        """The slots of what work on a device can see: the tensors there, and the Python numbers of all devices."""
        return ChainMap(self._tensors_on[device], self._numbers)

    @cached_property
    def _staged_on(self) -> Mapping[Device, dict[str, int]]:
        found: dict[Device, dict[str, int]] = defaultdict(dict)
        for (name, device), slot in self.staged.items():
            found[device][name] = slot
        return found

    @cached_property
    def _tensors_on(self) -> Mapping[Device, dict[State, int]]:
        found: dict[Device, dict[State, int]] = defaultdict(dict)
        for (state, device), slot in self.slots.items():
            if tensors_of(state.node):
                found[device][state] = slot
        return found

    @cached_property
    def _numbers(self) -> dict[State, int]:
        found = self.slots.items()
        return {
            state: slot
            for (state, device), slot in found
            if not tensors_of(state.node) and device == device_of(state.node)
        }


def _made(instruction: Instruction) -> list[tuple[State, Device]]:
    match instruction:
        case Copy(value, _, target, _):
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
        self._folding = Folding.of(self._schedule)
        self._following = self._next_staged()
        self._leaves: list[Any] = list(program.output.args[0])  # type: ignore[arg-type]
        self._candidates = Candidates.of(program, self._layout.size)
        self._runs = [(index, one) for index, one in enumerate(self._schedule) if isinstance(one, Run)]
        self._versions = {(reader, value): version for reader, value, version in readings(program) if version}
        self._by_file: dict[str, SegmentSource] = {}
        self._listings: dict[tuple[int, frozenset[int] | None], SegmentSource] = {}
        self._settling = threading.Lock()
        self._looking = self.sources = self._generate(self._candidates)
        self._outputs = self._output_slots()
        self._steps: list[Step] | None = None
        self._source: WeightSource | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the weights are there."""
        return self._steps is not None

    def bind(self, weights: WeightSource) -> None:
        """Fetches each weight that stays to each device that loads it, and makes the steps."""
        self._source = weights
        held: dict[tuple[str, Device], Any] = {}
        for load in self._loads():
            for weight in load.weights:
                if (weight.name, load.device) not in self._layout.staged:
                    held[weight.name, load.device] = self._fetch(weight, load.device)
        self._held = held
        self._constants = {
            slot: held[item.meta["weight"], self._program.main]
            for slot, item in enumerate(self._leaves)
            if isinstance(item, Node) and weight_name(item)
        }
        self._make_steps()

    def rebind(self) -> None:
        """Fetches the weights of adapters again, which were exchanged, and leaves all others."""
        for load in self._loads():
            for weight in load.weights:
                if weight.kind == "adapter":
                    self._held[weight.name, load.device] = self._fetch(weight, load.device)
        self._make_steps()

    def _make_steps(self) -> None:
        """The steps of a call that looks; what earlier calls have found may not hold for other weights."""
        self._settled = Settled()
        self._steps = self._steps_over(self._looking)

    def unbind(self) -> None:
        """Lets go of all weights."""
        self._steps = None
        self._settled = Settled()
        self._source = None
        self._held = {}
        self._constants = {}

    def __call__(self, slots: Slots) -> list[Any]:
        """Runs the schedule on tensors that lie on the main device; returns the leaves of the result.

        It takes the list of tensors over, so that an input can be freed at its last use.

        Raises ExecutionError (or DoesNotFitError when memory ran out) that names the node and its source line. An error
        keeps no tensor of the call alive.
        """
        assert self._steps is not None
        settled, layouts = self._settled, self._layouts(slots)
        steps: list[Step] | None = settled.by_layout.get(layouts)
        look = Look() if steps is None else None
        slots.extend([None] * (self._layout.size - len(slots)))
        slots.append(look)
        try:
            with torch.inference_mode():
                for step in steps or self._steps:
                    step(slots)
        except Exception as error:
            explained = self._explain(error)
            _let_go(slots, error)
            try:
                raise explained from (None if explained is error else error)
            finally:
                del explained  # the frame is in its traceback
        except BaseException as error:  # an interrupt too must not keep tensors alive
            _let_go(slots, error)
            raise
        if look is not None:
            self._settle(settled, layouts, frozenset(look.found))
        return [self._result(slots, item, index) for index, item in enumerate(self._outputs)]

    def _layouts(self, inputs: Slots) -> Layouts:
        """What decides which candidates are right in place; nothing where there are no candidates."""
        return layouts_of(inputs, bool(self._program.symbols)) if self._candidates.numbers else ()

    def _settle(self, settled: Settled, layouts: Layouts, found: frozenset[int]) -> None:
        """Makes the listing that computes in place what a call has found to be right so."""
        with self._settling:
            settled.keep(layouts, found, self._steps_in_place)

    def _steps_in_place(self, found: frozenset[int]) -> list[Step]:
        self.sources = self._generate(self._candidates.choose(found))
        return self._steps_over(self.sources)

    def _loads(self) -> Iterator[Load]:
        return (instruction for instruction in self._schedule if isinstance(instruction, Load))

    def _fetch(self, weight: Weight, device: Device) -> Any:
        assert self._source is not None
        try:
            with torch.inference_mode(False), torch.no_grad():
                data = fetched(partial(self._source, weight, device.torch))
                return _as_in_module(weight, data, self._source.requires_grad(weight))
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            raise DoesNotFitError(
                f"weight {weight.name} of {self._program.name} needs {format_bytes(weight.nbytes)} on {device}: "
                f"{error}: list more devices, or give {device} a smaller share (--tensor-split)"
            ) from error

    def _result(self, slots: Slots, item: Any, index: int) -> Any:
        if index in self._constants:
            return self._constants[index]
        return _ordinary(slots[item.index]) if isinstance(item, _Slot) else item

    def _generate(self, candidates: Candidates) -> dict[int, SegmentSource]:
        """The listing of each segment, written once for each choice among its candidates; the last few are kept."""
        if len(self._listings) > 16 * len(self._runs):
            self._listings = {key: source for key, source in self._listings.items() if key[1] is None}
            self._by_file = {source.filename: source for source in self._listings.values()}
        sources = {}
        for index, run in self._runs:
            among = candidates.among(run.segment.nodes)
            choice = among & candidates.chosen if among and candidates.chosen is not None else None
            if (index, choice) not in self._listings:
                source = self._write(index, run, candidates)
                self._listings[index, choice] = self._by_file[source.filename] = source
            sources[run.segment.index] = self._listings[index, choice]
        return sources

    def _write(self, index: int, run: Run, candidates: Candidates) -> SegmentSource:
        segment, folded = run.segment, self._folding.runs[index]
        return write_segment(
            run,
            self._layout.on(segment.device),
            folded.freed,
            self._versions,
            f"{self._program.name} segment {segment.index}",
            self._layout.weights_on(segment.device),
            folded.awaited,
            self._layout.ends_of(folded.sent),
            candidates,
        )

    def _output_slots(self) -> list[Any]:
        values = next(i.values for i in self._schedule if isinstance(i, Return))
        slots = self._layout.on(self._program.main)
        given = {state.node: _Slot(slots[state]) for state in values}
        leaves: Any = self._program.output.args[0]
        return [given.get(leaf, leaf) if isinstance(leaf, Node) else leaf for leaf in leaves]

    def _steps_over(self, sources: Mapping[int, SegmentSource]) -> list[Step]:
        return [step for index in range(len(self._schedule)) for step in self._steps_of(index, sources)]

    def _steps_of(self, index: int, sources: Mapping[int, SegmentSource]) -> list[Step]:
        instruction = self._schedule[index]
        slots = self._layout.slots
        if index in self._folding.inside:
            return []
        match instruction:
            case Load() if self._is_staged(instruction):
                return [self._load_step(index)]
            case Release():
                return [self._release_step(instruction)]
            case Run(segment):
                source = sources[segment.index]
                weights = {name: self._held[n.meta["weight"], segment.device] for name, n in source.weights.items()}
                return [source.bind(weights)]
            case Copy(value, origin, target, into):
                place = (slots[into.value, target], into.start, into.length) if into else None
                return [copy_step(slots[State(value.node), origin], slots[value, target], target.torch, place)]
            case Wait(value, origin, target, device):
                slot = slots[value, target]
                return [wait_step(slot) if device == target else fence_step(slot, origin.torch)]
            case Free(value, device):
                return [free_step(slots[value, device])]
            case Load() | Return():
                return []

    def _load_step(self, index: int) -> Step:
        """Fetches weights, and tells their source which come after them."""
        load = self._schedule[index]
        assert isinstance(load, Load)
        following = self._following[index]
        places = [(self._layout.staged[weight.name, load.device], weight) for weight in load.weights]

        executor = weakref.ref(self)  # which has the steps, and would hold itself

        def fetch(slots: Slots) -> None:
            this = executor()
            assert this is not None
            for slot, weight in places:
                slots[slot] = this._fetch(weight, load.device)
            if this._source:
                this._source.settle(load.device.torch)
            if following and this._source:
                this._source.advise(following.weights)

        return fetch

    def _next_staged(self) -> dict[int, Load | None]:
        """For each load of weights that come and go the next one, None behind the last."""
        following: dict[int, Load | None] = {}
        ahead: Load | None = None
        for index in reversed(range(len(self._schedule))):
            one = self._schedule[index]
            if isinstance(one, Load) and self._is_staged(one):
                following[index], ahead = ahead, one
        return following

    def _is_staged(self, load: Load) -> bool:
        return any((weight.name, load.device) in self._layout.staged for weight in load.weights)

    def _release_step(self, release: Release) -> Step:
        weights, device = release.weights, release.device
        places = [self._layout.staged[weight.name, device] for weight in weights]

        executor = weakref.ref(self)

        def let_go(slots: Slots) -> None:
            this = executor()
            for slot in places:
                slots[slot] = None
            if this and this._source:
                this._source.release(weights, device.torch)

        return let_go

    def _explain(self, error: Exception) -> Exception:
        """The error with the node and source line at which it came up."""
        if isinstance(error, DovetailError):
            return error
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            source = self._by_file.get(frame.filename)
            node = source.lines.get(frame.lineno or 0) if source else None
            if node is not None:
                origin = origin_of(node)
                where = f"%{node.name} ({node.target}) in {origin.module or self._program.name}, {origin.source}"
                return _told(where, error)
        return _told(f"{self._program.name} failed between segments", error)


def _told(where: str, error: Exception) -> DovetailError:
    """The error at a place, with a way out where memory ran out, and a doubt about the place where devices lag."""
    told = f"{where}: {type(error).__name__}: {error}"
    if ran_out(error):
        return DoesNotFitError(
            f"{told}: ask for a smaller size or batch, list more devices, or keep more free (--max-vram, "
            "DOVETAIL_RESERVE)"
        )
    if came_late(error):
        told += ": devices report such errors late, an operation before this one may be to blame: "
        told += "CUDA_LAUNCH_BLOCKING=1 shows which"
    return ExecutionError(told)


def _let_go(slots: Slots, error: BaseException) -> None:
    """Drops the values of a call that failed, and those that the frames of its traceback hold."""
    slots.clear()
    traceback.clear_frames(error.__traceback__)


@dataclass(frozen=True)
class _Slot:
    index: int


def _ordinary(value: Any) -> Any:
    """A result that callers may write to: inference mode would have no in-place op touch it outside that mode."""
    if not isinstance(value, torch.Tensor) or not value.is_inference() or torch.is_inference_mode_enabled():
        return value
    return accelerator_of(value.device).ordinary(value)


def _as_in_module(weight: Weight, data: torch.Tensor, requires_grad: bool) -> Any:
    """The data requiring a gradient as the module's own tensor does: kernels are picked by it even in inference.

    A number becomes a Python number, for a tensor on another device than its operation's would not do.
    """
    if weight.is_number:
        return data.item()
    return data if data.is_inference() else data.detach().requires_grad_(requires_grad)

"""Runs a schedule: one Python call an instruction, over a list of slots that holds the values of one call.

Weights that are loaded for the program are fetched once, when weights are bound. Those that come for a call are started
and awaited where the schedule says so, and are gone after it, whatever happens between.

What may be computed in its operand's memory is looked at in the first call for the strides of its inputs (`in_place`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.program import Program, weight_name
from ..compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Lifetime,
    Load,
    Output,
    Release,
    Run,
    Schedule,
    ValueRef,
)
from ..compiler.ir.split import own_part, type_on, zeros_on
from ..compiler.ir.value import TensorType, flat, stride_of_part
from ..compiler.ir.weight import Weight
from ..compiler.states.parts import members, pieces, slot_bytes
from . import causal_rows as causal_rows  # registers its kernel
from . import grouped_mm as grouped_mm  # registers its kernel
from . import norm_statistics as norm_statistics  # registers its kernels
from . import quantized as quantized  # registers the kernels that packed weights need
from . import steps
from . import sum_terms as sum_terms  # registers its kernel
from .block_kernels import block_calls, made_in
from .codegen import write_run
from .devices.accelerator import accelerator_of
from .devices.recording import call, is_watched, spanned
from .failures import explain, let_go
from .in_place import Candidates, Layouts, Look, Settled, layouts_of
from .listing import Listing, RunSource
from .slots import Slots
from .steps import Step, Steps, Values
from .store.kept import KeptLoad
from .store.source import WeightSource
from .store.staging import StagedLoad
from .threads import Threads, Turns, is_observed, turns_of
from .transport import InProcess, Transport


class Executor:
    """A schedule made ready to run: generated code for each run, and steps over slots.

    Args:
        program: what is run.
        schedule: its schedule, or another one over its nodes.
        transport: carries values between devices; that of this process, if left out.
    """

    def __init__(self, program: Program, schedule: Schedule, transport: Transport | None = None) -> None:
        self._transport = transport or InProcess()
        self._program = program
        self._schedule = schedule.instructions
        self._pieces = pieces(program)
        self._slots = Slots.of(schedule)
        self._slot_sizes = slot_bytes(program, schedule, self._pieces)
        self._blocks = block_calls(program, schedule)
        self._candidates = Candidates.of(program, self._slots.size, made_in(self._blocks))
        self._runs = {index: one for index, one in enumerate(self._schedule) if isinstance(one, Run)}
        self._shared: WeakValueDictionary[str, Listing] = WeakValueDictionary()  # by code
        self._listings: dict[tuple[int, frozenset[int] | None], RunSource] = {}
        self._settling = threading.Lock()
        self._looking = self.sources = self._generate(self._candidates)
        self._leaves: list[Any] = list(program.output.args[0])  # type: ignore[arg-type]
        self._outputs = self._output_slots()
        self._steps: Steps | None = None
        self._source: WeightSource | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the weights are there."""
        return self._steps is not None

    def bind(self, weights: WeightSource) -> None:
        """Fetches each weight that stays to each device that loads it, and makes the steps."""
        self._source = weights
        with self._slots_filled(weights):
            pass  # they are there before the first call
        self._held = {(one.name, device): self._fetch(one, device) for one, device in self._resident()}
        self._constants = {
            slot: self._held[item.meta["weight"], self._program.main]
            for slot, item in enumerate(self._leaves)
            if isinstance(item, Node) and weight_name(item)
        }
        self._make_steps()

    @property
    def held(self) -> list[torch.Tensor]:
        """The weights that stay with it on devices; a scale of an adapter may be a plain number."""
        return [one for one in self._held.values() if isinstance(one, torch.Tensor)]

    def rebind(self, names: Collection[str]) -> None:
        """Fetches weights again that were exchanged, and leaves all others."""
        for weight, device in self._resident():
            if weight.whole in names:
                self._held[weight.name, device] = self._fetch(weight, device)
        self._make_steps()

    def unbind(self) -> None:
        """Lets go of all weights."""
        with self._settling:  # a call of another thread may make steps of them
            self._steps = None
            self._settled = Settled()
            self._source = None
            self._held = {}
            self._constants = {}

    def __call__(self, values: Values) -> list[Any]:
        """Runs the schedule on tensors that lie on the main device; returns the leaves of the result.

        It takes the list of tensors over, so that an input can be freed at its last use.

        Raises ExecutionError (or DoesNotFitError when memory ran out) that names the node and its source line. An error
        keeps no tensor of the call alive.
        """
        settled, constants, source = self._settled, self._constants, self._source
        steps = self._steps  # last, for it leaves first: what is taken here belongs together
        assert steps is not None
        layouts = self._layouts(values)
        found: Steps | None = settled.by_layout.get(layouts)
        look = Look() if found is None else None
        values.extend([None] * (self._slots.size - len(values)))
        values.append(look)
        try:
            watched = call(self._program) if is_watched() else nullcontext()
            with self._slots_filled(source), torch.inference_mode(), watched:
                self._issue(found or steps, values)
        except Exception as error:
            explained = explain(error, self._program, {source.listing for source in self._listings.values()})
            let_go(values, error)
            try:
                raise explained from (None if explained is error else error)
            finally:
                del explained  # the frame is in its traceback
        except BaseException as error:  # an interrupt too must not keep tensors alive
            let_go(values, error)
            raise
        if look is not None:
            self._settle(settled, layouts, frozenset(look.found))
        return [
            constants[index] if index in constants else self._result(values, item)
            for index, item in enumerate(self._outputs)
        ]

    def _issue(self, steps: Steps, values: Values) -> None:
        """Carries out the steps, of each device on a thread of its own where devices work at once."""
        if not is_observed() and self._turns is not None:
            Threads(self._turns, steps, values).run(self._program.main)
            return
        for step in steps.values():
            step(values)

    @cached_property
    def _turns(self) -> Turns | None:
        """What each device's thread issues, which the first call finds out: a program that is but planned has none."""
        return turns_of(self._program, Schedule(self._schedule))

    def _slots_filled(self, source: WeightSource | None) -> AbstractContextManager[None]:
        """Slots for the weights that come and go in a call, if any come for one."""
        return source.call(self._slot_sizes) if self._slots.loads and source else nullcontext()

    def _make_steps(self) -> None:
        """The steps of a call that looks; what earlier calls have found may not hold for other weights."""
        self._settled = Settled()
        self._steps = self._steps_over(self._looking)

    def _layouts(self, inputs: Values) -> Layouts:
        """What decides which candidates are right in place; nothing where there are no candidates."""
        return layouts_of(inputs, bool(self._program.symbols)) if self._candidates.numbers else ()

    def _settle(self, settled: Settled, layouts: Layouts, found: frozenset[int]) -> None:
        """Makes the listing that computes in place what a call has found to be right so, unless its weights left."""
        with self._settling:
            if settled is self._settled:
                settled.keep(layouts, found, self._steps_in_place)

    def _steps_in_place(self, found: frozenset[int]) -> Steps:
        self.sources = self._generate(self._candidates.choose(found))
        return self._steps_over(self.sources)

    def _resident(self) -> Iterator[tuple[Weight, Device]]:
        """Each weight that stays on a device."""
        loads = (one for one in self._schedule if isinstance(one, Load) and one.lifetime is Lifetime.PROGRAM)
        return ((weight, load.device) for load in loads for weight in self._weights_of(load))

    def _fetch(self, weight: Weight, device: Device) -> Any:
        source = self._source
        assert source is not None
        data = source(weight, device.torch)
        return data.item() if weight.is_number else data

    def _result(self, values: Values, item: Any) -> Any:
        return _ordinary(values[item.index]) if isinstance(item, _Slot) else item

    def _generate(self, candidates: Candidates) -> dict[int, RunSource]:
        """The listing of each run, written once for each choice among its candidates; the last few are kept."""
        if len(self._listings) > 16 * len(self._runs):
            self._listings = {key: source for key, source in self._listings.items() if key[1] is None}
        sources = {}
        for index, run in self._runs.items():
            among = candidates.among(run.nodes, run.device)
            choice = among & candidates.chosen if among and candidates.chosen is not None else None
            if (index, choice) not in self._listings:
                self._listings[index, choice] = self._write(run, candidates)
            sources[index] = self._listings[index, choice]
        return sources

    def _write(self, run: Run, candidates: Candidates) -> RunSource:
        name = f"{self._program.name} segment {run.segment.index}"
        source = write_run(
            self._program, run, self._slots.on(run.device), name, candidates, self._transport,
            self._blocks.get(run.steps[0].node, ()) if run.steps else (),
        )  # fmt: skip
        return replace(source, listing=self._shared.setdefault(source.listing.code, source.listing))

    def _output_slots(self) -> list[Any]:
        output = self._schedule[-1]
        assert isinstance(output, Output)
        slots = self._slots.on(output.device).values
        given = {state.node: _Slot(slots[state]) for state in output.values}
        return [given.get(leaf, leaf) if isinstance(leaf, Node) else leaf for leaf in self._leaves]

    def _steps_over(self, sources: Mapping[int, RunSource]) -> Steps:
        """The steps by the number of their instruction, in order."""
        return {index: step for index in range(len(self._schedule)) if (step := self._step(index, sources))}

    def _step(self, index: int, sources: Mapping[int, RunSource]) -> Step | None:
        """What carries out an instruction in a call; nothing for those that bind, and for inputs and outputs."""
        match self._schedule[index]:
            case Load(lifetime=Lifetime.PROGRAM) | Input() | Output():
                return None
            case Load() as load:
                return self._load_step(load)
            case Release(load):
                return steps.release(self._slots.loads[load])
            case Allocate(value, device, like):
                return self._allocate_step(value, device, like)
            case Run() as run:
                source = sources[index]
                weights = {local: self._held[name, run.device] for local, name in source.weights.items()}
                return self._run_step(run, source.bind(weights))
            case Copy() as copy:
                return self._copy_step(copy)
            case Await(Copy() as copy) if copy.landings:
                return steps.landed(self._slots.landed[copy])
            case Await(Copy(value), device):
                return steps.wait(self._slots.values[value, device])
            case Free(value, device):
                return steps.free(self._slots.values[value, device])
            case other:
                raise ValueError(f"the schedule has {other} outside of a run")

    def _run_step(self, run: Run, step: Step) -> Step:
        """A run that is noted where somebody watches."""
        finish = accelerator_of(run.device.torch).finish
        return spanned(str(run.device), run.segment.title, step, lambda _: finish())

    def _allocate_step(self, value: ValueRef, device: Device, like: ValueRef | None) -> Step:
        (found,) = flat(type_on(value.node, device))
        slot, zeros = self._slots.values[value, device], zeros_on(value.node, device)
        if like is None:
            stride = self._stride_of_sent(value, device, found)
            return steps.allocate(slot, lambda values: found.sizes, found.dtype, device.torch, stride, zeros)
        other = self._slots.values[like, members(self._program, like.node)[0]]
        shape = [size if isinstance(size, int) else None for size in found.shape]

        def sizes(values: Values) -> list[int]:
            known = values[other].shape
            return [known[axis] if size is None else size for axis, size in enumerate(shape)]

        return steps.allocate(slot, sizes, found.dtype, device.torch, zeros=zeros)

    def _stride_of_sent(self, value: ValueRef, device: Device, kind: TensorType) -> Callable[[Values], Sequence[int]]:
        """The strides of memory in which parts land: those of the part that the device has itself, if it has one."""

        @cache
        def strides(sizes: tuple[int, ...], like: tuple[int, ...]) -> list[int]:
            return [step for step in stride_of_part(kind, sizes, like) if isinstance(step, int)]

        traced = [step for step in kind.stride if isinstance(step, int)]
        own = own_part(self._program, value.node, device)
        if own is None:
            return lambda values: traced
        part = self._slots.values[ValueRef(own), device]
        return lambda values: strides(tuple(values[part].shape), values[part].stride())

    def _copy_step(self, copy: Copy) -> Step:
        origin = self._slots.values[copy.sent, copy.source]
        memory = self._slots.values[copy.value, copy.target] if copy.landings else None
        if memory is not None and copy.source == copy.target:
            return steps.fill_own(origin, memory, copy.landings)
        target, event = self._slots.on(copy.target).ends_of(copy)
        if memory is None:
            return steps.copy(self._transport.sender(copy), origin, target, event, None)
        way = steps.in_parts(self._transport.sender_of_boxes(copy), copy)
        return steps.copy(way, origin, target, event, memory)

    def _load_step(self, load: Load) -> Step:
        """Starts bringing weights, and tells their source which come after them, unless they are there."""
        slot, following = self._slots.loads[load], self._following[load]
        device, number, source = following.device, following.slot, self._source
        assert source is not None
        started, next_weights = self._started(load, source), self._weights_of(following)
        is_kept = following.lifetime is Lifetime.PHASE

        def start(values: Values) -> None:
            values[slot] = started()
            if not (is_kept and source.is_filled(device, number)):
                source.advise(next_weights)

        return start

    def _started(self, load: Load, source: WeightSource) -> Callable[[], KeptLoad | StagedLoad]:
        """Gives the weights of a load on their way to its slot, or there."""
        bring = source.keep if load.lifetime is Lifetime.PHASE else source.stage
        return partial(bring, self._weights_of(load), load.device, load.slot, f"load {load.number}")

    @cached_property
    def _following(self) -> dict[Load, Load]:
        """For each load of a call the one after it; after the last comes the first of the next call."""
        loads = list(self._slots.loads)
        return dict(zip(loads, [*loads[1:], *loads[:1]], strict=True))

    def _weights_of(self, load: Load) -> list[Weight]:
        return [self._pieces[name][0] for name in load.weights]


@dataclass(frozen=True)
class _Slot:
    index: int


def _ordinary(value: Any) -> Any:
    """A result that callers may write to: inference mode would have no in-place op touch it outside that mode."""
    if not isinstance(value, torch.Tensor) or not value.is_inference() or torch.is_inference_mode_enabled():
        return value
    return accelerator_of(value.device).ordinary(value)

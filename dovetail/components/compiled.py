"""A compiled module: a program, its schedule made ready to run, and its weights."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch
from torch.fx import GraphModule

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import CallError, NotHereError, PassError, SpecError, UsageError
from ..compiler.frontend.autocast import autocast_set, autocast_state
from ..compiler.ir.aliasing import writes_by_strides
from ..compiler.ir.graph_module import graph_module, without_data
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Schedule
from ..compiler.states.parts import held_on
from ..compiler.text.plan_file import save_plan
from ..compiler.text.printer import print_program
from ..compiler.units import counted
from ..conventions.modes import foreign_modes, has_foreign_modes
from ..progress.phases import READING, note_read, phase
from ..runtime.devices.accelerator import Event, accelerator_of
from ..runtime.devices.fork import ForkSafeLock
from ..runtime.devices.transfers import handed, home_of, start_copy
from ..runtime.executor import Executor
from ..runtime.failures import exhaustion_told
from ..runtime.store.program_weights import ProgramWeights
from .dynamic_sizes import DynamicSizes

logger = logging.getLogger(__name__)


class Brought:
    """How often weights were brought to devices in this process: since then less is free there than was."""

    times = 0


class CompiledModule:
    """A module compiled for the devices of a rig; it is called as the module was.

    ``str()`` of it is the text form of its program. Results come back on the device of the call's first tensor
    that is on an accelerator, or else of its first one. ``base`` is the traced program that its own was lowered from,
    in which no weight is placed but those that had a place before: ``passes.pipeline.lowered`` makes other schedules of
    it, without tracing again.
    """

    def __init__(self, program: Program, rig: Rig, weights: ProgramWeights | None, base: Program | None = None) -> None:
        self.program = program
        self.base = base
        self.rig = rig
        self._weights = weights
        self._made: Executor | None = None
        self._loading = ForkSafeLock()
        self._sizes = DynamicSizes(program)
        self._changes = 0
        self.needs_strides = len(program.segments) > 1 and writes_by_strides(program)

    if not TYPE_CHECKING:  # which would take any attribute for one that there is

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, and says where the module's own methods are."""
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}: it is called as the module's forward is, and has no "
                "other method of the module (generate, to, state_dict): call that of the module, and compile it again "
                "where it changes the module. A pipeline that is compiled keeps all methods of its components"
            )

    @property
    def schedule(self) -> Schedule:
        """The instructions of one call; raises PassError when the passes stopped short of writing them."""
        if self.program.schedule is None:
            done = " → ".join(self.program.history) or "no pass"
            raise PassError(f"{self.program.name} has no schedule: its passes were {done}: end them with schedule")
        return self.program.schedule

    @property
    def each(self) -> tuple[CompiledModule, ...]:
        """Itself, or one for each device where calls take turns."""
        return (self,)

    @property
    def lowered(self) -> tuple[Program, ...]:
        """The programs of these."""
        return tuple(one.program for one in self.each)

    @property
    def _executor(self) -> Executor:
        if self._made is None:
            with self._loading:
                self._made = self._made or Executor(self.program, self.schedule)
        return self._made

    @property
    def _is_bound(self) -> bool:
        """Whether weights were brought for it."""
        return self._made is not None and self._made.is_bound

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Runs the program on the arguments of the module's own forward.

        Raises:
            CallError: the call differs from the traced one in structure, shape, dtype or a constant, in what else the
                model asks of its inputs (``is_contiguous``, ``requires_grad``), or in strides where these decide what
                it writes; or it is made within a mode of somebody's own (``TorchFunctionMode``).
            NotHereError: the program was compiled for another machine, or its weights have no data.
            ExecutionError: an operation failed; the message names the node and the model's source line.
            DoesNotFitError: a call of other sizes than the example's would exceed a device; or memory ran out, for an
                operation, inputs, results or weights.
            WeightError: a file of which weights are views was written to, before the call or while it went on.
        """
        inputs = self._checked(args, kwargs)
        home = home_of(inputs)
        main = self.program.main.torch
        with exhaustion_told(f"the inputs of {self.program.name}"):
            coming = [start_copy(x, main) for x in inputs]
            read = [one.done for one, x in zip(coming, inputs, strict=True) if accelerator_of(x.device).is_host]
            placed = [one.wait() for one in coming]
        del inputs, coming, args, kwargs
        with self._without_autocast(), _waited_for(read):
            leaves = self._executor(placed)  # which takes the list over
        if self._weights:
            self._weights.check()  # what was written meanwhile to a file of which weights are views is in the result
        if home is not None and home != main:
            with exhaustion_told(f"the results of {self.program.name}"):
                leaves = [handed(x, home) if isinstance(x, torch.Tensor) else x for x in leaves]
        return self.program.signature.unflatten(leaves)

    def taken(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
        """The tensors of a call that is to run in another thread, whose weights are there; raises as a call does."""
        inputs = self._checked(args, kwargs)
        with self._without_autocast():
            return inputs

    def _checked(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[torch.Tensor]:
        """The tensors of a call that was checked; weights are there then."""
        if has_foreign_modes():
            raise CallError(
                f"{self.program.name} is called within {foreign_modes()}, a mode that acts on each operation, and a "
                "program computes without: leave the mode, or call the module itself within it"
            )
        if self._weights and self._weights.is_changed():
            self._renew(self._weights)
        if not self._is_bound:
            self._load_once()
        if self._weights:
            self._weights.check()
        inputs = self.program.signature.flatten(args, kwargs)
        if any(x.is_meta for x in inputs):
            self._refuse_no_data(inputs)
        if self.needs_strides:
            self.program.signature.check_strides(inputs)
        if self.program.symbols:
            self._sizes.check(inputs)
        return inputs

    def _refuse_no_data(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raises CallError for an input on meta."""
        path = next(leaf.path for leaf, x in zip(self.program.signature.tensors, inputs, strict=True) if x.is_meta)
        raise CallError(
            f"argument {path} is on meta and has no data to compute with: give a tensor with data; what a call would "
            "need is in the program's schedule, and `print` shows it"
        )

    def _without_autocast(self) -> contextlib.AbstractContextManager[object]:
        """Autocast is off meanwhile, for a program has its casts; raises CallError where it has not those of now."""
        if self.program.autocast is None and not torch._C._is_any_autocast_enabled():
            return contextlib.nullcontext()
        found, traced = autocast_state(self.program.main.traced_as), self.program.autocast
        if found is not traced:
            raise CallError(
                f"{self.program.name} was compiled {_under(traced)} and is called {_under(found)}: compile it where "
                "autocast is as it is in the call"
            )
        stack = contextlib.ExitStack()
        for kind in {device.traced_as for device in self.program.devices}:
            stack.enter_context(autocast_set(kind, None))
        return stack

    def _refuse_elsewhere(self) -> None:
        if not self.rig.present:
            raise NotHereError(
                f"{self.program.name} was compiled for {self.rig.told}, which is not this machine: it can be printed, "
                "verified and saved here, and called where those devices are"
            )

    def load(self) -> None:
        """Brings every weight to its device; the first call does it otherwise.

        The weights are there when this returns, for every stream and thread.
        Raises NotHereError when the rig is not this machine, or weights have no data.
        """
        self._refuse_elsewhere()
        weights = self._weights_with_data()
        with self._loading:
            if self._executor.is_bound:  # another thread has brought them meanwhile
                return
            with phase(READING):
                weights.settle()
                self._executor.bind(weights)
                Brought.times += 1
                note_read(self._bytes_brought())
                for device in self.program.devices:
                    accelerator_of(device.torch).synchronize()

    def _weights_with_data(self, instead: str = "") -> ProgramWeights:
        """The weights; raises NotHereError where some have no data, with what may be done ``instead``."""
        if self._weights and self._weights.is_changed():  # or looking for them would hide that from the next call
            self._renew(self._weights)
        missing = self._weights.missing(self.program) if self._weights else list(self.program.weights)
        if self._weights and missing and (emptied := self._weights.emptied(missing)):
            raise NotHereError(
                f"{', '.join(emptied[:3])}{', …' if len(emptied) > 3 else ''} had numbers when {self.program.name} was "
                f"compiled, and {'is' if len(emptied) == 1 else 'are'} None now: compile it again"
            )
        if missing or self._weights is None:
            raise NotHereError(
                f"{self.program.name} has no data for {len(missing)} of its {len(self.program.weights)} weights "
                f"({', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}): {self._way_to_weights}{instead}"
            )
        return self._weights

    @property
    def _way_to_weights(self) -> str:
        if self._weights is None:
            return "give them to dovetail.load (weights=…)"
        return "have its module hold real weights before it is called, or name the files that have them (weights=…)"

    def weights_now(self) -> tuple[int, int] | None:
        """Numbers that are others when its weights may have changed; None where those it has are not the module's.

        They count how often weights were let go or exchanged, and what was written to them where they lie.

        Raises WeightError where a file of which weights are views was written to.
        """
        if not self._is_bound or (self._weights is not None and self._weights.is_changed()):
            return None
        if self._weights is not None:
            self._weights.check()
        return self._changes, sum(one._version for one in self.held() if not one.is_inference())

    def held(self) -> list[torch.Tensor]:
        """The weights that it has on devices."""
        return self._made.held if self._made is not None else []

    def _bytes_brought(self) -> int:
        """The bytes of weights that binding brings to accelerators; on the host, files are read when they are used."""
        held = ((weight, device) for weight, devices in held_on(self.program) for device in devices)
        return sum(one.nbytes for one, device in held if not device.is_host and not self.program.stages(one, device))

    def _load_once(self) -> None:
        """Loads, unless another thread has done it by now."""
        with self._loading:
            if not self._is_bound:
                self.load()

    def _renew(self, weights: ProgramWeights) -> None:
        """Lets go of weights that somebody changed in the module, unless another thread has done it by now."""
        with self._loading:
            if weights.is_changed():
                self.unload()

    def exchange(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Takes other weights for its adapters, of the form that it was compiled for; nothing is compiled."""
        if self._weights is None:
            self._weights = ProgramWeights.of_tensors({}, self.program)
        exchanged = self._weights.adapters.exchange(adapters)
        self._changes += bool(exchanged)
        if exchanged and self._is_bound:
            self._executor.rebind(exchanged)

    def unload(self) -> None:
        """Lets go of the weights; the next call loads them again."""
        self._changes += 1
        if self._made is not None:
            self._made.unbind()
        if self._weights:
            self._weights.forget()

    def source(self) -> str:
        """The generated Python of all segments."""
        listings = dict.fromkeys(source.listing for source in self._executor.sources.values())
        return "\n".join(listing.text for listing in listings)

    def graph_module(self, device: str | torch.device = "cpu") -> GraphModule:
        """The program as a ``torch.fx.GraphModule`` with its weights, for tools that read, run or rewrite fx graphs.

        It takes the tensors of a call, as ``program.signature.flatten(args, kwargs)`` gives them, and returns a tuple
        of results, to which ``program.signature.unflatten`` gives the module's own structure. It computes everything
        on one device, and what a row split computes in parts whole, so that its results are those of the module on
        that device. Weights are bound as they are now, and share memory with the module's where they lie on the
        device; others are copied there, all of them. Packed weights stay packed, in operations of dovetail's own.

        Args:
            device: where it computes: a device that this machine has, or ``meta``, for which no weight needs data.

        Raises:
            UsageError: there is no such device.
            NotHereError: weights have no data.
            DoesNotFitError: the device has no room for all weights.
            TraceError: the module is compiled by its parts, and has no program of its own.
        """
        program, place = self.program, _device_here(device)
        if place.type == "meta":
            return graph_module(program, without_data(program), place)
        weights = self._weights_with_data(", or take graph_module('meta'), whose weights have shapes alone")
        return graph_module(program, lambda weight: weights.whole(weight, place), place)

    def save(self, path: str | os.PathLike[str], component: str = "") -> None:
        """Writes a plan file: JSON data with no weights; ``dovetail.load`` makes a compiled module of it again.

        ``component`` is what it is called in its pipeline; pictures of the plan say so.
        Tensors that are in no checkpoint go into a safetensors file beside it. Raises PlanFileError.
        """
        unsaved = [weight for weight in self.program.weights.values() if not weight.persistent]
        host = torch.device("cpu")
        tensors = {weight.name: self._weights(weight, host) for weight in unsaved} if self._weights else {}
        save_plan(path, self.program, self.rig, tensors, component)

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} cannot be copied or pickled: save() writes it as a plan, and dovetail.load makes "
            "a compiled module of that"
        )

    def __str__(self) -> str:
        return print_program(self.program)

    def __repr__(self) -> str:
        where = " & ".join(map(str, self.program.devices))
        return f"CompiledModule({self.program.name} on {where}, {counted(len(self.program.segments), 'segment')})"


def _device_here(device: str | torch.device) -> torch.device:
    """PyTorch's device of a name; raises UsageError where this machine has none of that name."""
    try:
        place = torch.device("meta") if str(device) == "meta" else Device.named(str(device)).torch
        torch.empty(0, device=place)
    except (SpecError, RuntimeError, AssertionError) as error:  # PyTorch asserts that it was built for a device
        raise UsageError(f"there is no device {device} here: name one that dovetail devices lists, or meta") from error
    return place


@contextlib.contextmanager
def _waited_for(events: Sequence[Event]) -> Iterator[None]:
    """Waits for copies out of host memory at the end: if it is pinned, they read it until then; it is the caller's."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # a device that is lost has raised already
            _wait_for(events)
        raise
    _wait_for(events)


def _wait_for(events: Sequence[Event]) -> None:
    for event in events:
        if event is not None:
            event.synchronize()


def _under(autocast: torch.dtype | None) -> str:
    return "without autocast" if autocast is None else f"under autocast to {autocast}"

"""Compiles a whole diffusers pipeline: the calls of its components are swapped, its objects stay."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..compiler.errors import DoesNotFitError, UsageError
from ..compiler.ir.program import Program
from ..compiler.spec.chunks import WHOLE
from ..compiler.spec.devices import Device, Rig
from ..compiler.spec.residency import Residency
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.dry import DryRun, going_on_from
from ..components.sharing import Sharing
from ..conventions import libraries
from ..conventions.request import Request
from ..conventions.roles import role_of_module
from ..fitting.asked import leaves_devices_open, may_be_searched
from ..fitting.decide import Decision
from ..fitting.fitted import fitted
from ..fitting.refused import Tried, explained
from ..lora.adapters import plain_name
from ..lora.requested import check_mode, read_loras
from ..passes.base import Pass
from ..passes.manager import Callback, PassManager
from ..passes.pipeline import default_passes, parse_passes, with_assignment
from ..planning.generation import Generation
from ..planning.isolated import isolated
from ..planning.planner import Planner
from ..planning.tiles import Tiles
from ..planning.tiling import parse_tiling
from ..plans.folder import Plans
from ..progress.phases import PLANNING, begin
from ..progress.phases import phase as progress_phase
from ..recovery.recovery import Recovery
from ..runtime.failures import exhaustion_told
from ..runtime.store.store import Origins, Store
from .checks import refuse_taken
from .chunks import in_found_chunks
from .ledger import Ledger
from .loras import apply_loras
from .pipeline_state import ExecutionDevice, bring_state
from .plan import Phases, check_names, count_held_as_free, modules_of, phase_of, placing, share_out
from .subclass import become_as_before, become_compiled

if TYPE_CHECKING:
    from typing_extensions import Self


class CompiledPipeline:
    """A pipeline whose components are compiled; calling it calls the pipeline.

    ``pipe`` is the pipeline itself, ``components`` has a Component by name, ``rig`` the devices. Other attributes are
    those of the pipeline, to read and to set. Used in a ``with`` statement it undoes itself at the end.

    The handle keeps the pipeline alive. The pipeline and its components have the same handle without that, so that
    nothing leads back to the pipeline, and all is freed as soon as nobody holds it.
    """

    __slots__ = ("__dict__", "__weakref__", "_kept")

    def __init__(
        self,
        pipe: Any,
        request: Mapping[str, Any],
        *,
        dynamic_shapes: Mapping[str, Mapping[str, Any]] | None = None,
        passes: str | Sequence[Pass] | None = None,
        callbacks: Sequence[Callback] = (),
        origins: Mapping[str, Origins] | None = None,
        lora: Any = None,
        lora_apply_mode: str = "auto",
        vae_tiling: Any = None,
        plans: str | os.PathLike[str] | None = None,
    ) -> None:
        self._plans = Plans(plans) if plans is not None else None
        request = self._plans.completed(request) if self._plans else request
        self._kept = pipe
        self._pipe = weakref.ref(pipe)
        inside = self._within_the_pipeline()
        check_mode(lora_apply_mode)
        loras = read_loras(lora)
        refuse_taken(pipe)
        modules = modules_of(pipe)
        roles = {name: role_of_module(name, module) for name, module in modules.items()}
        self._request = count_held_as_free(Request.parse(**request, components=roles), modules)
        self._asked_chunks = self._request.chunks
        self._passes = passes
        self._callbacks = callbacks
        self._request.switch_on()
        self._roles = roles
        self._is_open = self._leaves_open()
        self.decision: Decision | None = None
        check_names(self._request, roles, dynamic_shapes or {})
        self._phase = ""
        self._running: list[None] = []
        self._components: weakref.WeakValueDictionary[str, Component] = weakref.WeakValueDictionary()
        made: list[Component] = []  # each is kept by its module from _swap on
        store, sharing = Store(plain_name), Sharing()
        self._tiles = Tiles(modules, roles, parse_tiling(vae_tiling))
        self._recovery = Recovery(self._components)
        self._rests_in_files = False
        self._phases = Phases()
        self._planner = Planner(self._phases, self._tiles)
        ledger = Ledger(self._components, self._planner, self._phases)
        for name, rig in share_out(self._request, modules, roles).items():
            one = Component(
                name,
                roles[name],
                modules[name],
                rig,
                finish=inside._finish,
                offer=ledger.offer,
                origins=(origins or {}).get(name),
                store=store,
                sharing=sharing,
                enter=inside._enter,
                dynamic_shapes=(dynamic_shapes or {}).get(name),
                **placing(self._request, name, roles[name], rig, self._whole_on(rig.devices[0])),
            )
            one.kept_traces = self._plans.traces if self._plans else {}
            one.recovery = self._recovery
            made.append(one)
            self._components[name] = one
        try:
            self._swap(inside)
            apply_loras(self, loras, lora_apply_mode)
        except BaseException:
            self.undo()
            raise

    @property
    def pipe(self) -> Any:
        """The pipeline."""
        return self._pipe()

    @property
    def components(self) -> dict[str, Component]:
        """The components by name; none when the pipeline was undone."""
        return dict(self._components)

    @property
    def rig(self) -> Rig:
        """The devices it was compiled for."""
        return self._request.rig

    @property
    def main(self) -> Device:
        """The device of the pipeline's own tensors now: while devices are open, the host."""
        return self.rig.host if self._is_open else self.placed_main

    @property
    def placed_main(self) -> Device:
        """The device of the pipeline's own tensors in a call: the main device of its largest diffusion component."""
        chosen = [one for one in self.components.values() if one.role == "diffusion"] or list(self.components.values())
        return max(chosen, key=lambda one: one.view.nbytes).devices[0]

    @property
    def granted(self) -> Rig:
        """These devices and the host, each with no more free memory than its budget."""
        return self._request.granted

    @property
    def programs(self) -> dict[str, list[CompiledModule]]:
        """What was compiled so far, by component."""
        return {name: one.programs for name, one in self.components.items() if one.programs}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the pipeline."""
        try:
            return self.pipe(*args, **kwargs)
        finally:
            self.release()

    def plan(self, *args: Any, **kwargs: Any) -> Generation | None:
        """Compiles all that a call with these arguments needs, and checks that it fits; computes and reads nothing.

        Each call of the pipeline does so itself, once for each kind of call. Returns None where the call cannot be
        planned, or calls no component. Raises DoesNotFitError where it does not fit; all is as before then.
        """
        try:
            return self._planner.plan(self, args, kwargs, strict=True)
        finally:
            self._planner.end()

    def plan_ahead(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Plans a call that comes next, as far as that goes; raises DoesNotFitError as `plan` does."""
        with progress_phase(PLANNING):
            self._planner.plan(self, args, kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Plans calls like this one, and brings all weights to their devices that stay there.

        Raises DoesNotFitError where they do not fit; nothing was read then.
        """
        plan = self.plan(*args, **kwargs)
        if plan is None:
            self(*args, **{"num_inference_steps": 1, **kwargs})
            return
        planned = {id(call.program) for call in plan.calls}
        for programs in self.programs.values():
            for one in programs:
                if id(one.program) in planned:
                    one.load()
                    self.release()  # of slots, which come again with the call that uses them

    def refresh(self, *names: str) -> None:
        """Forgets the programs of the named components, or of all, after a change that is not seen by itself."""
        self._planner.forget()
        for name in names or self.components:
            self.components[name].refresh()

    def release(self) -> None:
        """Lets go of all weights that rest elsewhere than where they are read, as each call does at its end."""
        self._phase = ""
        for component in self.components.values():
            component.view.release()
            component.adapters.forget()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A call of the pipeline; at its end goes what was staged, and adapters' weights are taken anew by the next.

        Raises DoesNotFitError where memory runs out in what the pipeline computes itself.
        """
        for component in self.components.values():
            component.put_back()
        self._running.append(None)
        self._recovery.begin()
        try:
            with exhaustion_told(f"{type(self.pipe).__name__} outside its components"):
                yield
            self._recovery.begin()
        except BaseException:
            self._recovery.keep()
            raise
        finally:
            self._running.pop()
            self._planner.end()
            self.release()

    def undo(self) -> None:
        """Makes the pipeline what it was: its own calls, and every weight back where it was, bit for bit."""
        self._planner.forget()
        self._tiles.undo()
        for component in self.components.values():
            component.restore()
            component.module.__dict__.pop(libraries.HOOK, None)
        become_as_before(self.pipe)
        bring_state(self.pipe)

    def __getattr__(self, name: str) -> Any:
        """What the handle does not have itself is the pipeline's: its scheduler, its ``load_lora_weights``."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.pipe, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.pipe, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.pipe)})

    def __enter__(self) -> CompiledPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"{type(self.pipe).__name__} on {', '.join(map(str, self.rig))}"]
        for name, one in self.components.items():
            where = " & ".join(map(str, one.devices))
            kept = one.view.residency
            rests = f", weights rest on {kept.value}" if kept is not Residency.DEVICE else ""
            by_parts = ", by its parts" if one.parts.reasons else ""
            lines.append(f"  {name} ({one.role}): {where}{rests}{by_parts}, {len(one.programs)} programs")
        return "\n".join(lines)

    def __reduce_ex__(self, _: Any) -> Any:
        raise UsageError(
            "the handle of a compiled pipeline cannot be copied or pickled: copy the pipeline (handle.pipe), and "
            "compile the copy"
        )

    def _within_the_pipeline(self) -> Self:
        """The same handle, which does not keep the pipeline alive."""
        inside = object.__new__(type(self))
        inside.__dict__ = self.__dict__
        return inside

    def _swap(self, inside: CompiledPipeline) -> None:
        for component in self.components.values():
            component.swap()
        self._settle()
        become_compiled(self.pipe, inside)

    def _settle(self) -> None:
        """Tells libraries where the components are, and reads what they look at; where that is known."""
        for component in self.components.values():
            if self.rig.present and not self._is_open:
                component.settle()
        self._tell_device()
        places = {name: "&".join(map(str, one.devices)) for name, one in self.components.items()}
        self.pipe.__dict__[libraries.DEVICE_MAP] = places

    def _tell_device(self) -> None:
        """Has the pipeline make its own tensors where they are to be as components are placed now."""
        hook = ExecutionDevice(self.main.torch if self.rig.present else torch.device("cpu"))
        for component in self.components.values():
            component.module.__dict__[libraries.HOOK] = hook

    def _leaves_open(self) -> bool:
        """Whether the devices of some components are to be searched."""
        return leaves_devices_open(self._request, self._roles)

    def decided(
        self, run: DryRun, lower: Callable[[Decision | None], Generation], tried: Callable[[], Generation] | None
    ) -> Generation:
        """What lowering makes of the calls of a dry run; devices that were left open are decided first, by a search.

        On the host alone there is nothing to decide, unless the weights do not fit in its memory: they may rest in
        their files. Numbers of chunks that were left open are found too, where devices are settled by trying. Raises
        DoesNotFitError as lowering does, and where the search finds nothing; what was left open stays so then.
        """
        if not self._is_open:
            try:
                if self._passes:
                    return lower(None)
                asked = replace(self._request, chunks=self._asked_chunks)
                return in_found_chunks(asked, self.components, run, self._put, lambda: lower(None), tried)
            except DoesNotFitError:
                if self.programs or not may_be_searched(self._request, self._roles):
                    raise
        asked, was_open, name = self._request, self._is_open, type(self.pipe).__name__
        self._is_open = False
        try:
            generation, self.decision = fitted(name, self.components, asked, phase_of, run, self._place, lower)
        except BaseException:
            self._is_open = was_open
            self._place(asked)
            raise
        self._settle()
        return generation

    def _put(self, request: Request) -> None:
        """Has what is lowered from now on be as a request says, on the devices that components have."""
        self._request = request

    def refused(self, error: DoesNotFitError, run: DryRun, tried: Tried) -> DoesNotFitError:
        """The refusal of the calls of a dry run, with ways out that were tried; all is as before then."""
        asked, was_open = self._request, self._is_open
        place = None if self.programs else self._place  # what was placed for good is not placed otherwise for a trial
        self._is_open = False
        try:
            return explained(error, self.components, asked, phase_of, run, place, tried)
        finally:
            self._is_open = was_open
            if place:
                place(asked)

    def _place(self, request: Request) -> None:
        """Gives the components the devices of a request, and their weights the places where they rest."""
        self._request = request
        modules = {name: one.module for name, one in self.components.items()}
        for name, rig in share_out(request, modules, self._roles).items():
            there = placing(request, name, self._roles[name], rig, self._whole_on(rig.devices[0]))
            self._components[name].move(rig, **there)
        self._tell_device()
        if self._rests_in_files:
            self._free_host()

    def splits_rows(self, component: Component) -> bool:
        """Whether a component's weights are to be split by rows over several devices."""
        return len(component.devices) > 1 and self._request.mode_for(component.name, component.role) == "row"

    def rest_in_files(self) -> None:
        """Has weights that the host computes with rest in their files, of which they are views, between phases.

        The memory of a phase's components is then free for the next. To be called before the first call, where nobody
        needs the modules' own tensors. Components that lie in no files stay as they are.
        """
        self._rests_in_files = True
        if not self._is_open:
            self._free_host()

    def _free_host(self) -> None:
        for one in self.components.values():
            stays = one.view.residency is Residency.DEVICE and all(device.is_host for device in one.devices)
            if stays and one.view.is_in_files:
                one.view.rest_in(Residency.DISK)

    def _whole_on(self, main: Device) -> Device:
        """The device of calls that cannot be compiled; while devices are open, the host."""
        return self.rig.host if self._is_open else main

    def _enter(self, component: Component) -> None:
        """Lets go of what was staged for another phase, when a component of a new one is called.

        A component that is called outside a call of the pipeline takes its adapters' weights anew each time.
        """
        if self._is_open:  # a call that could not be planned
            self._is_open = False
            self._place(self._request)
            self._settle()
        if not self._running:
            component.adapters.forget()
        phase = self._phases(component.name)
        if phase == self._phase:
            return
        self._phase = phase
        begin(phase_of(component.name))
        for other in self.components.values():
            if self._phases(other.name) != phase:
                other.view.release()

    def go_on(self, latents: Mapping[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """Decodes latents that an earlier call of the same arguments left, and returns what that would have returned.

        Nothing is encoded or sampled.

        Args:
            latents: what the handle had in ``latents`` when that call had failed.
            args, kwargs: the arguments of the call.

        Raises UsageError where the latents are not those of such a call.
        """
        base = getattr(type(self.pipe), "_dovetail_base", type(self.pipe))
        with self.running(), contextlib.suppress(DoesNotFitError):
            self.plan_ahead(args, kwargs)  # for tiles; what is not decoded need not fit
        with self.running(), isolated(self.pipe, base, args, kwargs, ()) as call, going_on_from(latents):
            return call()

    @property
    def latents(self) -> dict[str, torch.Tensor]:
        """What VAEs were given to decode in the last call, if that failed meanwhile; to be given to `go_on`."""
        return dict(self._recovery.decoding)

    def _finish(
        self, component: Component, traced: Program, module: nn.Module, chunks: int | None = None
    ) -> CompiledModule:
        traced.keeps_staged = not component.streams  # until the component's phase ends
        component.sites.place(module, traced)
        program = traced.copy()
        shares = self._request.shares_for(component.name, component.role, component.devices)
        given = parse_passes(self._passes) if isinstance(self._passes, str) else self._passes
        mode = self._request.mode_for(component.name, component.role)
        mode = "layer" if component.sites.settled else mode
        chunk = chunks or self._request.chunks_for(component.name, component.role) or WHOLE
        steps = given or default_passes(shares, split_mode=mode, chunk=chunk)
        planned = self._plans and self._plans.assignment(component.name, traced, component.view.residency)
        PassManager(with_assignment(steps, planned) if planned else steps, self._callbacks).run(program)
        component.assigned.note(module, program, planning=True)
        return CompiledModule(program, self.rig, component.view.of_program(module, program), traced)

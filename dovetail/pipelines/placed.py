"""The components of a compiled pipeline on their devices: made, placed for good or for a trial, told of phases."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from ..addons.addons import Addons
from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import UsageError
from ..compiler.ir.program import Program
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.decisions import Decisions
from ..components.plan import ComponentPlan
from ..components.turn import Turn
from ..conventions import libraries
from ..conventions.request import BOTH, Request, tell_by_parts
from ..conventions.roles import role_of_module
from ..conventions.spellings import Settings, Tiling
from ..fitting.asked import leaves_devices_open
from ..lora.adapters import plain_name
from ..passes.infra.base import Pass
from ..passes.infra.manager import Callback, PassManager
from ..passes.pipeline import default_passes, parse_passes
from ..planning.alternating import alternating, groups_in_turn, lowered_whole, may_alternate, steps_in_turn
from ..planning.draft import Draft
from ..planning.phases import Phases, let_tables_go, phase_of
from ..planning.planner import Planner
from ..planning.tiles import Tiles
from ..planning.tiling import parse_tiling
from ..plans.folder import Plans
from ..progress.phases import begin
from ..recovery.recovery import Recovery
from ..runtime.devices.fork import ForkSafeLock
from ..runtime.failures import exhaustion_told
from ..runtime.store.store import Origins, Store
from .checks import refuse_taken
from .deciding import Deciding
from .host_memory import host_checked
from .pipeline_state import ExecutionDevice
from .plan import check_names, component_plans, count_held_as_free, modules_of
from .sharing import OfAllFaces, let_go, named_in, placed_already, users_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


class PlacedPipeline(Deciding):
    """The components of a pipeline, and where they are; it keeps neither the pipeline nor its modules alive."""

    _phase = OfAllFaces[str]()

    def __init__(
        self,
        pipe: DiffusionPipeline,
        request: Settings,
        *,
        dynamic_shapes: Mapping[str, Mapping[str, object]] | None = None,
        passes: str | Sequence[Pass] | None = None,
        callbacks: Sequence[Callback] = (),
        origins: Mapping[str, Origins] | None = None,
        vae_tiling: Tiling | None = None,
        attention: str | None = None,
        cache: str | None = None,
        plans: str | os.PathLike[str] | None = None,
    ) -> None:
        self.addons = Addons(attention, cache)
        """What is put on the diffusion models until they are undone."""
        self._plans = Plans(plans) if plans is not None else None
        super().__init__()
        self._pipe = weakref.ref(pipe)
        self._pipes = [self._pipe]
        self.name = type(pipe).__name__
        modules = modules_of(pipe)
        self.borrowed = placed_already(modules)
        self.has_shared = False
        refuse_taken(pipe, self.borrowed)
        roles = {name: role_of_module(name, module) for name, module in modules.items()}
        request = self._plans.completed(request, roles) if self._plans else request
        request = cast("Settings", named_in(request, self.borrowed))
        self._request = count_held_as_free(Request.parse(**request, components=roles), modules)
        self._asked_rig, self._brought = self._request.rig, -1
        self._passes = passes
        if passes is not None and self._request.inductor:
            raise UsageError(BOTH)
        self._callbacks = callbacks
        self._shapes = dynamic_shapes or {}
        self._request.switch_on()
        self._asked = self._request
        self._is_open = self._was_open = leaves_devices_open(self._request, roles)
        self.decision = None
        check_names(self._request, roles, self._shapes)
        self._phase = ""
        self.hook = ExecutionDevice(torch.device("cpu"))
        self._running: list[None] = []
        self._traced: Draft | None = None
        self._components: weakref.WeakValueDictionary[str, Component] = weakref.WeakValueDictionary()
        self._store, self._turn = Store(plain_name), Turn()
        for one in self.borrowed.values():
            self._turn.join(one.shared_turn)
        self._tiles = Tiles(modules, roles, parse_tiling(vae_tiling))
        self._recovery = Recovery(self._components)
        self._rests_in_files = False
        self.keeps_latents = False
        """Whether what was decoded is kept after a call that succeeds too, until the next one."""
        self._planner = Planner(self._tiles)
        self._store.room_for = host_checked(weakref.ref(self))
        try:
            diffusing = {name: one for name, one in modules.items() if roles[name] == "diffusion"}
            self.addons.put(diffusing, self.borrowed, self.name)
            own, whole_on = modules.keys() - self.borrowed.keys(), partial(self._whole_on, is_open=self._is_open)
            made = [
                self._made(name, roles[name], modules[name], one, (origins or {}).get(name))
                for name, one in component_plans(self._request, modules, roles, whole_on, own).items()
            ]
            there = {**self.borrowed, **{one.name: one for one in made}}
            self._components.update({name: there[name] for name in modules})
            for one in self.borrowed.values():
                one.borrowers.add(self)
            for one in made:
                one.swap()
            self._settle()
            self.join()
        except BaseException:
            self._restore()
            raise

    @property
    def pipe(self) -> DiffusionPipeline:
        """The pipeline; raises UsageError where nobody has it any more."""
        pipe = self._pipe()
        if pipe is None:
            raise UsageError(
                f"the {self.name} is gone: keep what load_pipeline or compile_pipeline returned, and not only .dovetail"
            )
        return pipe

    @property
    def known_pipe(self) -> DiffusionPipeline | None:
        """The pipeline, or None where nobody has it any more."""
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
        """The device of the pipeline's own tensors now, which is the host while devices are open or are not here."""
        return self.placed_main if self.rig.present and not self._is_open else self.rig.host

    def main_of(self, draft: Draft) -> Device:
        """The device of the pipeline's own tensors in a dry run with a draft.

        It is the host where devices are open, or are not here.
        """
        return draft.main if self.rig.present and not draft.plan.is_open else self.rig.host

    @property
    def placed_main(self) -> Device:
        """The main device of the largest diffusion component, where the pipeline's own tensors are in a call."""
        return self.now().main

    @contextlib.contextmanager
    def own_on(self, device: Device, draft: Draft) -> Iterator[None]:
        """Has the pipeline make its own tensors on a device meanwhile, where a draft stands for what holds."""
        before = self.hook.execution_device, self._traced
        try:
            self.hook.execution_device, self._traced = device.torch, draft
            yield
        finally:
            self.hook.execution_device, self._traced = before

    @property
    def granted(self) -> Rig:
        """These devices and the host, each with no more free memory than its budget."""
        return self._request.granted

    @property
    def programs(self) -> dict[str, list[CompiledModule]]:
        """What was compiled so far, by component."""
        return {name: one.programs for name, one in self.components.items() if one.programs}

    @property
    def turn(self) -> ForkSafeLock:
        """Held by a call of the pipeline from its beginning to its end, and by whatever changes a component."""
        return self._turn.lock

    def release(self) -> None:
        """Lets go of all weights that rest elsewhere than where they are read, as each call does at its end."""
        with self.turn, self.turn:
            self._phase = ""
            for component in self.components.values():
                component.view.release()
                component.adapters.forget()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A call of the pipeline, by the thread that has the turn; what was staged for it leaves at its end.

        Raises DoesNotFitError where memory runs out in what the pipeline computes itself.
        """
        for component in self.components.values():
            component.put_back()
        self._stay_again()
        outer = len(self._running)
        if not outer:
            for model in self._diffusing():  # an earlier call, of any pipeline over it, may have ended early
                libraries.reset_cache(model)
        try:  # an interrupt may come between any two statements
            self._running.append(None)
            self._recovery.begin()
            self._recovery.is_called = True
            bound = contextlib.nullcontext() if outer else self._bounded()
            told = exhaustion_told(f"{self.name} outside its components")
            with bound, self.using_borrowed(), told, contextlib.nullcontext() if outer else self._launching():
                yield
            self._recovery.keep() if self.keeps_latents else self._recovery.begin()
        except BaseException:
            self._recovery.keep()
            raise
        finally:
            del self._running[outer:]
            self._recovery.is_called = bool(self._running)
            self._planner.end()
            self.release()

    @contextlib.contextmanager
    def _launching(self) -> Iterator[None]:
        """Has calls of components go on while the pipeline does, where these take turns; all are over at the end."""
        launches, failed = [one.launches for one in self.components.values()], True
        try:
            for one in launches:
                one.is_open = True
            yield
            failed = False
        finally:
            with contextlib.ExitStack() as stack:
                for one in launches:
                    stack.callback(one.end, failed)

    def splits_rows(self, component: Component) -> bool:
        """Whether what devices have of a component's weights is decided by its split mode."""
        return component.plan.places_itself

    def rest_in_files(self) -> None:
        """Has weights that the host computes with rest in their files, of which they are views, between phases.

        So a phase's memory is free for the next. To be called before the first call, where nobody needs modules' own
        tensors. Components that lie in no files stay.
        """
        self._rests_in_files = True
        if not self._is_open:
            self._place(self._request)

    def _settle(self) -> None:
        """Tells libraries where the components are, and reads what they look at; where that is known."""
        for component in self._own().values():
            if self.rig.present and not self._is_open:
                component.settle()
        self._tell_device()

    def _tell_device(self) -> None:
        """Has the pipeline make its own tensors where they are to be, and say where components are, as is so now."""
        pipe = self._pipe()
        if pipe is not None:
            there = {name: "&".join(map(str, one.devices)) for name, one in self.components.items()}
            pipe.__dict__[libraries.DEVICE_MAP] = there
        self.hook.execution_device = self.main.torch
        for component in self._own().values():
            component.module.__dict__[libraries.HOOK] = self.hook

    def _made(
        self, name: str, role: str, module: nn.Module, plan: ComponentPlan, origins: Origins | None = None
    ) -> Component:
        """A component of a module of the pipeline, on its devices; nothing is swapped yet."""
        one = Component(
            name,
            role,
            module,
            plan,
            finish=self._finish,
            origins=origins,
            store=self._store,
            turn=self._turn,
            dynamic_shapes=self._shapes.get(name),
        )
        one.kept_traces = self._plans.traces if self._plans else {}
        one.serve(self.as_user(name))
        one.owner = self
        return one

    @property
    def _roles(self) -> dict[str, str]:
        return {name: one.role for name, one in self.components.items()}

    def _diffusing(self) -> list[nn.Module]:
        """The diffusion models, whoever placed them."""
        return [one.module for one in self.components.values() if one.role == "diffusion"]

    @property
    def _addons(self) -> list[Addons]:
        """What is put on the diffusion models by this pipeline, and by those that placed what it borrows."""
        owners = [one.owner for one in self.borrowed.values() if one.owner is not None]
        return [self.addons, *dict.fromkeys(one.addons for one in owners if one.addons is not self.addons)]

    def _modules(self) -> dict[str, nn.Module]:
        """The modules of the components by name."""
        return {name: one.module for name, one in self.components.items()}

    def _restore(self) -> None:
        """Gives all components back as they were."""
        with self.turn, self.turn:
            self._planner.forget()
            self._tiles.undo()
            self.addons.take_off()
            for name, component in self.borrowed.items():
                component.borrowers.discard(self)
                self._components.pop(name, None)
            left = [one for one in self.borrowed.values() if not users_of(one)]
            self.borrowed.clear()
            for component in (*self.components.values(), *left):
                let_go(component, self)
                self._components.pop(component.name, None)

    def _whole_on(self, main: Device, is_open: bool) -> Device:
        """The device of calls that cannot be compiled; while devices are open, the host."""
        return self.rig.host if is_open else main

    def _enter(self, component: Component) -> None:
        """Lets go of what was staged for another phase, when a component of a new one is called.

        A component that is called outside a call of the pipeline takes those weights of adapters anew each time to
        which not every write is seen.
        """
        self.close()  # for a call that could not be planned
        if not self._running:
            component.adapters.forget_unwatched()
        phase = self._phases(component.name)
        if phase == self._phase:
            return
        self._phase = phase
        begin(phase_of(component.name))
        for other in self.components.values():
            if self._phases(other.name) != phase:
                other.view.release()

    def close(self) -> None:
        """Has components take the devices that they get without a search, if devices are open still."""
        if self._is_open:
            self._is_open = False
            self._place(self._request)
            self._settle()

    def _keeps(self, decided: Decisions, phases: Phases) -> bool:
        """Whether what is brought for a component stays for its phase; of one by parts, where there is room for all.

        For parts are lowered one after another, and the first would leave no room for the last.
        """
        component = decided.component
        if component.streams or not phases.keeps(component.name):
            return False
        free = sum(memory.free for device, memory in decided.plan.rig.memory.items() if not device.is_host)
        return not decided.sites.are_by_parts or component.view.nbytes <= free

    def _finish(self, decided: Decisions, traced: Program, module: nn.Module) -> CompiledModule:
        component, plan, draft = decided.component, decided.plan, decided.beside
        phases = draft.plan.phases if draft is not None else self._phases
        traced.keeps_staged = self._keeps(decided, phases)  # until its phase ends
        decided.sites.place(module, traced)
        keeps = phases.keeps(component.name)
        given = parse_passes(self._passes) if isinstance(self._passes, str) else self._passes
        mode = "layer" if decided.sites.settled else plan.mode
        in_parts = plan.micro_batches if module is component.module else 1
        if plan.micro_batches > 1 and decided.sites.are_by_parts:
            tell_by_parts(component.name)
        steps = given or default_passes(
            plan.shares, split_mode=mode, chunk=plan.chunks, inductor=plan.inductor, micro_batches=in_parts,
            terms=plan.terms,
        )  # fmt: skip
        kept = self._plans and self._plans.passes(steps, component.name, traced, plan.residency)

        def run(program: Program) -> Program:
            if not keeps:
                let_tables_go(program)
            return PassManager(kept or steps, self._callbacks).run(program)

        is_own = not (given or kept or self._callbacks or plan.inductor)  # passes of others may do more than lower
        how = tuple(steps), keeps
        is_repeatable = is_own and draft is not None
        if is_own and mode == plan.mode and may_alternate(decided, traced):
            groups = groups_in_turn(plan, decided.parts)
            found = lowered_whole(traced, groups, steps_in_turn(plan), self._planner.lowerings)
            if found is not None:
                return alternating(decided, traced, module, found, self.rig)
        program = self._planner.lowerings.of(traced, how, run) if is_repeatable else run(traced.copy())
        decided.assigned.note(module, program, planning=True)
        return CompiledModule(program, self.rig, component.view.of_program(module, program), traced)

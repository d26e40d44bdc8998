"""One component of a pipeline: its calls are compiled, the object stays as it is.

The ``forward`` of the component and of each of its parts gives way to a function that compiles on the first call of
each kind and then runs the program. Pipelines call parts too (a text encoder's last norm, a VAE's decoder tile by tile
while tiling is on), so each part is ready to be compiled by itself; inside a program none of them is called any more.
A VAE's ``_encode`` and ``_decode`` are calls of their own: what ``encode`` and ``decode`` do around them stays Python.
What cannot be traced runs by its parts (``by_parts.py``).
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import TraceError, UsageError
from ..compiler.frontend import trace_lock
from ..compiler.spec.residency import Residency
from ..conventions import modes
from ..conventions.libraries import OWN_METHODS, VAE_METHODS
from ..conventions.replacements import copy_bare, take_methods_out
from ..lora.adapters import Adapters
from ..lora.stand_ins import guard_module
from ..passes.placement.assignment import Assigned, Assignment
from ..runtime.devices.fork import ForkSafeLock
from ..runtime.store.store import Origins, Store
from ..runtime.store.stored_weight import StoredWeight
from ..runtime.unfinished import finished, has_unfinished
from .adopting import adopting
from .alternating import Launches
from .answers import answer
from .arguments.ambient import ambient
from .by_parts import Parts
from .call_compiler import CallCompiler, Finish
from .calls import Call, unload
from .compiled import CompiledModule
from .decisions import Decisions
from .dry import dry_run
from .encoded import encoding
from .merging import Merges
from .module_methods import put_methods
from .plan import ComponentPlan
from .reads import reading
from .sites import Outline, Sites
from .turn import Turn
from .watch import Watch
from .weights.assigned import AssignedWeights
from .weights.foreign import refuse_unmovable
from .weights.module_view import ModuleView

logger = logging.getLogger(__name__)

_METHODS = (*VAE_METHODS, *OWN_METHODS)


class Recovering(Protocol):
    """Recovers calls that ran out of memory."""

    def once_more(self, component: Component, error: BaseException) -> bool:
        """Frees memory after an error; says whether the call is to be made once more."""

    def decode(
        self, component: Component, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Decodes as the module does; where memory runs out, with less of it."""


@dataclass(frozen=True)
class User:
    """What a component asks and tells of the pipeline that uses it now; see Component."""

    name: str
    offer: Callable[[Decisions, Sequence[StoredWeight]], Rig] | None = None
    enter: Callable[[Component], None] | None = None
    recovery: Recovering | None = None
    """What is asked when memory runs out."""


class Component:
    """A module of a pipeline, its devices, its weights, and the programs of its calls.

    Args:
        name: the attribute of the pipeline.
        role: what it is for.
        module: the module, which is changed in place.
        plan: where it runs and its weights rest.
        finish: runs the passes on a traced program.
        offer: says what is left for it of each of its devices; all of what its rig says, if left out.
        why: what tracing said of the call that comes first, if it is known not to be traceable.
        origins: where weights come from that have no data yet.
        store: holds the weights of all components of the pipeline.
        turn: the turn of calls and changes, of all components of the pipeline.
        enter: is told when the component is called.
        dynamic_shapes: as torch.export takes them, for its forward.
    """

    _option_is_told: bool = False

    def __repr__(self) -> str:
        return f"<Component {self.name} ({self.role}) on {' & '.join(map(str, self.devices))}>"

    def tell_of_option(self) -> bool:
        """Whether an option has it run by its parts, which is said once."""
        because = self.owner.addons.parting(self.module) if self.owner is not None else ""
        if because and not self._option_is_told:
            self._option_is_told = True
            logger.warning("%s runs by its parts, because of %s", self.name, because)
        return bool(because)

    def __init__(
        self,
        name: str,
        role: str,
        module: nn.Module,
        plan: ComponentPlan,
        *,
        finish: Finish,
        offer: Callable[[Decisions, Sequence[StoredWeight]], Rig] | None = None,
        why: TraceError | None = None,
        origins: Origins | None = None,
        store: Store | None = None,
        turn: Turn | None = None,
        enter: Callable[[Component], None] | None = None,
        dynamic_shapes: Mapping[str, object] | None = None,
    ) -> None:
        self.serve(User(name, offer, enter))
        self.owner: Any = None
        """The pipeline that placed it, if that is one."""
        self.borrowers: weakref.WeakSet[Any] = weakref.WeakSet()
        """The pipelines besides that use it as it is."""
        self.kept_traces: Mapping[str, Path] = {}  # beside plans that a person named, by the content of each
        self.role = role
        self._module = weakref.ref(module)
        refuse_unmovable(module, plan.devices)
        self.merges = Merges(self)
        self.view = ModuleView(module, origins, store=store, residency=plan.residency, amounts=plan.amounts)
        self.shared_turn = turn or Turn()
        self.adapters = Adapters(module, self.merges.take_over)
        self.calls: list[Call] = []
        self._swapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._generating: list[nn.Module] = []
        self.parts = Parts(self)
        self.outline = Outline()
        self._decided = Decisions(self, plan, AssignedWeights(self.view))
        self.compiler = CallCompiler(self, finish, why, dynamic_shapes)
        self.watch = Watch(self)
        self.view.moved = self.watch.renew
        self.launches = Launches()
        self.is_decoding = False
        self.streams = False
        """Whether weights that rest elsewhere come and go with their blocks, and are not kept for a phase."""
        self._stays: Assignment = {}
        self.adopted = 0
        """How many parts were put in the place of others since it was compiled, as far as was looked."""
        self.takes_adapters = False
        """Whether an adapter is being loaded: stand-ins are in the places of all other weights."""

    def serve(self, user: User) -> None:
        """Has it ask and tell a pipeline from now on, under the name that it has there."""
        self.user = user
        self.name, self._offer, self.enter, self.recovery = user.name, user.offer, user.enter, user.recovery

    @property
    def decided(self) -> Decisions:
        """What is decided of it: in a dry run, what that is made with."""
        run = dry_run()
        return (run.decided.get(self) if run is not None else None) or self._decided

    @property
    def plan(self) -> ComponentPlan:
        """Where it runs and its weights rest."""
        return self.decided.plan

    @property
    def assigned(self) -> AssignedWeights:
        """What its weights are assigned."""
        return self.decided.assigned

    @property
    def sites(self) -> Sites:
        """Where its modules run that run their own Python."""
        return self.decided.sites

    def take_rig(self, rig: Rig) -> None:
        """Notes what it may use of each of its devices now."""
        self._decided.plan = replace(self._decided.plan, rig=rig)

    def hold(self, decided: Decisions) -> None:
        """Has these decisions hold; ``adopting`` does so, and keeps the programs that were made for them."""
        rests = decided.plan.residency, decided.plan.amounts
        if rests != (self.view.residency, self.view.amounts):
            self.view.rest_in(*rests)
        decided.assigned.commit()
        self._decided = decided

    @property
    def rig(self) -> Rig:
        """Its devices, main first, with what it may use of each."""
        return self.plan.rig

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, main first."""
        return self.plan.devices

    @property
    def whole_on(self) -> Device:
        """Where runs what cannot be compiled whole."""
        return self.decided.whole_on

    @property
    def turn(self) -> ForkSafeLock:
        """Held while a component of the pipeline runs or is changed."""
        return self.shared_turn.lock

    @property
    def programs(self) -> list[CompiledModule]:
        """Everything that was compiled for this component so far."""
        held = (program for call in list(self.calls) for program in list(call.programs.values()))
        return list(dict.fromkeys(program for program in held if isinstance(program, CompiledModule)))

    @property
    def module(self) -> nn.Module:
        """The module; raises ReferenceError when nobody has it any more.

        It keeps its component alive, and not the other way round, so that both are freed without a garbage collection.
        """
        module = self._module()
        if module is None:
            raise ReferenceError(f"the module of {self.name} is gone")
        return module

    def swap(self) -> None:
        """Puts the compiled calls in place of the module's own."""
        for path, module in self.module.named_modules():
            self._swap(path, "forward", module)
        self.adapters.wrappers(self.module)
        guard_module(self)
        for method in _METHODS:
            if callable(getattr(self.module, method, None)):
                self._swap("", method, self.module)
        self._generating += put_methods(self)

    def take_in(self, module: nn.Module) -> None:
        """Has parts answer their calls that were put in a part in the place of others; those get their own calls back.

        Takes time linear in the part that is looked at, unless it has new ones or is the whole module.
        """
        if module is not self.module and all(part in self._swapped for part in module.modules()):
            return
        paths = {part: path for path, part in self.module.named_modules()}
        for call in [one for one in self.calls if one.held not in paths]:
            call.unload()
            call.end()
            self.calls.remove(call)
            self.watch.forget(call)
        self._swapped = weakref.WeakSet(call.module for call in self.calls)
        for part in paths.keys() - set(self._swapped):
            self._swap(paths[part], "forward", part)
            self.adopted += 1

    def settle(self) -> None:
        """Reads what libraries compute with before the first call: small parameters that the module holds itself.

        Such are a prior's mean and deviation.
        """
        self.view.keep(self.module.parameters(recurse=False), self.whole_on)
        for one in self.view.weights():  # of a plan, they lie where they would lie if this were none
            one.home = self.devices[0] if one.home == self.whole_on else one.home

    def restore(self) -> None:
        """Gives the module its own calls and its weights' old places back, and forgets all programs.

        Waits until no other thread runs one. Raises DoesNotFitError when a weight finds no room where it was: the
        component is still compiled then, and this can be repeated.
        """
        with self.turn, self.turn:
            self.unload()
            self.sites.forget()
            self.view.undo()
            self.assigned.forget()
            for wrapper in self.adapters.wrappers(self.module):
                self.merges.hand_back(wrapper)
            self.adapters.hand_back(self.module)
            self._forget()

    def refresh(self) -> None:
        """Forgets all programs; the next calls compile again. For a component that was changed by hand."""
        with self.turn, self.turn:
            self._forget()
            self.sites.forget()
            self.view.forget_copies()
            self.swap()

    def is_as_planned(self, call: Call, key: tuple[Any, ...]) -> bool:
        """Whether the part that is called is in the state of a key, adapters included."""
        state = self.watch.look(call)
        return key[:-1] == (state.number, *ambient(self.devices[0].traced_as), self.adapters.read(call.module).key)

    def assign(self, assignment: Assignment) -> None:
        """Has its weights be where an assignment of all of them by name says; its programs are lowered again for that.

        Nothing is traced again. Raises UsageError for an assignment that is none of this component, or that slices
        weights, which the split mode decides; DoesNotFitError where a device lacks memory. All is as before then.
        """
        if self.plan.is_together:
            raise UsageError(
                f"{self.name} cannot be assigned devices weight by weight: split mode {self.plan.mode} decides what "
                "each device has of a weight (--split-mode layer leaves that to you)"
            )
        if self.plan.by_rows or any(one.bounds for one in assignment.values()):
            raise UsageError(f"{self.name} cannot be assigned rows: split mode row decides which device gets which")
        with self.turn, self.turn, trace_lock.alone():
            self.sites.check(assignment)
            self.unload()
            self.view.forget_copies()
            draft = self.decided.draft()
            draft.assigned.forget_slots()
            draft.assigned.assign({one: assignment[one.name] for one in self.view.weights()})
            self.compiler.lower_again(self.calls, draft)
            with adopting([draft]):
                self.sites.forget()
                self.view.rest()

    def leave_devices(self) -> None:
        """Brings its weights off devices on which they are not to stay any more; programs fetch theirs again."""
        self.unload()
        self.view.forget_copies()
        self.view.leave_devices()

    def stream(self) -> bool:
        """Has its weights rest in host memory, or in their files, and come block by block; says whether that is new.

        Raises DoesNotFitError where even that is too much; all is as before then.
        """
        if self.streams or self.plan.places_itself or self.parts.reasons or all(one.is_host for one in self.devices):
            return False
        rests = Residency.DISK if self.view.residency is Residency.DISK else Residency.HOST
        assignment = {
            one.name: Assigned(
                one.home or self.devices[0], (), rests if isinstance(one.tensor, nn.Parameter) else one.residency
            )
            for one in self.view.weights()
        }
        stays = {one.name: Assigned(one.home or self.devices[0], (), one.residency) for one in self.view.weights()}
        self.streams = True
        try:
            self.assign(assignment)
        except BaseException:
            self.streams = False
            raise
        self._stays = stays
        return True

    def stay(self) -> None:
        """Has its weights rest again where they did before `stream`; they are brought when they are read."""
        stays, self._stays = self._stays, {}
        self.streams = False
        try:
            self.assign(stays)
        except BaseException:
            self.streams, self._stays = True, stays
            raise

    def comes_back(self) -> Counter[Device]:
        """The bytes that `stay` would have on each device."""
        found: Counter[Device] = Counter()
        for one in self.view.weights():
            there = self._stays.get(one.name)
            if there is not None and there.residency is Residency.DEVICE and there.device is not None:
                found[there.device] += one.nbytes if one.tensor.device != there.device.torch else 0
        return found

    def put_back(self) -> None:
        """Compiles anew where the module's own functions stand in the place of compiled calls."""
        if any(call.is_displaced for call in list(self.calls)):
            self.refresh()

    def offer(self, decided: Decisions, read: Sequence[StoredWeight] = ()) -> Rig:
        """Its devices, main first, with what is free for it on each beside its own weights that are not ``read``."""
        return self._offer(decided, read) if self._offer else decided.plan.rig

    def run(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answers a call with the program for its shapes and constants, which is compiled if there is none yet.

        Whatever goes wrong, an interrupt included, leaves no weight on a device that rests elsewhere.
        """
        if (ahead := encoding()) is not None:
            return ahead.answer(self, call, args, kwargs)
        if self.parts.frame and (self.parts.frame.plain or self.parts.is_at_hand(call)):
            return call.original(*args, **kwargs)
        if call.method != "forward" and getattr(self.module, "use_tiling", False):
            return call.original(*args, **kwargs)
        if modes.has_foreign_modes():
            with modes.taken_off():
                return self.run(call, args, kwargs)
        if (reads := reading()) is not None:
            with reads.paused():
                return self.run(call, args, kwargs)
        if has_unfinished(args, kwargs):
            args, kwargs = finished((args, kwargs))
        with self.turn, self.turn:
            try:
                with self.view.using():
                    return answer(self, call, args, kwargs)
            except BaseException:
                self.view.release()
                raise

    def refresh_weights(self) -> None:
        """Lets every program fetch its weights again, after they were converted."""
        self.view.forget_copies()
        self.unload()

    def _swap(self, path: str, method: str, module: nn.Module) -> None:
        call = Call(path, method, module)
        # Models keep parts alive in caches of their own: a part must not keep all weights alive.
        call.swap_in(weakref.ref(self) if module is not self.module else lambda: self)
        self.calls.append(call)
        self._swapped.add(module)
        owner = weakref.ref(self)

        def data_of(tensor: torch.Tensor) -> torch.Tensor:
            component = owner()
            return tensor if component is None else component.view.data_of(tensor)

        copy_bare(module, data_of)

    def ready_to_load(self, programs: Container[int]) -> Iterator[CompiledModule]:
        """What was compiled of some programs, which are given by their ids, with the adapters of calls that come."""
        for call in list(self.calls):
            for made in list(call.programs.values()):
                if not isinstance(made, CompiledModule) or not any(id(one) in programs for one in made.lowered):
                    continue
                branches = self.adapters.read(call.module)
                if branches.held:
                    made.exchange(branches.held)
                yield from (one for one in made.each if id(one.program) in programs)

    def unload(self) -> None:
        """Lets every program fetch its weights again."""
        for call in list(self.calls):
            unload(call.programs.values())

    def _forget(self) -> None:
        self.unload()
        for call in self.calls:
            call.end()
        self.calls.clear()
        self._swapped.clear()
        self.compiler.alike.forget()
        self.watch.clear()
        take_methods_out(self.module)
        for module in self._generating:
            take_methods_out(module)
        self._generating.clear()

    def title(self, call: Call) -> str:
        """The name of a call in messages."""
        kind = type(self.module).__name__
        return f"{self.name} ({kind}).{call}" if self.name else f"{kind}.{call}"

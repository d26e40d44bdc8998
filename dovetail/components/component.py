"""One component of a pipeline: its calls are compiled, the object stays as it is.

The ``forward`` of the component and of each of its parts gives way to a function that compiles on the first call of
each kind and then runs the program. Pipelines call parts too (a text encoder's last norm, a VAE's decoder tile by tile
while tiling is on), so each part is ready to be compiled by itself; inside a program none of them is called any more.
A VAE's ``_encode`` and ``_decode`` are calls of their own: what ``encode`` and ``decode`` do around them stays Python.
What cannot be traced runs by its parts (``by_parts.py``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..compiler.errors import CallError, TraceError, UsageError
from ..compiler.frontend.autocast import autocast_state
from ..compiler.frontend.trace import trace
from ..compiler.frontend.trace_lock import alone
from ..compiler.ir.program import Program
from ..compiler.spec.devices import Device, Rig
from ..conventions import libraries
from ..conventions.libraries import VAE_METHODS
from ..conventions.replacements import copy_bare, put_method, take_methods_out
from ..lora.adapters import Adapters, Branches
from ..lora.loading import guard_module
from ..runtime.store.store import Origins, Store
from ..runtime.store.stored_weight import StoredWeight
from .by_parts import Parts
from .call_key import call_key
from .calls import (
    BY_PARTS,
    Answering,
    Call,
    answer_late,
    has_ended,
    refuse_gradients,
    refuse_what_is_no_function,
    without_caches,
)
from .compiled import CompiledModule
from .homes import Homes
from .lengths import Form
from .merging import Merges
from .module_view import ModuleView
from .sharing import Sharing
from .skeleton import skeleton
from .stamp import Stamp, State
from .weight_stamp import WeightStamp

logger = logging.getLogger(__name__)

_METHODS = VAE_METHODS
_SAVE = "save_pretrained"
_GENERATE = "generate"
_MOVES = ("to", "enable_group_offload")
_MANY = 16
"""So many programs of one call are worth a warning: something that should be a tensor changes at each call."""

Finish: TypeAlias = "Callable[[Component, Program, nn.Module], CompiledModule]"
"""Takes a traced program of a part of a component through the passes."""


class Component:
    """A module of a pipeline, its devices, its weights, and the programs of its calls.

    Args:
        name: the attribute of the pipeline.
        role: what it is for.
        module: the module, which is changed in place.
        rig: its devices, main first, with what it may use of each.
        finish: runs the passes on a traced program.
        whole_on: where runs what cannot be compiled whole; the main device unless nothing shall run there.
        offer: says what is left for it of each of its devices; all of what its rig says, if left out.
        shares: weighs the devices in place of what is free, for what is placed before it is traced.
        rows: whether its programs are to be split by rows.
        why: what tracing said of the call that comes first, if it is known not to be traceable.
        origins: where weights come from that have no data yet.
        store: holds the weights of all components of the pipeline.
        sharing: what a call of any component of the pipeline shares, and a change to one takes alone.
        rests: where parameters rest while nobody reads them: "cpu", "disk", or "" for where they are read.
        enter: is told when the component is called.
        dynamic_shapes: as torch.export takes them, for its forward.
    """

    def __init__(
        self,
        name: str,
        role: str,
        module: nn.Module,
        rig: Rig,
        *,
        finish: Finish,
        whole_on: Device | None = None,
        offer: Callable[[Component, Sequence[StoredWeight]], Rig] | None = None,
        shares: tuple[float, ...] = (),
        rows: bool = False,
        why: TraceError | None = None,
        origins: Origins | None = None,
        store: Store | None = None,
        sharing: Sharing | None = None,
        rests: str = "",
        enter: Callable[[Component], None] | None = None,
        dynamic_shapes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self._module = weakref.ref(module)
        self.rig = rig
        self.devices = rig.devices
        self.merges = Merges(self)
        self.view = ModuleView(module, origins, store=store, rests=rests)
        self.homes = Homes(self.view)
        self.sharing = sharing or Sharing()
        self.adapters = Adapters(module, self.merges.take_over)
        self.calls: list[Call] = []
        self._generating: list[nn.Module] = []
        self.shares = shares
        self.rows = rows and len(rig.devices) > 1
        self.parts = Parts(self)
        self._why = why
        self._finish = finish
        self._offer = offer
        self._enter = enter
        self.whole_on = whole_on or rig.devices[0]
        self._dynamic_shapes = dynamic_shapes
        self._stamps: dict[Call, tuple[Stamp, WeightStamp]] = {}
        self.view.moved = functools.partial(_renew_stamps, weakref.ref(self))  # no cycle keeps weights alive
        self._live: dict[Call, Mapping[nn.Module, str]] = {}
        self._told = False
        self.takes_adapters = False
        """Whether an adapter is being loaded: stand-ins are in the places of all other weights."""

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Held while the component runs by its parts or is changed."""
        return self.parts.turn

    def alone(self) -> AbstractContextManager[None]:
        """Held while no component of the pipeline runs; taken after ``turn``."""
        return self.sharing.alone()

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
            if hasattr(self.module, method):
                self._swap("", method, self.module)
        put_method(self.module, _SAVE, self._save)
        put_method(self.module, "load_state_dict", self._load_state)
        for name in _MOVES:
            put_method(self.module, name, functools.partial(self._move, name))

        for module in self.module.modules():
            if callable(getattr(type(module), _GENERATE, None)) and _GENERATE not in vars(module):
                put_method(module, _GENERATE, functools.partial(_generate, weakref.ref(self)))
                self._generating.append(module)

    def settle(self) -> None:
        """Reads what libraries look at before the first call, where it has no data yet.

        That is the first weight, by whose device they tell where a module is, and the small parameters that the module
        holds itself, for pipelines compute with those (a prior's mean and deviation).
        """
        first = next(self.module.parameters(), None)
        if first is not None:
            self.view.show(first, self.whole_on)
        self.view.keep(self.module.parameters(recurse=False), self.whole_on)
        self.homes.rehome(self.whole_on, self.devices[0])

    def restore(self) -> None:
        """Gives the module its own calls and its weights' old places back, and forgets all programs.

        Waits until no other thread runs one. Raises DoesNotFitError when a weight finds no room where it was: the
        component is still compiled then, and this can be repeated.
        """
        with self.turn, self.alone():
            self._unload()
            self.parts.forget()
            self.merges.settle()
            self.view.undo()
            self.homes.forget()
            for wrapper in self.adapters.wrappers(self.module):
                self.merges.hand_back(wrapper)
            self._forget()

    def refresh(self) -> None:
        """Forgets all programs; the next calls compile again. For a component that was changed by hand."""
        with self.turn, self.alone():
            self._forget()
            self.parts.forget()
            self.view.forget_copies()
            self.swap()

    def put_back(self) -> None:
        """Compiles anew where the module's own functions stand in the place of compiled calls."""
        if any(call.is_displaced for call in list(self.calls)):
            self.refresh()

    def offer(self, read: Sequence[StoredWeight] = ()) -> Rig:
        """Its devices, main first, with what is free for it on each beside its own weights that are not ``read``."""
        return self._offer(self, read) if self._offer else self.rig

    def run(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answers a call with the program for its shapes and constants, which is compiled if there is none yet.

        Whatever goes wrong, an interrupt included, leaves no weight on a device that rests elsewhere.
        """
        if self.parts.frame and self.parts.frame.plain:
            return call.original(*args, **kwargs)
        if call.method != "forward" and getattr(self.module, "use_tiling", False):
            return call.original(*args, **kwargs)
        try:
            with self.view.using(), self.parts.waits:
                return self._answer(call, args, kwargs)
        except BaseException:
            self.view.release()
            raise

    def _answer(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if call.is_over:
            return answer_late(call, args, kwargs)
        refuse_gradients(self.title(call), call.module, args, kwargs)
        state = self._look(call)
        if self._enter:
            self._enter(self)
        factor, others = self.adapters.without_factor(kwargs)
        branches = self.adapters.read(call.module, factor)
        self._renew_merged()
        if self.parts.takes(call, args, kwargs):
            return self.parts.run(call, *args, **kwargs)
        around = autocast_state(self.devices[0].traced_as), libraries.attention_backend()
        key = state.number, *around, branches.key, call_key(args, others)
        program = call.programs.get(key) or call.whole
        if program is None and self.parts.is_unsteady(call):
            program = BY_PARTS
        program = program or self._make(call, key, args, others, branches)
        with contextlib.suppress(KeyError):  # another thread may have forgotten it
            call.programs.move_to_end(key)
        if not isinstance(program, CompiledModule):
            return self.parts.run(call, *args, **kwargs)
        with self.sharing.shared():
            if not has_ended(call):  # another thread may have undone it meanwhile
                return self._run_with(branches, program, args, others)
        return answer_late(call, args, kwargs)

    def _run_with(
        self, branches: Branches, program: CompiledModule, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a program returns with the weights of these branches, which no other thread exchanges meanwhile."""
        if not branches.held:
            return self.parts.answer(program, args, kwargs)
        with program.turn:  # taken last, after the pipeline's sharing
            program.exchange(branches.held)
            return self.parts.answer(program, args, kwargs)

    def _look(self, call: Call) -> State:
        """The state of a part, after what others changed in it was taken in."""
        stamp, weights = self._stamps.get(call) or self._stamp_of(call)
        with self.sharing.shared():  # nobody puts stand-ins in place of weights meanwhile
            state, is_changed = stamp.look(), weights.is_changed(call.module, stamp.modules)
        if is_changed:
            with self.alone():
                self.view.survey()
                self.parts.forget()
                self.refresh_weights()
                for one, _ in list(self._stamps.values()):
                    one.forget()  # what was one weight may be two now
                state = stamp.look()
        if weights.has_turned():
            with self.alone():
                call.unload()
        if state.live is not self._live.get(call):
            self._leave(call, stamp, state)
        return state

    def _stamp_of(self, call: Call) -> tuple[Stamp, WeightStamp]:
        adapters, root = self.adapters, self._module

        def bases() -> dict[nn.Module, nn.Module]:
            module = root()
            return adapters.bases(module) if module is not None else {}

        return self._stamps.setdefault(call, (Stamp(call.module, bases), WeightStamp(self.view.store)))

    def _leave(self, call: Call, stamp: Stamp, state: State) -> None:
        """Has the parts with hooks, caches and functions of somebody else run as they are; says so once."""
        self._live[call] = state.live
        looked_at = {*stamp.modules, *({self.module} & {call.module})}  # the hooks of a part are its parent's to see
        left = (self.parts.left - looked_at) | state.live.keys()
        if left == self.parts.left:
            return
        self.parts.leave(left)
        names = {module: path for path, module in self.module.named_modules()}
        told = sorted(f"{names.get(one) or self.name} ({why})" for one, why in state.live.items())
        if told and not self._told:
            self._told = True
            logger.warning(
                "these parts of %s run as they are, because dovetail cannot trace them: %s%s; the rest of it is "
                "compiled by its parts, so that values cross between devices more often",
                self.title(call), ", ".join(told[:3]), f", … ({len(told)} in all)" if len(told) > 3 else "",
            )  # fmt: skip

    def _make(
        self, call: Call, key: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Answering:
        """The program of a key that is not there yet; another thread may have made it meanwhile."""
        with alone():
            program = call.programs.get(key) or call.whole
            if program is None:
                self._check_number(call)
                state = key[:-1]
                program = self._reuse(call, state, args, kwargs) or self._compile(call, state, args, kwargs, branches)
                with self.alone() if len(call.programs) >= _MANY else contextlib.nullcontext():
                    if not call.is_over:
                        call.keep(key, program, _MANY)
            return program

    def _renew_merged(self) -> None:
        if self.merges.are_pending:
            with self.alone():
                self.merges.settle()

    def refresh_weights(self) -> None:
        """Lets every program fetch its weights again, after they were converted."""
        self.view.forget_copies()
        self._unload()

    def _swap(self, path: str, method: str, module: nn.Module) -> None:
        call = Call(path, method, module)
        # Models keep parts alive in caches of their own: a part must not keep all weights alive.
        call.swap_in(weakref.ref(self) if module is not self.module else lambda: self)
        self.calls.append(call)
        owner = weakref.ref(self)

        def data_of(tensor: torch.Tensor) -> torch.Tensor:
            component = owner()
            return tensor if component is None else component.view.data_of(tensor)

        copy_bare(module, data_of)

    def _unload(self) -> None:
        for call in list(self.calls):
            call.unload()

    def _forget(self) -> None:
        self._unload()
        for call in self.calls:
            call.end()
        self.calls.clear()
        self._stamps.clear()
        self._live.clear()
        take_methods_out(self.module)
        for module in self._generating:
            take_methods_out(module)
        self._generating.clear()

    def _save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Saves the module, with the weights that were not needed so far, as if it lay in one place."""
        with self.turn, self.alone():
            self._renew_merged()
            with self.view.on_file_terms():
                return original(*args, **kwargs)

    def _load_state(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Loads other weights, which go to their devices at the next call; peft fills adapters by this too."""
        if self.takes_adapters:
            return original(*args, **kwargs)
        with self.turn, self.alone():
            self.view.take_over()
            self._unload()
            return original(*args, **kwargs)

    def _move(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Refuses to move a placed component; converts it, and lets it be moved to where it says that it is."""
        if name == "enable_group_offload":
            raise UsageError(self._immobile(name))
        parsed: tuple[Any, ...] = torch._C._nn._parse_to(*args, **kwargs)
        there, dtype, _, layout = parsed
        claimed = {_device_of(self.module), getattr(vars(self.module).get(libraries.HOOK), "execution_device", None)}
        if there is not None and there not in claimed:
            raise UsageError(self._immobile(name))
        dtypes = {tensor.dtype for tensor in self.module.parameters() if tensor.is_floating_point()}
        if layout is None and (dtype is None or dtypes == {dtype}):
            return self.module  # without touching weights that are not read yet
        with self.turn, self.alone(), self.view.bared():
            return original(dtype=dtype, **({} if layout is None else {"memory_format": layout}))

    def _immobile(self, name: str) -> str:
        return (
            f"{self.name}.{name}() cannot move this component: dovetail placed its weights on "
            f"{' & '.join(map(str, self.devices))}: name other devices in backend, or call undo() first"
        )

    @contextlib.contextmanager
    def _traceable(self, call: Call) -> Iterator[nn.Module]:
        """A copy of a part, without compiled calls and plain adapters, whose forward is a call of it."""
        with skeleton(call.module, self.view.store.behind, self.adapters.bases(self.module)) as copied:
            if call.method != "forward" or not call.is_patched:  # others may have wrapped it since
                vars(copied)["forward"] = MethodType(getattr(type(copied), call.method), copied)
            without_caches(copied)
            yield copied

    def _check_number(self, call: Call) -> None:
        call.traces += 1
        if call.traces == _MANY:
            logger.warning(
                "%s was compiled %d times: its shapes, or arguments that are no tensors, change from call to call, "
                "which costs the time of compiling each time: keep sizes alike, or give dynamic_shapes",
                self.title(call), _MANY,
            )  # fmt: skip

    def _reuse(
        self, call: Call, state: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> CompiledModule | None:
        """A program with dynamic shapes, of a module in the same state, that takes this call too."""
        for key, program in list(call.programs.items()):
            if not isinstance(program, CompiledModule) or not program.program.symbols or key[:-1] != state:
                continue
            if _accepts(program, args, kwargs):
                call.traces -= 1
                return program
        return None

    def _compile(
        self, call: Call, state: Any, args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Answering:
        known, self._why = self._why, None
        if known:
            return self.parts.refuse(call, known)
        try:
            refuse_what_is_no_function(call, self.module, args, kwargs)
            with self._traceable(call) as copied:
                program = self._trace(call, state, copied, args, kwargs)
        except TraceError as error:
            return self.parts.refuse(call, error)
        program.adapters = branches.form
        compiled = self._finish(self, program, call.module)
        logger.info("compiled %s: %s", self.title(call), repr(compiled))  # a kept record must not keep the weights
        return compiled

    def _trace(
        self, call: Call, state: Any, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Program:
        """Traces a call, with the shapes that were given as dynamic, or those in which it differs from earlier ones."""
        kind = self.devices[0].traced_as
        if call.module is not self.module or call.method != "forward" or self._dynamic_shapes is not None:
            shapes = self._shapes(kwargs) if call.module is self.module and call.method == "forward" else None
            return trace(module, args, kwargs, dynamic_shapes=shapes, kind=kind)
        form = Form.of(module.forward, args, kwargs)
        varying = call.lengths.varying(state, form)
        if varying:
            try:
                program = trace(module, args, kwargs, dynamic_shapes=form.shapes(varying), kind=kind)
                if call.lengths.is_of_use(varying, program):
                    return program
            except TraceError as error:
                call.lengths.fix(varying, str(error))
        return trace(module, args, kwargs, kind=kind)

    def _shapes(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The dynamic shapes; torch.export wants one for each leaf of an argument that is a container."""
        if self._dynamic_shapes is None:
            return None
        containers = {name: value for name, value in kwargs.items() if isinstance(value, (dict, list, tuple))}
        return {**pytree.tree_map(lambda _: None, containers), **self._dynamic_shapes}

    def title(self, call: Call) -> str:
        """The name of a call in messages."""
        kind = type(self.module).__name__
        return f"{self.name} ({kind}).{call}" if self.name else f"{kind}.{call}"


def _accepts(program: CompiledModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        program.program.signature.flatten(args, kwargs)
    except CallError:
        return False
    return True


def _generate(owner: Callable[[], Component | None], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes one token after another, each from a longer text or a fuller cache: nothing is compiled for them."""
    component = owner()
    with component.parts.keeping() if component is not None else contextlib.nullcontext():
        return original(*args, **kwargs)


def _device_of(module: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)


def _renew_stamps(owner: Callable[[], Component | None]) -> None:
    component = owner()
    for _, weights in list(component._stamps.values()) if component else ():
        weights.renew()

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
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .adapters import Adapters, Branches
from .by_parts import Parts
from .call_key import call_key, plain_state, processor_state
from .calls import CALL, Call, refuse_what_is_no_function, without_caches
from .compiled import CompiledModule
from .compiler.autocast import autocast_state
from .compiler.devices import Device
from .compiler.errors import CallError, TraceError
from .compiler.program import Program
from .compiler.trace import trace
from .holdings import Files, Held, Holdings
from .lengths import Form
from .libraries import VAE_METHODS
from .lora_loading import guard_module, release_module
from .merging import Merges
from .residence import Residence

logger = logging.getLogger(__name__)

_METHODS = VAE_METHODS
_SAVE = "save_pretrained"
_GENERATE = "generate"
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
        devices: main device first.
        finish: runs the passes on a traced program.
        whole_on: where runs what cannot be compiled whole; the main device unless nothing shall run there.
        offer: says what is free for it on each of its devices; what the devices themselves say, if left out.
        shares: weighs the devices in place of what is free, for what is placed before it is traced.
        rows: whether its programs are to be split by rows.
        why: what tracing said of the call that comes first, if it is known not to be traceable.
        files: where weights lie that have no data yet.
        holdings: the weights of all components of the pipeline.
        rests: where parameters rest while nobody reads them: "cpu", "disk", or "" for where they are read.
        enter: is told when the component is called.
        dynamic_shapes: as torch.export takes them, for its forward.
    """

    def __init__(
        self,
        name: str,
        role: str,
        module: nn.Module,
        devices: tuple[Device, ...],
        *,
        finish: Finish,
        whole_on: Device | None = None,
        offer: Callable[[Component, Sequence[Held]], tuple[Device, ...]] | None = None,
        shares: tuple[float, ...] = (),
        rows: bool = False,
        why: TraceError | None = None,
        files: Files | None = None,
        holdings: Holdings | None = None,
        rests: str = "",
        enter: Callable[[Component], None] | None = None,
        dynamic_shapes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.module = module
        self.devices = devices
        self.merges = Merges(self)
        self.residence = Residence(module, files, holdings=holdings, rests=rests, updated=self.merges.updated)
        self.adapters = Adapters(module, self.merges.take_over)
        self.calls: list[Call] = []
        self._attending: list[nn.Module] = []
        self._generating: list[nn.Module] = []
        self.shares = shares
        self.rows = rows and len(devices) > 1
        self.parts = Parts(self)
        self._why = why
        self._finish = finish
        self._offer = offer
        self._enter = enter
        self.whole_on = whole_on or devices[0]
        self._dynamic_shapes = dynamic_shapes
        self._dtype = self._first_dtype()

    @property
    def programs(self) -> list[CompiledModule]:
        """Everything that was compiled for this component so far."""
        held = (program for call in self.calls for program in call.programs.values())
        return list(dict.fromkeys(program for program in held if isinstance(program, CompiledModule)))

    def swap(self) -> None:
        """Puts the compiled calls in place of the module's own."""
        for path, module in self.module.named_modules():
            self._swap(path, "forward", module)
        self.adapters.wrappers(self.module)
        guard_module(self)
        self._attending = [module for module in self.module.modules() if hasattr(module, "processor")]
        for method in _METHODS:
            if hasattr(self.module, method):
                self._swap("", method, self.module)
        if hasattr(self.module, _SAVE):
            self.module.__dict__[_SAVE] = functools.wraps(getattr(self.module, _SAVE))(functools.partial(self._save))

        for module in self.module.modules():
            if callable(getattr(type(module), _GENERATE, None)) and _GENERATE not in vars(module):
                generate = getattr(module, _GENERATE)
                module.__dict__[_GENERATE] = functools.wraps(generate)(functools.partial(self._generate, generate))
                self._generating.append(module)

    def settle(self) -> None:
        """Reads what libraries look at before the first call, where it has no data yet.

        That is the first weight, by whose device they tell where a module is, and the small parameters that the module
        holds itself, for pipelines compute with those (a prior's mean and deviation).
        """
        first = next(self.module.parameters(), None)
        if first is not None:
            self.residence.show(first, self.whole_on)
        self.residence.keep(self.module.parameters(recurse=False), self.whole_on)

    def restore(self) -> None:
        """Gives the module its own calls and its weights' old places back, and forgets all programs."""
        self._forget()
        self.parts.forget()
        self.merges.settle()
        self.residence.undo()
        for wrapper in self.adapters.wrappers(self.module):
            self.merges.hand_back(wrapper)

    def refresh(self) -> None:
        """Forgets all programs; the next calls compile again. For a component that was changed by hand."""
        self._forget()
        self.parts.forget()
        self.residence.forget_copies()
        self.swap()

    def offer(self, read: Sequence[Held] = ()) -> tuple[Device, ...]:
        """Its devices, main first, with what is free for it on each beside its own weights that are not ``read``."""
        return self._offer(self, read) if self._offer else self.devices

    def run(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answers a call with the program for its shapes and constants, which is compiled if there is none yet."""
        if self.parts.frame and self.parts.frame.plain:
            return call.original(*args, **kwargs)
        if call.method != "forward" and getattr(self.module, "use_tiling", False):
            return call.original(*args, **kwargs)
        if self._first_dtype() is not self._dtype:
            self._dtype = self._first_dtype()
            self.refresh_weights()
        if self._enter:
            self._enter(self)
        factor, others = self.adapters.without_factor(kwargs)
        branches = self.adapters.read(call.module, factor)
        self.merges.settle()
        if self.parts.takes(call, args, kwargs):
            return self.parts.run(call, *args, **kwargs)
        state = (
            autocast_state(self.devices[0].traced_as),
            plain_state(self.module),
            processor_state(self._attending),
            branches.key,
        )
        key = *state, call_key(args, others)
        program = call.programs.get(key) or call.whole
        if program is None and self.parts.is_unsteady(call):
            return self.parts.run(call, *args, **kwargs)
        if program is None:
            self._check_number(call)
            program = self._reuse(call, state, args, others) or self._compile(call, state, args, others, branches)
            call.keep(key, program, _MANY)
        elif key in call.programs:
            call.programs.move_to_end(key)
        if not isinstance(program, CompiledModule):
            return program(*args, **kwargs)
        if branches.held:
            program.exchange(branches.held)
        try:
            return self.parts.answer(program, args, others)
        except Exception:
            self.residence.release()
            raise

    def refresh_weights(self) -> None:
        """Lets every program fetch its weights again, after they were converted."""
        self.residence.forget_copies()
        for program in self.programs:
            program.unload()

    def _swap(self, path: str, method: str, module: nn.Module) -> None:
        call = Call.of(path, method, module)
        # Models keep parts alive in caches of their own: a part must not keep all weights alive.
        owner = weakref.ref(self) if module is not self.module else lambda: self
        call.answer = functools.wraps(call.original)(functools.partial(_undisturbed(), owner, call))
        call.answer.__dict__[CALL] = call
        call.swap_in()
        self.calls.append(call)

    def _forget(self) -> None:
        for call in self.calls:
            call.swap_out()
        self.calls.clear()
        release_module(self.module)
        self.module.__dict__.pop(_SAVE, None)
        for module in self._generating:
            module.__dict__.pop(_GENERATE, None)
        self._generating.clear()

    def _generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes one token after another, each from a longer text or a fuller cache: nothing is compiled for them."""
        with self.parts.keeping():
            return original(*args, **kwargs)

    def _save(self, *args: Any, **kwargs: Any) -> Any:
        """Saves the module, with the weights that were not needed so far, as if it lay in one place."""
        self.merges.settle()
        with self._as_it_was(), self.residence.on_file_terms():
            return getattr(type(self.module), _SAVE)(self.module, *args, **kwargs)

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Gives the whole module its own calls for a while."""
        try:
            for call in self.calls:
                call.swap_out()
            yield
        finally:
            for call in self.calls:
                call.swap_in()

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
    ) -> Callable[..., Any]:
        known, self._why = self._why, None
        if known:
            return self.parts.refuse(call, known)
        try:
            refuse_what_is_no_function(call, self.module, args, kwargs)
            bare, shown = self.adapters.bare(self.module), self.residence.holdings.nothing_shown()
            with self._as_it_was(), without_caches(self.module), bare, shown:
                module = call.traceable()
                program = self._trace(call, state, module, args, kwargs)
        except TraceError as error:
            return self.parts.refuse(call, error)
        program.adapters = branches.form
        compiled = self._finish(self, program, module)
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

    def _first_dtype(self) -> torch.dtype | None:
        return next((parameter.dtype for parameter in self.module.parameters()), None)

    def title(self, call: Call) -> str:
        """The name of a call in messages."""
        kind = type(self.module).__name__
        return f"{self.name} ({kind}).{call}" if self.name else f"{kind}.{call}"


@functools.cache
def _undisturbed() -> Callable[..., Any]:
    """What answers calls, in a form that torch.compile does not look into, if a component is compiled by that too."""
    answer: Callable[..., Any] = torch.compiler.disable(_answer)
    return answer


def _answer(owner: Callable[[], Component | None], call: Call, *args: Any, **kwargs: Any) -> Any:
    component = owner()
    return component.run(call, args, kwargs) if component else call.original(*args, **kwargs)


def _accepts(program: CompiledModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        program.program.signature.flatten(args, kwargs)
    except CallError:
        return False
    return True

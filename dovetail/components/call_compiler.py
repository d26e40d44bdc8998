"""Compiles a call of a component, or of a part of it, at its first call of each kind."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import nn
from torch.utils import _pytree as pytree

from ..cache.traces import trace
from ..compiler.errors import TraceError
from ..compiler.frontend.trace_lock import alone
from ..compiler.ir.asked import MODES, UNUSUAL, one_tensor
from ..compiler.ir.program import Program
from ..conventions import libraries
from ..lora.adapters import Branches
from .alike import TracedAlike
from .arguments.call_key import call_key
from .arguments.lengths import Form
from .calls import Answering, ByParts, Call, OfComponent, refuse_what_is_no_function, without_caches
from .compiled import CompiledModule
from .dry import dry_run
from .skeleton import skeleton

if TYPE_CHECKING:
    from .component import Component
    from .decisions import Decisions

logger = logging.getLogger(__name__)

_MANY = 16
"""So many programs of one call are worth a warning: something that should be a tensor changes at each call."""


class Finish(Protocol):
    """Takes a traced program of a part of a component through the passes."""

    def __call__(self, decided: Decisions, traced: Program, module: nn.Module) -> CompiledModule:
        """The program, lowered as was decided of the component."""


class CallCompiler(OfComponent):
    """Makes the programs of the calls of a component.

    Args:
        component: the component.
        finish: runs the passes on a traced program.
        why: what tracing said of the call that comes first, if it is known not to be traceable.
        dynamic_shapes: as torch.export takes them, for the component's forward.
    """

    def __init__(
        self,
        component: Component,
        finish: Finish,
        why: TraceError | None = None,
        dynamic_shapes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(component)
        self._finish = finish
        self._why = why
        self._dynamic_shapes = dynamic_shapes
        self._told = False
        self.alike = TracedAlike()

    def make(
        self, call: Call, key: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Answering:
        """The program of a key that is not there yet; another thread may have made it meanwhile."""
        with alone():
            program = call.programs.get(key) or call.whole
            if program is None:
                traced = self._traced(call, key, args, kwargs, branches)
                key = _key_of(call, key, traced, args, kwargs)
                program = self._finished(call, traced) if isinstance(traced, Program) else traced
                self.keep(call, key, program)
            return program

    def trace(
        self, call: Call, key: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Answering | Program:
        """The trace of a key that has no program yet, or what answers the call otherwise."""
        with alone():
            known = call.programs.get(key) or call.whole
            if known is not None:
                return known
            traced = self._traced(call, key, args, kwargs, branches)
            if not isinstance(traced, Program):
                self.keep(call, key, traced)
            return traced

    def finish(self, decided: Decisions, call: Call, key: tuple[Any, ...], traced: Program) -> CompiledModule:
        """The program of a key, made of its trace as a draft decides, which keeps it."""
        with alone():
            program = decided.program_of(call, key)
            if program is None:
                made = [one for (whose, _), one in decided.programs.items() if whose is call]
                earlier = [] if decided.is_anew else list(call.programs.values())
                program = _made_of(traced, (*made, *earlier)) or self._lowered(decided, call, traced)
                decided.programs[call, key] = program
            return program

    def take_back(self, call: Call, key: tuple[Any, ...]) -> None:
        """Makes a trace of a program again, for its weights are assigned anew."""
        with alone():
            program = call.programs.pop(key, None)
            if isinstance(program, CompiledModule) and program.base is not None:
                call.keep_trace(key, program.base, _MANY)

    def keep(self, call: Call, key: tuple[Any, ...], program: Answering, besides: int = 0) -> None:
        """Keeps what answers a kind of call, beside so many others in any case."""
        if not call.is_over:
            call.keep(key, program, max(_MANY, 1 + besides))

    def _traced(
        self, call: Call, key: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Answering | Program:
        """What is known of a call without a program of its own: its trace, or what answers other calls too."""
        if key in call.traced:
            return call.traced[key]
        if dry_run() is None:  # a plan may try many sizes of tiles
            self._check_number(call)
        state = key[:-1]
        traced = self._reuse(call, state, args, kwargs) or self._compile(call, state, args, kwargs, branches)
        if isinstance(traced, Program) and not call.is_over:
            call.keep_trace(_key_of(call, key, traced, args, kwargs), traced, _MANY)
        return traced

    def _finished(self, call: Call, traced: Program) -> CompiledModule:
        """The program of a trace; one with dynamic shapes may have been made for another call already."""
        known = _made_of(traced, call.programs.values())
        return known or self._lowered(self.component.decided, call, traced)

    def _lowered(self, decided: Decisions, call: Call, traced: Program) -> CompiledModule:
        compiled = self._finish(decided, traced, call.module)
        # a record must not keep the weights
        logger.info("compiled %s: %s", self.component.title(call), repr(compiled))
        return compiled

    def lower_again(self, calls: Iterable[Call], draft: Decisions) -> None:
        """Takes the traced programs of calls through the passes again, as a draft decides, which keeps them."""
        again: dict[Answering, CompiledModule] = {}
        for call in calls:
            for key, program in call.programs.items():
                if isinstance(program, CompiledModule) and program.base:
                    if program not in again:
                        again[program] = self._finish(draft, program.base, call.module)
                    draft.programs[call, key] = again[program]

    @contextlib.contextmanager
    def _traceable(self, call: Call, kwargs: Mapping[str, Any]) -> Iterator[nn.Module]:
        """A copy of a part, without compiled calls and plain adapters, whose forward is a call of it."""
        component = self.component
        with skeleton(call.module, component.adapters.bases(call.module)) as copied:
            if call.method != "forward" or not call.is_patched:  # others may have wrapped it since
                vars(copied)["forward"] = MethodType(getattr(type(copied), call.method), copied)
            drops = without_caches(copied) and kwargs.get("use_cache") is None
            yield copied
            if drops:
                self._tell_of_caches(call)

    def _tell_of_caches(self, call: Call) -> None:
        """Says once that a result lacks what eager returns for the next token; pipelines do not read it."""
        if not self._told:
            self._told = True
            logger.log(
                logging.INFO if libraries.is_called_by_diffusers() else logging.WARNING,
                "%s returns no past_key_values, which it would return by itself where use_cache is at its default, "
                "and computes as with use_cache=False: pass that if nobody reads them, or use_cache=True to have them, "
                "with which it runs by its parts",
                self.component.title(call),
            )  # fmt: skip

    def _check_number(self, call: Call) -> None:
        call.traces += 1
        if call.traces == _MANY:
            logger.warning(
                "%s was compiled %d times: its shapes, or arguments that are no tensors, change from call to call, "
                "which costs the time of compiling each time: keep sizes alike, or give dynamic_shapes",
                self.component.title(call), _MANY,
            )  # fmt: skip

    def _reuse(
        self, call: Call, state: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> CompiledModule | Program | None:
        """A program or trace with dynamic shapes, of a module in the same state, that takes this call too."""
        same = one_tensor((*args, *kwargs.values()))
        known: list[tuple[Any, Answering | Program]] = [*call.programs.items(), *call.traced.items()]
        for key, made in known:
            program = made.program if isinstance(made, CompiledModule) else made
            if not isinstance(program, Program) or not program.symbols or key[:-1] != state or key[-1][-1] != same:
                continue
            if program.signature.takes(args, kwargs):
                call.traces -= 1
                return cast("CompiledModule | Program", made)
        return None

    def _compile(
        self, call: Call, state: Any, args: Sequence[Any], kwargs: Mapping[str, Any], branches: Branches
    ) -> Program | ByParts:
        component, known, self._why = self.component, self._why, None
        if known:
            return component.parts.refuse(call, known)
        try:
            refuse_what_is_no_function(call, component.module, args, kwargs)
            with self._traceable(call, kwargs) as copied:
                program = self._trace(call, state, copied, args, kwargs)
        except TraceError as error:
            return component.parts.refuse(call, error)
        program.adapters = branches.form
        return program

    def _trace(
        self, call: Call, state: Any, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Program:
        """Traces a call, with the shapes that were given as dynamic, or those in which it differs from earlier ones."""
        kind, named = self.component.devices[0].traced_as, self.component.kept_traces
        is_part = call.module is not self.component.module
        if not is_part and (call.method != "forward" or self._dynamic_shapes is not None):
            shapes = self._shapes(kwargs) if call.method == "forward" else None
            return trace(module, args, kwargs, dynamic_shapes=shapes, kind=kind, named=named)
        tracing = self.alike.trace if is_part else trace
        form = Form.of(module.forward, args, kwargs)
        varying = call.lengths.varying(state, form)
        is_of_sizes = self.component.plan.is_together or self.component.plan.micro_batches > 1
        if varying and not is_of_sizes:  # as states are
            try:
                program = tracing(module, args, kwargs, dynamic_shapes=form.shapes(varying), kind=kind, named=named)
                if call.lengths.is_of_use(varying, program):
                    return program
            except TraceError as error:
                call.lengths.fix(varying, str(error))
        return tracing(module, args, kwargs, kind=kind, named=named)

    def _shapes(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The dynamic shapes; torch.export wants one for each leaf of an argument that is a container."""
        if self._dynamic_shapes is None:
            return None
        containers = {name: value for name, value in kwargs.items() if isinstance(value, (dict, list, tuple))}
        return {**pytree.tree_map(lambda _: None, containers), **self._dynamic_shapes}


def _made_of(traced: Program, programs: Iterable[Answering]) -> CompiledModule | None:
    """The program that was made of a trace, if there is one."""
    return next((one for one in programs if isinstance(one, CompiledModule) and one.base is traced), None)


def _key_of(
    call: Call, key: tuple[Any, ...], made: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The key of a call from now on: what a trace was found to ask of its inputs is told by the keys that follow."""
    program = made.program if isinstance(made, CompiledModule) else made
    if not isinstance(program, Program):
        return key
    call.asked |= program.signature.asked & (UNUSUAL.keys() | MODES)
    return *key[:-1], call_key(args, kwargs, call.asked)

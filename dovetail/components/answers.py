"""Answers the calls of a component: finds the program of a call, or has it made, and runs it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.parametrize import ParametrizationList

from ..compiler.ir.program import Program
from ..lora.adapters import Branches
from .alternating import Alternating
from .arguments.ambient import ambient
from .arguments.call_key import call_key
from .calls import BY_PARTS, ByParts, Call, answer_late, refuse_gradients
from .compiled import CompiledModule
from .dry import DryCall, DryRun, dry_run
from .encoded import Asked, known_answer

if TYPE_CHECKING:
    from .component import Component


def answer(component: Component, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call of a component gives: by its program, by its parts, or, in a dry run, zeros.

    A program is compiled for the shapes and constants of the call if there is none yet.
    """
    if call.is_over:
        return answer_late(call, args, kwargs)
    is_weight = _is_read_as_weight(component, call)
    if not is_weight:
        refuse_gradients(component.title(call), call.module, args, kwargs)
    state = component.watch.look(call)
    dry = dry_run()
    if component.enter and dry is None:
        component.enter(component)
    factor, others = component.adapters.without_factor(kwargs)
    branches = component.adapters.read(call.module, factor)
    if state.replaced or is_weight:  # no trace takes a method that was replaced, of a part neither
        with component.parts.keeping():
            return component.parts.run(call, *args, **kwargs)
    if component.parts.takes(call, args, kwargs):
        return component.parts.run(call, *args, **kwargs)
    key = state.number, *ambient(component.devices[0].traced_as), branches.key, call_key(args, others, call.asked)
    if dry is not None:
        return _dry(component, dry, call, key, args, kwargs, others, branches)
    program = call.programs.get(key) or call.whole
    if program is None and component.parts.is_unsteady(call):
        program = BY_PARTS
    program = program or component.compiler.make(call, key, args, others, branches)
    with contextlib.suppress(KeyError):  # what runs as it is has none
        call.programs.move_to_end(key)
    if not isinstance(program, CompiledModule):
        return component.parts.run(call, *args, **kwargs)
    if (known := known_answer(component, Asked(call, key, program, args, others))) is not None:
        return known.given_back()
    return _recovered(component, call, key, branches, program, args, others)


def _is_read_as_weight(component: Component, call: Call) -> bool:
    """Whether somebody reads a weight with gradients, beside any call, which its parametrizations compute."""
    return isinstance(call.module, ParametrizationList) and torch.is_grad_enabled() and component.parts.frame is None


def _dry(
    component: Component,
    dry: DryRun,
    call: Call,
    key: tuple[Any, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    others: Mapping[str, Any],
    branches: Branches,
) -> Any:
    """Answers a call with zeros, from its trace; what cannot be traced whole goes by its parts."""
    answering: CompiledModule | Program | ByParts | None = call.programs.get(key) or call.whole
    if answering is None and component.parts.is_unsteady(call, len(call.traced)):
        answering = BY_PARTS
    if answering is None:
        with dry.beside():
            answering = component.compiler.trace(call, key, args, others, branches)
    if isinstance(answering, CompiledModule):
        answering = answering.base or answering.program
    if not isinstance(answering, Program):
        return component.parts.run(call, *args, **kwargs)
    with contextlib.suppress(KeyError):  # another thread may have forgotten it
        call.programs.move_to_end(key)
    return dry.answer(DryCall(component, call, key, answering), args, others)


def _recovered(
    component: Component,
    call: Call,
    key: tuple[Any, ...],
    branches: Branches,
    program: CompiledModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """What a program returns; where memory runs out, once more with less of it."""
    streamed, launches = component.streams, component.launches
    try:
        if isinstance(program, Alternating) and launches.may_launch and component.parts.frame is None:
            return _launched(component, call, branches, program, args, kwargs)
        launches.settle()
        return _run_with(component, branches, program, args, kwargs)
    except Exception as error:
        if component.recovery is None or not component.recovery.once_more(component, error):
            raise
    again = call.programs.get(key)
    try:
        return _run_with(component, branches, again if isinstance(again, CompiledModule) else program, args, kwargs)
    except Exception:
        if component.streams and not streamed:  # which did not do
            component.stay()
        raise


def _launched(
    component: Component,
    call: Call,
    branches: Branches,
    program: Alternating,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """What a program returns that goes on meanwhile; where memory runs out, it is made once more when it is read."""
    if branches.held:
        program.exchange(branches.held)
    owner = weakref.ref(component)

    def recover(error: BaseException) -> bool:
        there = owner()
        return there is not None and there.recovery is not None and there.recovery.once_more(there, error)

    return component.launches.call(program, component.title(call), args, kwargs, recover)


def _run_with(
    component: Component, branches: Branches, program: CompiledModule, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What a program returns with the weights of these branches."""
    if branches.held:
        program.exchange(branches.held)
    return component.parts.answer(program, args, kwargs)

"""Finds out how a pipeline calls its components, without computing anything.

The pipeline really runs: its tokenizers, its scheduler and its own code. But each component answers a call with zeros
of the shapes and dtypes that its trace says it yields. So the calls are known after seconds, whatever the size of the
model, and each of them is traced already.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from .compiled import CompiledModule
from .compiler.errors import CallError, TraceError
from .compiler.program import Program, tensors_of
from .compiler.spec import role_of_component
from .compiler.trace import trace
from .passes.base import PassManager
from .passes.pipeline import default_passes, parse_passes
from .request import Request
from .runtime.weights import HeldWeights

logger = logging.getLogger(__name__)

ENTRIES = ("forward", "decode", "encode")
"""The methods through which pipelines call their components."""


@dataclass(frozen=True)
class Traced:
    """One way in which a pipeline calls a component: its program, fresh from the trace."""

    attribute: str
    entry: str
    program: Program
    module: nn.Module


@dataclass
class _Recorder:
    """Answers the calls of components, and keeps what they were."""

    found: dict[str, Traced] = field(default_factory=dict)

    def answer(self, attribute: str, entry: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        known = [one for one in self.found.values() if one.module is module and one.entry == entry]
        traced = next((one for one in known if _takes(one.program, args, kwargs)), None)
        if traced is None:
            traced = Traced(attribute, entry, _trace_entry(module, entry, args, kwargs), module)
            name = attribute if entry == "forward" else f"{attribute}.{entry}"
            self.found[f"{name}.{len(known) + 1}" if known else name] = traced
        return zeros_of(traced.program)


def dry_run(pipe: Any, *args: Any, **kwargs: Any) -> dict[str, Traced]:
    """Every different call that a call of a pipeline makes of its components, by name, in order.

    A name is the component's attribute (`transformer`), with its method where that is not forward (`vae.decode`), and
    a number from the second shape on (`text_encoder.2`).

    Raises:
        TraceError: a component cannot be traced; the message names it.
    """
    recorder = _Recorder()
    components = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    with contextlib.ExitStack() as stack:
        for attribute, module in components.items():
            stack.enter_context(_stood_in(recorder, attribute, module))
        stack.enter_context(torch.no_grad())
        pipe(*args, **kwargs)
    return recorder.found


@contextlib.contextmanager
def _stood_in(recorder: _Recorder, attribute: str, module: nn.Module) -> Iterator[None]:
    """Puts the recorder in place of a component's methods; the component itself stays where it is."""
    entries = [entry for entry in ENTRIES if callable(getattr(module, entry, None))]
    try:
        for entry in entries:
            stand_in: Any = partial(recorder.answer, attribute, entry, module)
            stand_in.__signature__ = inspect.signature(getattr(module, entry))  # pipelines ask what a component takes
            module.__dict__[entry] = stand_in
        yield
    finally:
        for entry in entries:
            module.__dict__.pop(entry, None)


def _trace_entry(module: nn.Module, entry: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """Traces one method of a module as if it were its forward."""
    put_away = {name: module.__dict__.pop(name) for name in ENTRIES if name in module.__dict__}
    try:
        if entry != "forward":
            module.__dict__["forward"] = getattr(module, entry)
        logger.info("tracing %s.%s", type(module).__name__, entry)
        return trace(module, args, kwargs)
    finally:
        module.__dict__.pop("forward", None)
        module.__dict__.update(put_away)


def _takes(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        program.signature.flatten(args, kwargs)
    except CallError:
        return False
    return True


def zeros_of(program: Program) -> Any:
    """What a program returns, in the module's own structure, with nothing but zeros in it."""
    (leaves,) = program.output.args
    if not isinstance(leaves, (tuple, list)):
        raise TraceError(f"{program.name} returns {leaves!r}, which is no list of results")
    return program.signature.unflatten([_zeros(leaf) if isinstance(leaf, Node) else leaf for leaf in leaves])


def _zeros(node: Node) -> torch.Tensor:
    (kind,) = tensors_of(node)
    return torch.zeros(kind.sizes, dtype=kind.dtype)


def compile_calls(
    calls: Mapping[str, Traced], request: Request, passes: str | None = None
) -> dict[str, CompiledModule]:
    """Places and schedules each call that a dry run found, for the devices that its component was given."""
    return {name: _compile_call(call, request, passes) for name, call in calls.items()}


def _compile_call(call: Traced, request: Request, passes: str | None) -> CompiledModule:
    role = role_of_component(call.attribute)
    call.program.devices = request.devices_for(call.attribute, role)
    shares = request.shares_for(call.attribute, role, call.program.devices)
    steps = default_passes(shares) if passes is None else parse_passes(passes)
    PassManager(steps).run(call.program)
    return CompiledModule(call.program, request.rig, HeldWeights.of_module(call.module, call.program))

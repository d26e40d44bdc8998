"""A module that could not be traced, compiled by its parts: it is called as a compiled module is."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .cache.written import written
from .compiler.checkpoints.index import WeightIndex
from .compiler.devices.device import Device
from .compiler.devices.rig import Rig
from .compiler.errors import DovetailError, NotHereError, TraceError
from .compiler.frontend.rollback import contents, contents_of, restore
from .compiler.frontend.side_effects import Kept
from .compiler.ir.program import Program
from .compiler.units import counted, format_bytes
from .components import by_parts
from .components.adopting import adopting
from .components.as_before import WeightsAsBefore
from .components.call_compiler import Finish
from .components.compiled import CompiledModule
from .components.component import Component
from .components.dry import CannotBePlannedError, DryRun, running_dry
from .components.plan import ComponentPlan
from .conventions.device_map import split_by_map
from .planning.isolated import same_random_numbers
from .runtime.store.origin import HOST, FileOrigin
from .runtime.store.origins import origins_of
from .runtime.store.seen import ModuleWeights
from .runtime.store.source import tensors_of_module


class CompiledByParts(CompiledModule):
    """A module compiled by its parts for the devices of a rig; it is called as the module was.

    Its own Python runs between the programs of its parts, on the main device. It has no program of its own, so that it
    can be neither printed as one nor saved; ``programs`` has those of its parts, which are compiled when a call first
    needs them. ``given`` are the weights of the module that was compiled, apart from those ``read`` from files.
    """

    def __init__(
        self, component: Component, rig: Rig, why: TraceError, given: ModuleWeights, read: Container[str] = ()
    ) -> None:
        self.rig = rig
        self._given, self._read = given, read
        self._component = component
        self._module = component.module  # which has its component, and is not kept alive by it
        self._why = why

    @property
    def program(self) -> Program:  # type: ignore[override]
        """There is none: raises TraceError."""
        raise TraceError(
            f"{self._title} has no program of its own, for it is compiled by its parts: take theirs (.programs), which "
            f"can be printed, verified and saved one by one. {self._why}"
        ) from self._why

    @property
    def programs(self) -> list[CompiledModule]:
        """What was compiled of it so far."""
        return self._component.programs

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Runs the module's own forward, whose parts answer with their programs.

        Raises what the module raises, ExecutionError, and DoesNotFitError; NotHereError where the rig is not this
        machine, or weights have no data.
        """
        if self._given.is_changed():
            self._take_over()
        self._check_here()
        with torch.no_grad():
            return self._component.module(*args, **kwargs)

    def _check_here(self) -> None:
        if not self.rig.present:
            raise NotHereError(
                f"{self._title} was compiled for {self.rig.told}, which is not this machine: its programs can be "
                "printed, verified and saved here, and it can be called where those devices are"
            )
        lacking = [one.name for one in self._component.view.weights() if not one.has_data]
        if lacking:
            raise NotHereError(
                f"{self._title} has no data for {len(lacking)} of its weights ({', '.join(lacking[:3])}"
                f"{', …' if len(lacking) > 3 else ''}): have its module hold real weights before it is called, or name "
                "the files that have them (weights=…)"
            )

    def _take_over(self) -> None:
        """Takes over what somebody changed in the module that was compiled; files have what they have."""
        with self._component.turn, self._component.turn:
            if self._given.is_changed():
                twin = self._component.module
                now = {**dict.fromkeys(tensors_of_module(twin)), **self._given.look()}
                _put(twin, {name: one for name, one in now.items() if name not in self._read})

    def load(self) -> None:
        """Brings the weights of all programs that there are to their devices; calls do it otherwise."""
        for program in self.programs:
            program.load()

    def exchange(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Raises TraceError: adapters belong to a program."""
        _ = self.program

    def unload(self) -> None:
        """Lets go of the weights that were brought for calls; the next one loads them again."""
        for program in self.programs:
            program.unload()
        self._component.view.release()

    def source(self) -> str:
        """The generated Python of all programs."""
        return "\n".join(program.source() for program in self.programs)

    @property
    def _title(self) -> str:
        return type(self._component.module).__name__

    def __str__(self) -> str:
        component = self._component
        placed = component.assigned.bytes_on()
        lines = [f"{self._title} by its parts on {' & '.join(map(str, component.devices))}"]
        lines += [f"  {device}: {format_bytes(placed[device.name])} of weights" for device in component.devices]
        lines += [f"  {name} cannot be traced: {why}" for name, why in component.parts.reasons.items()]
        for call in component.calls:
            lines += [f"  {call}: {one!r}" for one in call.programs.values() if isinstance(one, CompiledModule)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        where = " & ".join(map(str, self._component.devices))
        return f"CompiledByParts({self._title} on {where}, {counted(len(self.programs), 'program')})"


def compile_by_parts(
    module: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    why: TraceError,
    rig: Rig,
    plan: ComponentPlan,
    finish: Finish,
    index: WeightIndex | None = None,
    places: Mapping[str, Device] | None = None,
) -> CompiledByParts:
    """Compiles a module that could not be traced, by running an example call: only a call shows what its parts get.

    The module itself stays as it is: a copy of its structure, which shares its weights, is what runs. Where weights or
    arguments have no data, or the devices are not here, its own Python runs on the host, and everything is zeros.

    Args:
        module, args, kwargs: as for ``compile``.
        why: what tracing it said.
        rig: the machine it is compiled for.
        plan, finish: as for ``Component``.
        index: files that have its weights.
        places: the devices of modules by their path.

    Raises TraceError where the module refuses the example call, where its calls cannot be known without computing them,
    and where there is nothing to compile and something has no data.
    """
    given = ModuleWeights(module)
    given.look()
    twin = _twin(module)
    origins = None if index is None else _on_files(twin, index)
    lacking = [
        name for name, tensor in tensors_of_module(twin).items() if tensor.is_meta and name not in (origins or ())
    ]
    leaves = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    is_rehearsed = bool(lacking) or not rig.present or any(leaf.is_meta for leaf in leaves)
    component = Component(
        "", "", twin, replace(plan, whole_on=rig.host if is_rehearsed else None), finish=finish, origins=origins
    )
    if places is not None:
        held = {one.name: one for one in component.view.weights()}
        assignment = split_by_map(held, places, {name: one.residency for name, one in held.items()})
        component.assigned.assign({held[name]: one for name, one in assignment.items()})
    before, beside = Kept(twin), [(one, contents(one)) for one in written(twin)]
    weights = WeightsAsBefore(twin, component.view.store, contents_of(twin))
    component.swap()
    compiled = CompiledByParts(component, rig, why, given, origins or ())
    try:
        with _told_afterwards(), same_random_numbers([] if is_rehearsed else [one.torch for one in plan.devices]):
            call: Callable[..., object] = partial(_rehearse, compiled) if is_rehearsed else compiled
            copy_context().run(call, *args, **kwargs)
    except CannotBePlannedError as error:
        raise TraceError(f"{error}, so that what its parts are called with is not known without computing") from error
    except DovetailError:
        raise
    except Exception as error:  # the module's own Python ran: it is what it raises by itself
        said = (str(error).strip() or "no message").splitlines()[0].rstrip(".")
        refused = f"{type(module).__name__} refuses this example call: {type(error).__name__}: {said}"
        advice = "give arguments with which the module itself runs"
        if not isinstance(error, type(why.__cause__)):  # else the trace has stumbled over the same
            advice += f". It runs by its parts because it could not be traced: {why}"
        raise TraceError(f"{refused}: {advice}") from error
    finally:
        weights.give_back()
        before.give_back()
        for one, held in beside:
            restore(one, held)
    return compiled


def _rehearse(compiled: CompiledByParts, /, *args: object, **kwargs: object) -> None:
    """Compiles the parts that an example call calls, with zeros for all weights and for arguments without data.

    Raises what tracing the whole said where it calls none that can be traced.
    """
    component, run = compiled._component, DryRun()
    given, named = pytree.tree_map(_with_data, (args, kwargs))
    try:
        with running_dry(run), torch.no_grad():
            component.module(*given, **named)
    finally:
        run.give_back()
    if not run.calls:
        raise compiled._why
    draft = component.decided.draft(replace(component.plan, whole_on=None))
    for one in run.calls.values():
        component.compiler.finish(draft, one.call, one.key, one.traced)
    with adopting([draft]):
        pass


def _with_data(value: Any) -> Any:
    return torch.zeros_like(value, device=HOST) if isinstance(value, torch.Tensor) and value.is_meta else value


@contextlib.contextmanager
def _told_afterwards() -> Iterator[None]:
    """Holds back what is said in this thread of how a module is compiled until its example call has succeeded."""
    records: list[logging.LogRecord] = []
    here = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        records.append(record)
        return False

    by_parts.logger.addFilter(keep)
    try:
        yield
    finally:
        by_parts.logger.removeFilter(keep)
    for record in records:
        by_parts.logger.handle(record)


def _twin(module: nn.Module) -> nn.Module:
    """A module of the same structure, in eval mode, that shares the weights."""
    shared = {id(tensor): tensor for tensor in tensors_of_module(module).values()}
    return copy.deepcopy(module, dict(shared)).eval()


def _on_files(module: nn.Module, index: WeightIndex) -> Mapping[str, FileOrigin]:
    """Where the weights of a module lie that files have, by all names of each, of which files may have one alone.

    Stand-ins take their place, but buffers are read.
    """
    origins, tensors = origins_of(index), tensors_of_module(module)
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    found: dict[str, torch.Tensor] = {}
    for tied in names.values():
        source = next((name for name in tied if name in index), None)
        if source is not None:
            origin = origins[source]
            found |= dict.fromkeys(tied, _from_files(tensors[source], origin))
            origins |= dict.fromkeys(tied, origin)
    _put(module, found)
    return origins


def _from_files(tensor: torch.Tensor, origin: FileOrigin) -> torch.Tensor:
    """What takes the place of a weight that files have."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad)
    return origin.whole(tensor.dtype, HOST)


def _put(module: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Has a module hold tensors under the names that it has for them."""
    for child_name, child in module.named_modules(remove_duplicate=False):
        for place in (child._parameters, child._buffers):
            for key in place:
                name = f"{child_name}.{key}" if child_name else key
                place[key] = tensors.get(name, place[key])

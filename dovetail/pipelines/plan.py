"""The plan of a pipeline: which devices each component gets, where its weights rest, and what is asked of both."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from torch import nn

from ..compiler.devices.device import Device, canonical_name
from ..compiler.devices.rig import Rig
from ..compiler.errors import UsageError
from ..compiler.spec import parse_params_backend
from ..compiler.spec.items import ByComponent
from ..components.plan import ComponentPlan
from ..conventions.request import Request, tell_unused_split
from ..conventions.spellings import Tiling
from ..passes.infra.base import Pass
from ..passes.infra.manager import Callback
from ..runtime.devices.wrapped import bytes_of
from ..runtime.store.store import Origins

logger = logging.getLogger(__name__)


def modules_of(pipe: Any) -> dict[str, nn.Module]:
    """The modules among a pipeline's components, by attribute, each once."""
    modules: dict[str, nn.Module] = {}
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module) and not any(component is known for known in modules.values()):
            modules[name] = component
    return modules


def count_held_as_free(request: Request, modules: Mapping[str, nn.Module]) -> Request:
    """The request over a rig in which the pipeline's own weights count as free: they will lie where they are placed."""
    held: Counter[str] = Counter()
    for module in modules.values():
        for tensor in (*module.parameters(), *module.buffers()):
            held[canonical_name(tensor.device)] += bytes_of(tensor)
    memory = {
        device: replace(size, free=min(size.total, size.free + held[device.name]))
        for device, size in request.rig.memory.items()
    }
    return replace(request, rig=replace(request.rig, memory=memory))


def check_names(request: Request, roles: Mapping[str, str], shapes: Mapping[str, Any]) -> None:
    """Says which names mean nothing in this pipeline: a warning for a role, UsageError for dynamic shapes."""
    settings: dict[str, ByComponent[Any]] = {
        "backend": request.backend,
        "params_backend": request.params_backend,
        "chunk": request.chunks,
        "micro_batches": request.micro_batches,
    }
    for name, setting in settings.items():
        for key in setting.unused(roles):
            logger.warning("this pipeline has no %s: what %s says of it is not used", key, name)
    tell_unused_split(request, roles)
    wrong = sorted(shapes.keys() - roles.keys())
    if wrong:
        raise UsageError(f"dynamic_shapes names {', '.join(wrong)}; this pipeline has {', '.join(roles)}")


def _share_out(request: Request, modules: Mapping[str, nn.Module], roles: Mapping[str, str]) -> dict[str, Rig]:
    """The devices of each component; of several text encoders the largest alone is split, unless told by name."""
    sizes = {name: sum(bytes_of(p) for p in module.parameters()) for name, module in modules.items()}
    encoders = [name for name, role in roles.items() if role == "te"]
    dominant = max(encoders, key=sizes.__getitem__, default="")
    shared: dict[str, Rig] = {}
    for name, role in roles.items():
        rig = request.rig_for(name, role)
        whole = role == "te" and name != dominant and name not in dict(request.backend.named)
        shared[name] = rig.only(rig.devices[:1]) if whole else rig
    return shared


def component_plans(
    request: Request,
    modules: Mapping[str, nn.Module],
    roles: Mapping[str, str],
    whole_on: Callable[[Device], Device],
    names: Collection[str],
) -> dict[str, ComponentPlan]:
    """What a request says of some components of a pipeline, those of open devices on the main one.

    Args:
        request: what was asked, or found.
        modules: the components by name.
        roles: what each is for.
        whole_on: gives where runs what cannot be compiled, by the main device of a component.
        names: those of which the plans are; all of them say how large each is beside others.
    """

    def of(name: str, rig: Rig) -> ComponentPlan:
        role, devices = roles[name], rig.devices
        return ComponentPlan(
            rig,
            whole_on(rig.devices[0]),
            request.shares_for(name, role, devices),
            request.mode_for(name, role),
            request.residency_for(name, role, devices),
            request.amounts_for(name, role),
            request.chunks_for(name, role),
            request.compiles(role),
            request.micro_batches_for(name, role, devices),
            request.chooses_mode(name, role),
            request.terms_for(name, role),
        )

    rigs = _share_out(request, modules, roles)
    return {name: of(name, rigs[name]) for name in rigs if name in names}


def resting_in_memory(request: Request, name: str) -> Request:
    """The request with the weights of a component resting in host memory."""
    resting = parse_params_backend({name: "cpu"}, {name: ""}).named
    return replace(
        request, params_backend=replace(request.params_backend, named=(*request.params_backend.named, *resting))
    )


class Options(TypedDict, total=False):
    """What else than devices and budgets a pipeline is compiled with: see ``compile_pipeline``."""

    dynamic_shapes: Mapping[str, Mapping[str, object]] | None
    passes: str | Sequence[Pass] | None
    callbacks: Sequence[Callback]
    origins: Mapping[str, Origins] | None
    vae_tiling: Tiling | None
    attention: str | None
    cache: str | None
    plans: str | os.PathLike[str] | None

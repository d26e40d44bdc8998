"""Which devices each component of a pipeline gets, and how much of them is free for it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..compiler.errors import UsageError
from ..compiler.spec import role_of_component
from ..compiler.spec.devices import Rig, canonical_name
from ..conventions.request import Request

logger = logging.getLogger(__name__)


_PHASES = {
    "te": "conditioning",
    "clip_vision": "conditioning",
    "diffusion": "sampling",
    "controlnet": "sampling",
    "vae": "decoding",
}


def phase_of(name: str) -> str:
    """The part of a pipeline's call in which a component works; what is staged for it leaves with it.

    One whose name tells no role works in a part of its own: a prior has done its work when the decoder begins.
    """
    return _PHASES.get(role_of_component(name), name)


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
            held[canonical_name(tensor.device)] += tensor.nbytes
    memory = {
        device: replace(size, free=min(size.total, size.free + held[device.name]))
        for device, size in request.rig.memory.items()
    }
    return replace(request, rig=replace(request.rig, memory=memory))


def check_names(request: Request, roles: Mapping[str, str], shapes: Mapping[str, Any]) -> None:
    """Says which names mean nothing in this pipeline: a warning for a role, UsageError for dynamic shapes."""
    for name, setting in (("backend", request.backend), ("params_backend", request.params_backend)):
        for key in setting.unused(roles):
            logger.warning("this pipeline has no %s: what %s says of it is not used", key, name)
    wrong = sorted(shapes.keys() - roles.keys())
    if wrong:
        raise UsageError(f"dynamic_shapes names {', '.join(wrong)}; this pipeline has {', '.join(roles)}")


def share_out(request: Request, modules: Mapping[str, nn.Module], roles: Mapping[str, str]) -> dict[str, Rig]:
    """The devices of each component; of several text encoders the largest alone is split, unless told by name."""
    sizes = {name: sum(p.nbytes for p in module.parameters()) for name, module in modules.items()}
    encoders = [name for name, role in roles.items() if role == "te"]
    dominant = max(encoders, key=sizes.__getitem__, default="")
    shared: dict[str, Rig] = {}
    for name, role in roles.items():
        rig = request.rig_for(name, role)
        whole = role == "te" and name != dominant and name not in dict(request.backend.named)
        shared[name] = rig.only(rig.devices[:1]) if whole else rig
    return shared

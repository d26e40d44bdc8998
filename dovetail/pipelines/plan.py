"""Which devices each component of a pipeline gets, and how much of them is free for it."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from torch import nn

from ..compiler.errors import UsageError
from ..compiler.ir.program import Program
from ..compiler.spec import parse_params_backend, role_of_component
from ..compiler.spec.devices import Device, Rig, canonical_name
from ..compiler.spec.items import ByComponent
from ..compiler.spec.residency import Amounts, Residency
from ..conventions.request import Request, tell_unused_split
from ..conventions.spellings import Tiling
from ..passes.infra.base import Pass
from ..passes.infra.manager import Callback
from ..planning.turns import turns_of
from ..runtime.devices.wrapped import bytes_of
from ..runtime.store.store import Origins

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


class Phases:
    """The phase of each component of a pipeline, by name.

    Components of one phase whose weights rest elsewhere are on their devices together. Where that does not fit, each
    works in a phase of its own: its weights leave before the next one's come. Where that does not fit either, weights
    of a component do not stay for its phase: all of them come and go in each call.
    """

    def __init__(self) -> None:
        self._apart: frozenset[str] = frozenset()
        self._going: frozenset[str] = frozenset()
        self.turns: Mapping[str, str] = {}
        """The phases of denoisers that come after others, by name, as the calls show that are planned or made."""

    def __call__(self, name: str) -> str:
        """The phase of a component."""
        return name if name in self._apart else self.turns.get(name) or phase_of(name)

    @property
    def changed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The components that work apart, and those whose weights come and go in each call."""
        return self._apart, self._going

    def start_over(self) -> Callable[[], None]:
        """Has no components work apart, nor weights come and go in each call; what is returned takes it back."""
        apart, going = self.changed
        self._apart = self._going = frozenset()

        def undo() -> None:
            self._apart, self._going = apart, going

        return undo

    def follow(self, calls: Sequence[str]) -> None:
        """Has denoisers of which one has done its work before the next one begins work in phases of their own."""
        self.turns = turns_of(calls, {name: phase_of(name) for name in calls})

    def separate(self, staged: Sequence[str]) -> Callable[[], None] | None:
        """Has the components of the first phase that some of these share work apart; what is returned takes it back.

        Gives None where none share a phase.
        """
        together: dict[str, list[str]] = {}
        for name in staged:
            together.setdefault(self(name), []).append(name)
        shared = next((names for names in together.values() if len(names) > 1), None)
        if shared is None:
            return None
        before = self._apart
        self._apart = before | set(shared)

        def join() -> None:
            self._apart = before

        return join

    def keeps(self, name: str) -> bool:
        """Whether weights of a component may stay on their devices until its phase ends."""
        return name not in self._going

    def let_go(self, names: Collection[str]) -> Callable[[], None] | None:
        """Has weights of components come and go in each call; what is returned takes it back.

        Gives None where those of all of them do.
        """
        before = self._going
        if before.issuperset(names):
            return None
        self._going = before.union(names)

        def keep() -> None:
            self._going = before

        return keep


def let_tables_go(program: Program) -> None:
    """Has buffers and constants rest in host memory, and come and go as parameters do; no program writes them."""
    tables = [name for name, weight in program.weights.items() if weight.kind in ("buffer", "constant")]
    program.residency.update(dict.fromkeys(tables, Residency.HOST))


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
    }
    for name, setting in settings.items():
        for key in setting.unused(roles):
            logger.warning("this pipeline has no %s: what %s says of it is not used", key, name)
    tell_unused_split(request, roles)
    wrong = sorted(shapes.keys() - roles.keys())
    if wrong:
        raise UsageError(f"dynamic_shapes names {', '.join(wrong)}; this pipeline has {', '.join(roles)}")


def share_out(request: Request, modules: Mapping[str, nn.Module], roles: Mapping[str, str]) -> dict[str, Rig]:
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


class Placing(TypedDict):
    """How a component is placed on its devices, as it is told."""

    whole_on: Device
    shares: tuple[float, ...]
    rows: bool
    residency: Residency
    amounts: Amounts


def placing(request: Request, name: str, role: str, rig: Rig, whole_on: Device) -> Placing:
    """What a request says of a component on the devices of a rig; what cannot be compiled runs ``whole_on`` one."""
    return {
        "whole_on": whole_on,
        "shares": request.shares_for(name, role, rig.devices),
        "rows": request.mode_for(name, role) == "row",
        "residency": request.residency_for(name, role, rig.devices),
        "amounts": request.amounts_for(name, role),
    }


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
    plans: str | os.PathLike[str] | None

"""What a person said, as constraints of the search; and the request that a plan amounts to."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from ..compiler.devices.device import Device
from ..compiler.spec import (
    parse_backend,
    parse_budget,
    parse_chunks,
    parse_micro_batches,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)
from ..compiler.spec.backend import AUTO, DEVICE, Resting, Word
from ..compiler.spec.chunks import Chunks
from ..compiler.spec.counts import WHOLE
from ..compiler.spec.items import ByComponent
from ..compiler.spec.modes import QUICKEST, TOGETHER, Shares, SplitMode
from ..compiler.units import format_bytes
from ..conventions.request import Request
from ..passes.fit.options import Option
from ..passes.fit.plan import PlacedComponent, Plan
from ..passes.fit.workload import Asked, Budgets

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ByComponent[Any])


def leaves_devices_open(request: Request, roles: Mapping[str, str]) -> bool:
    """Whether the search decides, and there is more than the host.

    That is where a component has no devices of its own, or several and no mode yet.
    """
    is_open = may_be_searched(request, roles) or any(_seeks_mode(request, *one) for one in roles.items())
    return bool(request.rig.gpus) and is_open


def _seeks_mode(request: Request, name: str, role: str) -> bool:
    """Whether the quickest mode is to be found of a component that is on several devices, or may be."""
    if not request.chooses_mode(name, role):
        return False
    return request.is_open(name, role) or len(request.backend.devices_for(name, role, request.rig)) > 1


def may_be_searched(request: Request, roles: Mapping[str, str]) -> bool:
    """Whether some component has no devices of its own, so that its weights may rest where they fit."""
    return any(request.is_open(name, role) for name, role in roles.items())


def leaves_places_open(request: Request, name: str, role: str) -> bool:
    """Whether it is to be found where the weights of a component rest, on devices that may be named."""
    word = request.params_backend.get(name, role)
    return word.text == AUTO if word is not None else request.is_open(name, role)


def asked_of(request: Request, name: str, role: str) -> Asked:
    """What was said of one component: where its devices are named, its weights rest there unless it is said."""
    devices = () if request.is_open(name, role) else request.backend.devices_for(name, role, request.rig)
    residency = None
    if not leaves_places_open(request, name, role):
        residency = request.residency_for(name, role, devices or request.rig.gpus[:1])
    shares = request.tensor_split.shares_for(name, role, devices) or () if len(devices) > 1 else ()
    amounts, chunks = request.amounts_for(name, role), request.chunks_for(name, role)
    of_all = bool(role) and {name, role}.isdisjoint(dict(request.split_mode.named))
    asked = Asked(
        devices, residency, tuple(shares), amounts=amounts, chunks=chunks,
        mode=QUICKEST if _seeks_mode(request, name, role) else request.mode_for(name, role),
        may_be_alone=of_all and not devices,
        micro_batches=request.micro_batches.get(name, role),
        says_mode=request.split_mode.get(name, role) is not None,
    )  # fmt: skip
    given = request.tensor_split.get(name, role) or () if asked.seeks_group else ()
    return replace(asked, shares=given) if len(given) > 1 else asked


def budgets_of(request: Request) -> tuple[Budgets, dict[Device, int]]:
    """The bytes that may be used of each device, and what could be without what was typed."""
    within, whole = request.granted.memory, replace(request, budget=parse_budget(None)).granted
    free = {device: memory.free for device, memory in whole.memory.items()}
    typed = str(request.budget)
    bound = f"max_vram={typed!r} (--max-vram {typed}) leaves"
    why = {
        device: f"{bound} {format_bytes(memory.free)}" if memory.free < free[device] else memory.why
        for device, memory in within.items()
    }
    devices = {device: memory.free for device, memory in within.items()}
    shared = frozenset(device for device in whole if whole[device].integrated)
    return Budgets(devices, whole.host, why=why, typed=typed, shared=shared), free


def request_of(request: Request, plan: Plan, roles: Mapping[str, str]) -> Request:
    """The request with what the plan decided in the place of what was left open; what was said stays as it was said.

    Named devices of which the plan uses nothing have no share. What is not split under the mode that was asked for is
    split by layers, or not at all.
    """
    found = [one for one in plan.components if one.name in roles]
    unplaced = {one.name for one in found if request.is_open(one.name, roles[one.name])}
    unrested = [one for one in found if leaves_places_open(request, one.name, roles[one.name])]
    has_shares = {one.name for one in found if request.tensor_split.get(one.name, roles[one.name]) is not None}
    unsettled = {one.name for one in found if _seeks_mode(request, one.name, roles[one.name])}
    is_free = {one.name for one in unrested if one.name not in has_shares} | {
        one.name for one in found if one.name in unsettled and (one.mode != "layer" or one.micro_batches > 1)
    }
    unsplit = [one for one in found if one.ratio and one.name in unplaced | is_free]
    backend = _with(
        request.backend,
        {one.name: tuple(Word(device.name) for device in one.devices) for one in found if one.name in unplaced},
    )
    rests: dict[str, Word] = {
        one.name: Resting(one.residency.value, amounts=one.amounts) for one in unrested if one.rests_elsewhere
    }
    rests |= {one.name: Word(AUTO) for one in unrested if roles[one.name] in rests and one.name not in rests}
    said = tuple(item for item in request.params_backend.named if item[0] not in {one.name for one in unrested})

    def over_all(one: PlacedComponent) -> Shares:
        of_each = dict(zip(one.devices, one.ratio, strict=True))
        devices = backend.devices_for(one.name, roles[one.name], request.rig)
        return tuple(of_each.get(device, 0.0) for device in devices)

    together = {one.name for one in found if request.mode_for(one.name, roles[one.name]) in TOGETHER}
    modes = {one.name: one.mode for one in found if one.name in unsettled | (together & unplaced)}
    split = request.split_mode if request.split_mode.default != QUICKEST else SplitMode(None, request.split_mode.named)
    in_parts = {
        one.name: parts
        for one in found
        for parts in [micro_batches_found(request, one, roles[one.name], one.name in unsettled)]
        if parts != request.micro_batches.count_for(one.name, roles[one.name])
    }
    return replace(
        request,
        backend=backend,
        split_mode=_with(split, modes),
        micro_batches=_with(request.micro_batches, in_parts),
        params_backend=_with(replace(request.params_backend, named=said), rests),
        tensor_split=_with(request.tensor_split, {one.name: over_all(one) for one in unsplit}),
    )


def micro_batches_found(request: Request, way: PlacedComponent | Option, role: str, is_unsettled: bool) -> int:
    """In how many micro-batches a component is computed that was placed so.

    Where its mode was found, and pictures go through its layers whole though a number was asked for, this is said.
    """
    asked = request.micro_batches.count_for(way.name, role)
    if way.micro_batches > 1:
        return way.micro_batches
    if not is_unsettled or way.mode != "layer" or len(way.devices) == 1:
        return asked
    if asked > 1:
        _tell_whole(way.name, asked)
    return 1


@cache
def _tell_whole(name: str, count: int) -> None:
    logger.warning(
        "%s is not computed in %d micro-batches: beside a split mode that is to be found it is where a call is of "
        "several pictures that do not depend on each other, its weights stay on their devices, and neither shares nor "
        "chunks are asked for; name the mode, --split-mode layer",
        name, count,
    )  # fmt: skip


def _with(setting: S, values: Mapping[str, object]) -> S:
    """A setting with values of components besides, or in the place of what it has for them."""
    return replace(setting, named=(*setting.named, *values.items()))


def with_chunks(request: Request, counts: Mapping[str, int], roles: Mapping[str, str]) -> Request:
    """The request with so many chunks of the components that are named, and one of all others."""
    split = {name for name, count in counts.items() if count != WHOLE}
    named = tuple((name, count) for name, count in counts.items() if name in split or roles[name] in split)
    return replace(request, chunks=Chunks(named=named))


def settings_of_request(request: Request, roles: Mapping[str, str], alone: Collection[str] = ()) -> dict[str, str]:
    """What was asked, by option of the command line; only what was said.

    Args:
        request: what was asked.
        roles: those of the components by name.
        alone: the components on one device, of which a split mode says nothing, nor do micro-batches.
    """
    in_parts = "" if str(request.micro_batches) == "off" or roles.keys() <= set(alone) else str(request.micro_batches)
    found = {
        "--backend": str(request.backend),
        "--params-backend": str(request.params_backend),
        "--split-mode": _modes_said(request.split_mode, {name: roles[name] for name in roles if name not in alone}),
        "--tensor-split": str(request.tensor_split),
        "--chunk": "" if str(request.chunks) == "off" else str(request.chunks),
        "--micro-batches": in_parts,
        "--max-vram": str(request.budget),
    }
    return {option: value for option, value in found.items() if value}


def _modes_said(said: SplitMode, roles: Mapping[str, str]) -> str:
    """The split modes that were said of some components; nothing where all of them are split by layers."""
    modes = {name: said.mode_for(name, role) for name, role in roles.items()}
    named = {name: mode for name, mode in said.named if name in {*roles, *roles.values()}}
    takes_default = any({name, role}.isdisjoint(named) for name, role in roles.items())
    kept = SplitMode(said.default if takes_default else None, tuple(named.items()))
    return str(kept) if set(modes.values()) - {"layer"} else ""


def said_of_places(asked: Request, settings: Mapping[str, str]) -> dict[str, str]:
    """Of the options of a request those that hold of whatever devices a search finds, and that it does not decide.

    These are chunks, micro-batches if something was said of them, and where weights rest if some of them were said to
    stay on their devices.
    """
    words = (asked.params_backend.default, *(word for _, word in asked.params_backend.named))
    stays = any(word is not None and word.text == DEVICE for word in words)
    says_parts = str(asked.micro_batches) not in ("", "off")
    kept = ("--chunk", *["--micro-batches"] * says_parts, *["--params-backend"] * stays)
    return {option: settings[option] for option in kept if option in settings}


def typed(request: Request, settings: Mapping[str, str], roles: Mapping[str, str]) -> Request:
    """The request that a person makes who types these options in place of those of the same kind."""
    return replace(
        request,
        backend=parse_backend(settings.get("--backend"), roles),
        params_backend=parse_params_backend(settings.get("--params-backend"), roles),
        split_mode=parse_split_mode(settings.get("--split-mode"), roles),
        tensor_split=parse_tensor_split(settings.get("--tensor-split"), roles),
        chunks=parse_chunks(settings.get("--chunk"), roles),
        micro_batches=parse_micro_batches(settings.get("--micro-batches"), roles),
        budget=parse_budget(settings.get("--max-vram")),
    )

"""Law 7 on what is decided: a plan that is accepted runs within the memory that it was accepted for, to the byte."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.analysis.memory_needs import needs_of
from dovetail.passes.placement.assignment import arranged
from dovetail.passes.placement.place import Part, Room, split_parts
from dovetail.runtime import sim
from tests.cases import slow_but

from .modules import KINDS, TOKENS, WIDTH, ModuleCase, Shared, Tower
from .wide_modules import PIECES, Stack, WideCase

PARTS = st.lists(st.builds(Part, st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=7)
ROOMS = st.lists(st.builds(Room, st.integers(0, 200)), min_size=1, max_size=4)


def fits(counts: list[int], parts: list[Part], rooms: list[Room], rest: Part) -> bool:
    start = 0
    for index, (count, room) in enumerate(zip(counts, rooms, strict=True)):
        held = parts[start : start + count] + ([rest] if index == 0 else [])
        if sum(part.nbytes for part in held) + max((part.live for part in held), default=0) > room.free:
            return False
        start += count
    return start == len(parts)


def splits(parts: int, devices: int) -> list[list[int]]:
    if devices == 1:
        return [[parts]]
    return [[first, *others] for first in range(parts + 1) for others in splits(parts - first, devices - 1)]


@given(PARTS, ROOMS, st.builds(Part, st.integers(0, 50), st.integers(0, 20)))
@example([Part(0, 1), Part(0, 0)], [Room(0), Room(1)], Part(0, 0))
def test_no_device_gets_more_than_it_has_where_any_split_into_ranges_would_fit(
    parts: list[Part], rooms: list[Room], rest: Part
) -> None:
    found = split_parts(parts, rooms, rest)
    assert sum(found) == len(parts)
    if any(fits(counts, parts, rooms, rest) for counts in splits(len(parts), len(rooms))):
        assert fits(found, parts, rooms, rest)


def least_rig(program: Program) -> str:
    """A rig of just so much memory as the program needs; a byte at least, for a rig has no empty devices."""
    copy = arranged(program)
    needs = needs_of(copy, copy.places(), finest=True)
    free = {device: max(need.total, 1) for device, need in needs.items() if device.is_simulated}
    return ",".join(f"{device}={nbytes}B/{nbytes + _left(device)}B" for device, nbytes in free.items())


def _left(device: Device) -> int:
    """Bytes of other tests that nobody has collected yet."""
    return sim.stats(device.index).in_use


pytestmark = pytest.mark.usefixtures("clean_sims")


def compiled(case: Any, rig: str, rigs: list[str], **options: Any) -> CompiledModule:
    def note(step: Any, program: Program, change: object) -> None:
        if step.name in ("place", "rows"):
            rigs.append(least_rig(program))

    gc.collect()
    return dovetail.compile(case.module, rig=rig, backend=case.backend, callbacks=[note], **options)


def runs_in_the_least_memory(case: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> None:
    rigs: list[str] = []
    compiled(case, case.rig, rigs, args=args, kwargs=kwargs, **options)
    again = compiled(case, rigs[0], rigs, args=args, kwargs=kwargs, **options)
    gc.collect()
    again(*args, **kwargs)
    again.unload()
    tight = min((int(item.split("=")[1].partition("B")[0]), item) for item in rigs[0].split(","))
    if tight[0] > 1:
        smaller = rigs[0].replace(tight[1], tight[1].replace(f"={tight[0]}B", f"={tight[0] - 1}B"))
        try:
            compiled(case, smaller, rigs, args=args, kwargs=kwargs, **options)
        except DoesNotFitError:
            return
        raise AssertionError("a byte less than what was needed is accepted")


def tower(kind: type[nn.Module], shares: str, rests: str | None, toned: bool = False) -> ModuleCase:
    torch.manual_seed(0)
    module = Tower((kind,), 4, {2: 0}, notes=False, toned=toned).eval()
    args = torch.randn(2, TOKENS, WIDTH), torch.randn(2, WIDTH)
    names = [f"sim{index}" for index in range(len(shares.split(",")))]
    rig = ",".join(f"{name}=64MiB" for name in names)
    return ModuleCase(module, args, {"factor": 0.5}, rig, "&".join(names), shares, rests)


@pytest.mark.fifth
@pytest.mark.few(4, quick=2)
@pytest.mark.parametrize("rests", [None, "cpu"])
@pytest.mark.parametrize("shares", slow_but(["0,2,1"], ["1", "1,1", "0,2,1"]))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Shared])
def test_a_split_by_layers_runs_in_exactly_the_memory_for_which_it_is_accepted(
    kind: type[nn.Module], shares: str, rests: str | None
) -> None:
    case = tower(kind, shares, rests)
    runs_in_the_least_memory(case, case.args, case.kwargs, tensor_split=shares, params_backend=rests)


@pytest.mark.fifth
@pytest.mark.parametrize("rests", [None, "cpu"])
@pytest.mark.parametrize("shares", ["0,2,1"])
def test_a_parameter_that_several_devices_hold_is_counted_on_each(shares: str, rests: str | None) -> None:
    case = tower(KINDS[0], shares, rests, toned=True)
    runs_in_the_least_memory(case, case.args, case.kwargs, tensor_split=shares, params_backend=rests)


@pytest.mark.fifth
@pytest.mark.few(4, quick=2)
@pytest.mark.parametrize("shares", slow_but([((3, 2, 1),)], [((1, 1),), ((3, 2, 1),), ((0, 1),)]))
@pytest.mark.parametrize("piece", PIECES)
def test_a_split_by_rows_runs_in_exactly_the_memory_for_which_it_is_accepted(
    piece: type[nn.Module], shares: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    names = [f"sim{index}" for index in range(len(shares))]
    x = torch.randn(2, 4, 256)
    case = WideCase(Stack((piece,), 2).eval(), x, ",".join(f"{name}=64MiB" for name in names), "&".join(names), shares)
    runs_in_the_least_memory(case, (case.x,), {}, split_mode="row", tensor_split=list(case.shares))

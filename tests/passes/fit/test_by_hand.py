"""What is searched for published pipelines at full size, beside lines that a person types for the same rig."""

from __future__ import annotations

import functools

import pytest

from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.chain import Chain, Part
from dovetail.passes.fit.workload import Load
from dovetail.passes.simulate.cost import OpCost
from testbed.by_hand import MODELS, RIGS, Cell, cell, lines, loads_of, on, rig_of, traced, without_files
from tests.cases import drawn

GIB = 2**30


def made(name: str, role: str, phase: str, blocks: int, times: float) -> Load:
    part = Part("block", GIB // 2, GIB // 2, GIB // 8, 2**24, ((OpCost(1e12, GIB // 2, 2**24), 1),))
    chain = Chain(name, Part("rest", GIB // 16, GIB // 16, GIB // 8, 2**24, ()), (part,) * blocks)
    return Load(name, role, phase, chain, times, nbytes=chain.nbytes)


@pytest.mark.parametrize("rig", drawn(RIGS, 2))
def test_no_line_by_hand_is_quicker_for_a_pipeline_of_equal_blocks(rig: str) -> None:
    loads = [made("text_encoder", "te", "conditioning", 18, 1), made("transformer", "diffusion", "sampling", 44, 28)]
    found = cell(loads, loads, rig_of(*RIGS[rig]))
    assert found.settings
    assert found.misses == []


def test_lines_by_hand_are_of_five_kinds_and_say_where_all_runs_and_rests() -> None:
    loads = [made("text_encoder", "te", "conditioning", 2, 1), made("transformer", "diffusion", "sampling", 4, 28)]
    machine, _ = on(rig_of((16, 10), 64))
    told = list(lines(loads, machine))
    assert len({kind for kind, _ in told}) == 5
    assert all(load.asked.devices and load.asked.residency for _, some in told for load in some)
    kinds = {kind: {load.name: load.asked for load in some} for kind, some in told}
    assert kinds["encoders on disk, denoiser in RAM"]["text_encoder"].residency is Residency.DISK
    assert len(kinds["layers over all cards, weights in RAM"]["transformer"].devices) == 2


def test_a_cell_says_where_it_loses() -> None:
    assert Cell({}, {}, 10.0, {"one card": 10.0}).misses == []
    assert "one card" in Cell({}, {}, 11.0, {"one card": 10.0, "two": 12.0}).misses[0]
    assert len(Cell(None, {}, None, {"one card": 10.0}).misses) == 2


@pytest.mark.slow
@pytest.mark.parametrize("model", drawn(MODELS, 1))
def test_no_line_by_hand_is_quicker_for_a_published_pipeline(model: str) -> None:
    """Six rigs of it; the components are traced once."""
    loads = loads_of(model, functools.cache(traced))
    bare = without_files(model, loads)
    cells = {rig: cell(loads, bare, rig_of(*RIGS[rig])) for rig in drawn(RIGS, 6)}
    assert {rig: found.misses for rig, found in cells.items() if found.misses} == {}

"""Laws 5 and 6, and what the other laws say of a row split, over generated modules and any shares."""

from __future__ import annotations

import copy
import gc
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.states.parts import pieces
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim

from .oracles import Clockwork, check_law_3, check_law_4
from .wide_modules import WideCase, wide_cases

few = settings(max_examples=settings().max_examples // 6)
SHARES = st.lists(st.floats(0, 1e6, allow_subnormal=False) | st.integers(0, 20), min_size=1, max_size=6).filter(any)


@given(st.integers(1, 50_000), SHARES)
def test_law_6_slices_cover_a_weight_once_each_within_a_row_of_its_share(rows: int, shares: list[float]) -> None:
    bounds = bounds_of(rows, shares)
    assert len(bounds) == len(shares)
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    assert (bounds[0][0], bounds[-1][1]) == (0, rows)
    for (start, stop), share in zip(bounds, shares, strict=True):
        assert start <= stop
        assert abs((stop - start) - rows * (share / math.fsum(shares))) < 1 + 1e-6
        assert share or start == stop


@given(st.integers(1, 600), SHARES, st.sampled_from(QUANT_TYPES))
def test_law_6_slices_of_a_packed_weight_hold_all_its_bytes_in_whole_rows(
    rows: int, shares: list[float], quant: str
) -> None:
    weight = Weight("w", "parameter", (rows, 512), torch.bfloat16, quant=quant)
    slices = [weight.part(0, [(start, stop)]) for start, stop in bounds_of(rows, shares) if start < stop]
    assert sum(piece.nbytes for piece in slices) == weight.nbytes
    assert all(piece.nbytes == piece.shape[0] * (weight.nbytes // rows) for piece in slices)
    assert {piece.whole for piece in slices} == {"w"}
    firsts = [piece.which.ranges[0][0] for piece in slices if piece.which]
    ones = [Part(0, ((first, first + 1),)) for first in firsts]
    assert [piece.part(0, [(0, 1)]).which for piece in slices] == ones


def compiled(case: WideCase) -> CompiledModule:
    return dovetail.compile(
        case.module, (case.x,), backend=case.backend, rig=case.rig, split_mode="row", tensor_split=list(case.shares),
        callbacks=[lambda step, program, change: verify(program)],
    )  # fmt: skip


@pytest.mark.fifth
@few
@given(wide_cases())
def test_law_5_exactly_the_large_matrices_of_blocks_that_are_only_multiplied_by_are_sliced(case: WideCase) -> None:
    program = compiled(case).program
    marked = {name for name in program.bounds if len(program.weights[name].shape) == 2}
    assert marked == (case.module.sliced if case.is_split else set())
    assert not marked & pieces(program).keys(), "a matrix that is sliced is nowhere whole"
    check_slices(case, program)


def check_slices(case: WideCase, program: Program) -> None:
    """Law 6 on a program: each slice is at home where the shares put it, and what is whole on the main device."""
    parameters = dict(case.module.named_parameters())
    held = pieces(program)
    for weight, device in held.values():
        if weight.which is None:
            assert device == program.main or not case.is_split
            continue
        place = program.devices.index(device)
        before, own = sum(case.shares[:place]), case.shares[place]
        rows = len(parameters[weight.whole])
        ((start, stop),) = weight.which.ranges
        assert weight.which.axis == 0
        assert abs(start - rows * before / sum(case.shares)) <= 0.5
        assert abs(stop - rows * (before + own) / sum(case.shares)) <= 0.5
    for name in program.bounds:
        rows = sum(weight.shape[0] for weight, _ in held.values() if weight.which and weight.whole == name)
        assert rows == len(parameters[name])


@pytest.mark.fifth
@few
@given(wide_cases())
def test_law_2_a_row_split_is_as_exact_as_eager_and_leaves_nothing_behind(case: WideCase) -> None:
    gc.collect()
    module = compiled(case)
    module.load()
    simulated = [device.index for device in module.program.devices if device.is_simulated]
    resting = [sim.stats(index).in_use for index in simulated]
    with torch.no_grad():
        exact = copy.deepcopy(case.module).double()(case.x.double())
        eager = case.module(case.x)
    found = module(case.x)
    assert (found.shape, found.dtype) == (eager.shape, eager.dtype)
    assert (found - exact).norm() <= 2 * (eager - exact).norm() + 1e-6 * exact.norm(), str(module)
    del found
    assert [sim.stats(index).in_use for index in simulated] == resting


@pytest.mark.fifth
@few
@given(wide_cases(), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_laws_3_4_8_9_and_10_hold_for_a_row_split(case: WideCase, takes: list[int]) -> None:
    module = compiled(case)
    program = module.program
    check_law_3(program)
    check_law_4(program)
    verify_deep(program)
    Clockwork(program, module.schedule, takes).run()
    again = parse_program(print_program(program))
    assert print_program(again) == print_program(program)
    assert str(PassManager([Lower()]).run(again).schedule) == str(program.schedule)
    verify(again)

"""Laws 1, 3, 4, 8, 9 and 10 over generated graphs, where every weight is at home anywhere."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import PassError
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.pipeline import default_passes
from dovetail.passes.placement.cut import Cut
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights

from .graphs import Case, Program, cases, same_bits
from .oracles import Clockwork, check_law_3, check_law_4


def compiled(case: Case) -> CompiledModule:
    program = PassManager(default_passes()).run(case.program)
    return CompiledModule(program, program.rig, ProgramWeights.of_tensors(case.weights, program))


def in_use(program: Program) -> dict[Device, int]:
    return {device: sim.stats(device.index).in_use for device in program.devices}


@given(cases())
def test_law_1_a_split_changes_no_bit_and_leaves_nothing_behind(case: Case) -> None:
    gc.collect()
    module = compiled(case)
    module.load()
    resting = in_use(case.program)
    found = module(*case.inputs)
    assert all(map(same_bits, found, case.expected)), str(module)
    assert len(found) == len(case.expected)
    del found
    assert in_use(case.program) == resting


@given(cases())
def test_law_3_a_node_is_where_the_weight_consumed_last_is_and_a_view_where_its_base_is(case: Case) -> None:
    PassManager(default_passes()).run(case.program)
    check_law_3(case.program)


@pytest.mark.fifth
@given(cases())
def test_law_3_nodes_that_follow_their_readers_make_neither_more_bytes_nor_more_cuts(case: Case) -> None:
    steps = default_passes()
    still = PassManager([step for step in steps if step.name != "sink"]).run(case.program.copy())
    program = PassManager(steps).run(case.program)
    assert crossing_bytes(program) <= crossing_bytes(still)
    assert len(program.segments) <= len(still.segments)


@pytest.mark.fifth
@given(cases())
def test_law_4_segments_partition_the_nodes_and_nothing_is_sent_twice(case: Case) -> None:
    program = PassManager(default_passes()).run(case.program)
    check_law_4(program)
    with pytest.raises(PassError, match="refuses one that is cut"):
        PassManager([Cut()]).run(program)


@pytest.mark.fifth
@given(cases())
def test_law_8_printing_and_parsing_give_the_same_program(case: Case) -> None:
    def check(step: Pass, program: Program, change: Change) -> None:
        text = print_program(program)
        again = parse_program(text)
        assert print_program(again) == text
        verify(again)

    program = PassManager(default_passes(), [check]).run(case.program)
    again = PassManager([Lower()]).run(parse_program(print_program(program)))
    assert str(again.schedule) == str(program.schedule)
    module = CompiledModule(again, again.rig, ProgramWeights.of_tensors(case.weights, again))
    assert all(map(same_bits, module(*case.inputs), case.expected))


@pytest.mark.fifth
@given(cases())
def test_law_9_the_verifier_accepts_what_every_pass_returns(case: Case) -> None:
    verify(case.program)
    PassManager(default_passes(), [lambda step, program, change: verify(program)]).run(case.program)
    verify_deep(case.program)


@pytest.mark.fifth
@given(cases(), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_law_10_instructions_respect_data_dependence_under_any_speed(case: Case, takes: list[int]) -> None:
    program = PassManager(default_passes()).run(case.program)
    assert program.schedule is not None
    Clockwork(program, program.schedule, takes).run()

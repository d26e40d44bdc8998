"""Each way to break a program that devices compute together is refused by the verifier."""

from __future__ import annotations

import gc
import os
import random
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.fx import Node

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.aliasing import in_place, overwrites
from dovetail.compiler.ir.boxes import Box, Landing
from dovetail.compiler.ir.ops import TERMS
from dovetail.compiler.ir.program import (
    Program,
    placement_of,
    state_of,
    states_of,
    tensors_of,
    value_of,
    weight_name,
)
from dovetail.compiler.ir.schedule import Allocate, Await, Copy, Run
from dovetail.compiler.ir.split import assembles, is_shared, source_of
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split, State
from dovetail.compiler.ir.value import TensorType
from dovetail.compiler.states.strategy import Strategy
from dovetail.compiler.states.table import is_drawn, strategies
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.placement.assignment import Assign
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.placement.cut import Cut
from dovetail.passes.placement.pin import Pin
from dovetail.passes.verify.verifier import verify
from testbed.sharing import Share

from .broken import MOST, SUBJECTS, every, is_refused, moved, placed, some, subject
from .test_shared import Chooser, shared


@pytest.fixture(scope="module", params=SUBJECTS)
def program(request: pytest.FixtureRequest) -> Program:
    return subject(request.param)


STATES: dict[str, tuple[Callable[[State], bool], Callable[[State], State]]] = {
    "a sum that is read as it is": (lambda one: one == PARTIAL, lambda _: WHOLE),
    "a part that is the whole": (lambda one: isinstance(one, Split), lambda _: WHOLE),
    "a part that is a term": (lambda one: isinstance(one, Split), lambda _: PARTIAL),
    "other sizes": (lambda one: isinstance(one, Split) and moved(one) != one, moved),
}


def having(program: Program, is_meant: Callable[[State], bool]) -> Program:
    """The program, or where devices have no value in such a state another: in space nothing is added up."""
    has = any(is_shared(one) and any(map(is_meant, states_of(one))) for one in program.ops())
    return program if has else subject("transformer")


@pytest.mark.fifth
@pytest.mark.parametrize(("is_meant", "broken"), STATES.values(), ids=STATES)
def test_a_result_in_another_state_is_refused(
    program: Program, is_meant: Callable[[State], bool], broken: Callable[[State], State]
) -> None:
    program = having(program, is_meant)
    nodes = some([one for one in program.ops() if is_shared(one) and any(map(is_meant, states_of(one)))])
    for node in nodes:
        states = tuple((broken(one) if is_meant(one) else one,) for one in states_of(node))
        with placed(node, states=states):
            assert is_refused(program), node.name


def test_a_member_that_is_left_out_is_refused(program: Program) -> None:
    """One that has nothing to compute of it may be left out: what the others do says the same."""
    assert program.schedule is not None
    runs = {(node, run.device) for run in program.schedule if isinstance(run, Run) for node in run.nodes}
    shared_by = [one for one in program.ops() if is_shared(one) and (one, placement_of(one).group[-1]) in runs]
    for node in some(shared_by):
        with placed(node, group=placement_of(node).group[:-1]):
            assert is_refused(program), node.name


def test_a_reader_that_passes_by_what_is_put_together_for_it_is_refused(program: Program) -> None:
    for transfer in some([one for one in program.transfers() if assembles(one)]):
        reader = next(iter(transfer.users))
        kept = reader.args, reader.kwargs
        reader.replace_input_with(transfer, source_of(transfer))
        assert is_refused(program), transfer.name
        reader.args, reader.kwargs = kept


@pytest.mark.parametrize("beyond", [-1, 1])
def test_what_is_put_together_covers_its_value(program: Program, beyond: int) -> None:
    for transfer in some([one for one in program.transfers() if isinstance(state_of(one), Split)]):
        state = state_of(transfer)
        assert isinstance(state, Split)
        *others, (start, stop) = state.segments[-1]
        last = (*others, (start, max(start, stop + beyond)))
        other = Split(state.axis, (*state.segments[:-1], last))
        if other != state:
            with placed(transfer, states=((other,),)):
                assert is_refused(program), transfer.name


@pytest.mark.fifth
def test_a_term_is_not_put_together_as_if_it_were_the_whole(program: Program) -> None:
    program = having(program, lambda state: state == PARTIAL)
    sums = [one for one in program.ops() if is_shared(one) and state_of(one) == PARTIAL]
    for node in some([one for one in sums if any(user.target is TERMS for user in one.users)]):
        (terms,) = list(node.users)[:1]
        transfer = next(iter(terms.users))
        kept = transfer.args
        transfer.args = (node,)
        assert is_refused(program), node.name
        transfer.args = kept


def test_what_is_computed_over_what_others_need_is_refused(program: Program) -> None:
    """Over an operand that is sent, or read again, or of which devices have other parts."""
    sent = {source_of(one) for one in program.transfers()}
    found = []
    for node in (one for one in program.ops() if is_shared(one) and in_place(one.target) and not overwrites(one)):
        operand = node.args[0]
        if isinstance(operand, Node) and isinstance(value_of(operand), TensorType) and not weight_name(operand):
            is_read_again = any(node < user for user in operand.users)
            found += [node] if operand in sent or is_read_again or state_of(operand) != state_of(node) else []
    for node in some(found) if found else ():  # a decoder may have none
        before = value_of(node)
        node.meta["value"] = replace(before, storage=tensors_of(node.args[0])[0].storage)  # type: ignore[type-var, arg-type]
        assert is_refused(program), node.name
        node.meta["value"] = before


def test_arguments_that_changed_are_seen() -> None:
    """What was found of an operation before is not what holds of it now."""

    class Softmax(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).softmax(-1)

    rows = Split(0, (((0, 4), (4, 8)),))

    def choose(node: Node) -> Strategy | None:
        return next((way for way in strategies(node, lambda _: [rows]) if way.results == (rows,)), None)

    traced = trace(Softmax(), (torch.ones(8, 8),))
    traced.rig = Rig.parse("sim0=8GiB,sim1=8GiB")
    steps = [FindBlocks(), Assign({}), Pin(), Share(lambda _: choose), Cut(), Lower()]
    found = PassManager(steps).run(traced)
    verify(found)
    node = next(one for one in found.ops() if "softmax" in str(one.target))
    node.args = (node.args[0], 0, *node.args[2:])
    assert is_refused(found)


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: nn.functional.dropout(x, 0.5, True)])
def test_numbers_that_each_device_would_draw_by_itself_are_refused(
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Each would have other bits of what all are said to have, whatever the schedule says of it."""

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return draw(x) * 2

    traced = trace(Drawing(), (torch.ones(8, 8),))
    traced.rig = Rig.parse("sim0=8GiB,sim1=8GiB")
    found = PassManager([FindBlocks(), Assign({}), Pin(), Share()]).run(traced)
    verify(found)
    node = next(one for one in found.ops() if is_drawn(one))
    assert not is_shared(node)
    with placed(node, group=found.devices):
        assert is_refused(found)


@pytest.mark.fifth
def test_a_program_goes_with_all_that_was_found_of_its_nodes() -> None:
    graphs = []
    for number in range(3):
        _, _, found = shared("T5EncoderModel", (1, 1), lambda _, at=number: Chooser((1, 1), f"goes {at}"))
        assert any(map(is_shared, found.ops()))
        graphs.append(weakref.ref(found.graph))
        del found
    gc.collect()
    assert sum(one() is not None for one in graphs) <= 1, "PyTorch keeps what it traced last"


def shifted(copy: Copy) -> Copy:
    """What a device sends lands one farther on, or not at its beginning."""
    first, *others = copy.landings
    axis, start, length = first.into.ranges[0]
    other = start - 1 if start else 1
    into = Box(((axis, other, length), *first.into.ranges[1:]))
    return replace(copy, landings=(Landing(first.taken, into), *others))


@pytest.mark.fifth
def test_each_change_of_what_is_sent_is_refused(program: Program) -> None:
    schedule = program.schedule
    assert schedule is not None
    copies = [one for one in schedule.flat() if isinstance(one, Copy) and one.landings]
    chosen = random.Random(os.environ["DOVETAIL_TEST_SEED"]).sample(copies, MOST)
    try:
        for copy in chosen:
            shift = shifted(copy)

            def without(one: object, copy: Copy = copy) -> object | None:
                return None if one == copy or (isinstance(one, Await) and one.started == copy) else one

            def elsewhere(one: object, copy: Copy = copy, shift: Copy = shift) -> object:
                awaited = isinstance(one, Await) and one.started == copy
                return shift if one == copy else replace(one, started=shift) if awaited else one  # type: ignore[type-var]

            def early(one: object, copy: Copy = copy) -> object | None:
                return None if isinstance(one, Await) and one.started == copy else one

            def unallocated(one: object, copy: Copy = copy) -> object | None:
                is_memory = isinstance(one, Allocate) and (one.value, one.device) == (copy.value, copy.target)
                return None if is_memory else one

            ways = [without, elsewhere, unallocated, *([early] if copy.source != copy.target else [])]
            for way in ways:
                program.schedule = every(schedule, way)
                assert is_refused(program), f"{way.__name__}: {copy}"
    finally:
        program.schedule = schedule
    verify(program)

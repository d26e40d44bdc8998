"""Each way to break what devices exchange is refused by the verifier, in transformers, UNets, and pictures in space.

    of states and members           a result in another state, bounds moved    test_shared_mutants
                                    heads torn                                 here
                                    a member left out                          test_shared_mutants
                                    a member added, or named twice             here
                                    a reader that passes an exchange by        test_shared_mutants
                                    a value of another size                    here
    of copies                       left out, or to another place              test_shared_mutants
                                    from the wrong member, or twice            here
                                    of another box, of fewer bytes             here
    of waiting                      an Await removed                           test_shared_mutants
                                    an Await that is late, memory freed early  here
    of memory                       not set aside                              test_shared_mutants
                                    set aside elsewhere, late, or like another here
    of sums                         a term that is read as the whole           test_shared_mutants
                                    terms twice, in another order, one more    here
    of halos                        a row too few, or shifted, zeros turned    test_spatial
                                    zeros in place of rows                     here

Copies between two pairs of devices have no order to keep, which ``compiler/ir/schedule.py`` says: where they are
exchanged a program is the same, and is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from torch.fx import Node

from dovetail.compiler.ir.boxes import Box, Landing
from dovetail.compiler.ir.ops import GROUP_STATISTICS, TERMS
from dovetail.compiler.ir.program import Program, placement_of, state_of, tensors_of
from dovetail.compiler.ir.schedule import Allocate, Await, Copy, Free, Output, Schedule, ValueRef
from dovetail.compiler.ir.split import assembles, is_shared, own_part, source_of
from dovetail.compiler.ir.state import Halo, Split
from dovetail.compiler.states.strategy import name_of

from .broken import SUBJECTS, every, is_refused, moved, placed, scheduled, some, subject

Broken = Iterator[tuple[str, AbstractContextManager[None]]]
"""What is broken, each for a moment, with words for it."""


@pytest.fixture(scope="module", params=SUBJECTS)
def program(request: pytest.FixtureRequest) -> Program:
    return subject(request.param)


def landing_copies(program: Program) -> list[Copy]:
    assert program.schedule is not None
    return [one for one in program.schedule.flat() if isinstance(one, Copy) and one.landings]


def crossing(program: Program) -> list[Copy]:
    return [one for one in landing_copies(program) if one.source != one.target]


def other_than(program: Program, copy: Copy, changed: Copy) -> AbstractContextManager[None]:
    """The schedule with another copy in the place of one, which is awaited in its stead."""

    def change(one: object) -> object:
        if one == copy:
            return changed
        return replace(one, started=changed) if isinstance(one, Await) and one.started == copy else one

    assert program.schedule is not None
    return scheduled(program, every(program.schedule, change))


def with_first(copy: Copy, change: Callable[[Landing], Landing]) -> Copy:
    first, *others = copy.landings
    return replace(copy, landings=(change(first), *others))


def shorter(box: Box) -> Box:
    (axis, start, length), *others = box.ranges
    return Box(((axis, start, length - 1), *others))


def from_the_wrong_member(program: Program) -> Broken:
    for copy in some(crossing(program)):
        source = next(one for one in program.devices if one not in (copy.source, copy.target))
        yield str(copy), other_than(program, copy, replace(copy, source=source))


def to_the_wrong_member(program: Program) -> Broken:
    for copy in some(crossing(program)):
        target = next(one for one in program.devices if one not in (copy.source, copy.target))
        yield str(copy), other_than(program, copy, replace(copy, target=target))


def another_box(program: Program) -> Broken:
    """What is sent begins one element later, or earlier, in what the sender has."""

    def moved(one: Landing) -> Landing:
        ranges = one.taken.ranges or tuple((axis, 0, length) for axis, _, length in one.into.ranges)
        (axis, start, length), *others = ranges
        return replace(one, taken=Box(((axis, start - 1 if start else 1, length), *others)))

    for copy in some(crossing(program)):
        yield str(copy), other_than(program, copy, with_first(copy, moved))


def fewer_bytes(program: Program) -> Broken:
    def fewer(one: Landing) -> Landing:
        return Landing(shorter(one.taken) if one.taken.ranges else one.taken, shorter(one.into))

    for copy in some(crossing(program)):
        yield str(copy), other_than(program, copy, with_first(copy, fewer))


def a_box_left_out(program: Program) -> Broken:
    for copy in some(one for one in landing_copies(program)):
        yield str(copy), other_than(program, copy, replace(copy, landings=copy.landings[1:]))


def sent_twice(program: Program) -> Broken:
    assert program.schedule is not None
    for copy in some(one for one in program.schedule if isinstance(one, Copy) and one.landings):
        twice = [same for one in program.schedule for same in ((one, one) if one == copy else (one,))]
        yield str(copy), scheduled(program, Schedule(tuple(twice)))


def put_off(program: Program, chosen: object) -> AbstractContextManager[None]:
    """An instruction stands before the results are handed out, and not where it stood."""
    assert program.schedule is not None
    left = every(program.schedule, lambda one: None if one is chosen else one)
    *others, output = left
    assert isinstance(output, Output)
    return scheduled(program, Schedule((*others, chosen, output)))  # type: ignore[arg-type]


def awaited_late(program: Program) -> Broken:
    assert program.schedule is not None
    awaits = (one for one in program.schedule if isinstance(one, Await) and isinstance(one.started, Copy))
    read = [one for one in awaits if set(one.started.value.node.users) - {program.output}]  # type: ignore[union-attr]
    for one in some(one for one in read if one.started.landings):  # type: ignore[union-attr]
        yield str(one), put_off(program, one)


def sent_late(program: Program) -> Broken:
    assert program.schedule is not None
    for one in some(one for one in program.schedule if isinstance(one, Copy) and one.landings):
        yield str(one), put_off(program, one)


def set_aside_late(program: Program) -> Broken:
    assert program.schedule is not None
    for one in some(one for one in program.schedule if isinstance(one, Allocate)):
        yield str(one), put_off(program, one)


def set_aside_early(program: Program) -> Broken:
    """Before a device has the part of its own, whose strides the memory is to have."""
    assert program.schedule is not None
    waiting = (one for one in program.schedule if isinstance(one, Allocate) and one.like is None)
    own = [one for one in waiting if own_part(program, one.value.node, one.device)]
    for one in some(own) if own else []:
        first, *others = every(program.schedule, lambda each, one=one: None if each is one else each)  # type: ignore[misc]
        yield str(one), scheduled(program, Schedule((first, one, *others)))


def set_aside_elsewhere(program: Program) -> Broken:
    assert program.schedule is not None
    for one in some(one for one in program.schedule if isinstance(one, Allocate)):
        other = next(device for device in program.devices if device != one.device)
        changed = every(
            program.schedule, lambda each, one=one, to=other: replace(one, device=to) if each == one else each
        )  # type: ignore[misc]
        yield str(one), scheduled(program, changed)


def set_aside_like_another(program: Program) -> Broken:
    """In the sizes of a value that has others."""
    assert program.schedule is not None
    for one in some(one for one in program.schedule if isinstance(one, Allocate)):
        rank = len(tensors_of(one.value.node)[0].shape)
        values = (node for node in (*program.inputs(), *program.ops()) if len(tensors_of(node)) == 1)
        like = next(node for node in values if len(tensors_of(node)[0].shape) != rank)
        other = replace(one, like=ValueRef(like))
        changed = every(program.schedule, lambda each, one=one, to=other: to if each == one else each)  # type: ignore[misc]
        yield str(one), scheduled(program, changed)


def freed_early(program: Program) -> Broken:
    """Right after it has landed, before it is read; or what is sent, before it is."""
    assert program.schedule is not None
    for copy in some(one for one in program.schedule if isinstance(one, Copy) and one.landings):
        for value, device in ((copy.value, copy.target), (copy.sent, copy.source)):
            free = Free(value, device)
            if free not in list(program.schedule.flat()):
                continue
            left = every(program.schedule, lambda one, free=free: None if one == free else one)  # type: ignore[misc]
            at = list(left).index(copy)
            yield str(free), scheduled(program, Schedule((*list(left)[:at], free, *list(left)[at:])))


def heads_torn(program: Program) -> Broken:
    """An axis that is told apart behind an operation is cut one element elsewhere."""
    reshapes = (one for one in program.ops() if name_of(one) in ("reshape", "view", "unflatten"))
    read = {one.args[0]: one for one in reshapes if isinstance(one.args[0], Node)}
    torn = []
    for node, reader in read.items():
        state, after = state_of(node), state_of(reader)
        if not (isinstance(state, Split) and isinstance(after, Split) and is_shared(node)):
            continue
        if node.target is not TERMS and after.size and state.size > after.size > 1:
            torn.append((node, state))
    for node, state in some(torn) if torn else []:
        if moved(state) != state:
            yield node.name, placed(node, states=((moved(state),),) * len(placement_of(node).states))


def a_member_added(program: Program) -> Broken:
    """What the main device computes alone is said to be of all; and a member is named twice."""
    alone = [one for one in program.ops() if not is_shared(one)]
    for node in some(alone) if alone else []:
        yield node.name, placed(node, group=program.devices)
    for node in some(filter(is_shared, program.ops())):
        yield node.name, placed(node, group=(*placement_of(node).group, program.main))


@contextmanager
def of_size(node: Node, more: int) -> Iterator[None]:
    before = node.meta["value"]
    node.meta["value"] = replace(before, shape=(*before.shape[:-1], before.shape[-1] + more))
    try:
        yield
    finally:
        node.meta["value"] = before


def of_another_size(program: Program) -> Broken:
    """Memory is set aside, and so a value is put together, in other sizes."""
    for node in some(filter(assembles, program.transfers())):
        for more in (-1, 1):
            yield node.name, of_size(node, more)


def terms_of(program: Program) -> list[Node]:
    """What puts together what each device has one of: terms of a sum, or statistics."""
    return [one for one in program.transfers() if source_of(one).target in (TERMS, GROUP_STATISTICS)]


def terms_in_another_order(program: Program) -> Broken:
    """Two members say that the term of the other one is theirs; and what lands of two changes places."""
    for node in some(terms_of(program)):
        terms = source_of(node)
        state = state_of(terms)
        assert isinstance(state, Split)
        first, second, *others = state.segments[0]
        yield terms.name, placed(terms, states=((Split(0, ((second, first, *others),)),),))
    of_terms = set(terms_of(program))
    for copy in some(one for one in landing_copies(program) if one.value.node in of_terms):

        def turned(one: Landing) -> Landing:
            ranges = ((axis, 1 if start == 0 else 0, length) if axis == 0 else (axis, start, length)
                      for axis, start, length in one.into.ranges)  # fmt: skip
            return replace(one, into=Box(tuple(ranges)))

        yield str(copy), other_than(program, copy, with_first(copy, turned))


@contextmanager
def counted(terms: Node, more: int) -> Iterator[None]:
    before = terms.args
    terms.args = (*before[:-1], int(before[-1]) + more)  # type: ignore[call-overload]
    try:
        yield
    finally:
        terms.args = before


def a_term_twice(program: Program) -> Broken:
    """A member has two of the terms, so that another one's is left out, or there is one more than there are."""
    for node in some(terms_of(program)):
        terms = source_of(node)
        state = state_of(terms)
        assert isinstance(state, Split)
        (a, b), (_, d), *others = state.segments[0]
        twice = ((a, d), (d, d)) if b > a else ((a, a + 1), (a + 1, d))
        other = Split(0, ((*twice, *others),))
        if other != state:  # as where the second member has none
            yield terms.name, placed(terms, states=((other,),))
        for more in (-1, 1):
            yield terms.name, counted(terms, more)


def zeros_in_place_of_rows(program: Program) -> Broken:
    """A device has as many rows as its windows read, of which one is zeros."""
    halos = [one for one in program.transfers() if isinstance(state_of(one), Halo)]
    for node in some(halos) if halos else []:
        state = state_of(node)
        assert isinstance(state, Halo)
        (start, stop), (before, after) = state.bounds[1], state.zeros[1]
        bounds = (state.bounds[0], (start + 1, stop), *state.bounds[2:])
        zeros = (state.zeros[0], (before + 1, after), *state.zeros[2:])
        yield node.name, placed(node, states=((replace(state, bounds=bounds, zeros=zeros),),))


WAYS = (
    from_the_wrong_member, to_the_wrong_member, another_box, fewer_bytes, a_box_left_out, sent_twice, awaited_late,
    sent_late, set_aside_late, set_aside_early, set_aside_elsewhere, set_aside_like_another, freed_early, heads_torn,
    a_member_added, of_another_size, terms_in_another_order, a_term_twice, zeros_in_place_of_rows,
)  # fmt: skip


@pytest.mark.fifth
@pytest.mark.few(10)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_broken_is_refused(program: Program, way: Callable[[Program], Broken]) -> None:
    for words, broken in way(program):
        with broken:
            assert is_refused(program), words
    assert not is_refused(program)


def test_copies_of_two_pairs_of_devices_have_no_order(program: Program) -> None:
    """Which of two begins first, that stand beside each other, is for no device to know."""
    assert program.schedule is not None
    listed = list(program.schedule)
    pairs = [
        at
        for at, (one, other) in enumerate(pairwise(listed))
        if isinstance(one, Copy) and isinstance(other, Copy) and one.landings and other.landings
    ]
    for at in some(pairs):
        turned = (*listed[:at], listed[at + 1], listed[at], *listed[at + 2 :])
        with scheduled(program, Schedule(turned)):
            assert not is_refused(program), str(listed[at])

"""Predicted seconds go the way that speeds go, and those of states that are solved for are those of their schedule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds, speeds_of
from dovetail.compiler.ir.program import Program
from dovetail.explain.what_if import with_links
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.cost import cost_of
from dovetail.passes.simulate.timeline import timeline
from dovetail.passes.states.exchanges import Group
from dovetail.passes.states.fitting import Fitted, _in_states, fitted, seconds_of_states
from dovetail.passes.states.modes import posed
from dovetail.passes.states.recipes import recipes
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from testbed.published_states import traced as traced_entry
from testbed.zoo.full_size_diffusion import deepened
from tests.passes.states.groups import Attention, Gated, Layers, group, traced

CLOSE = 1e-9
TINY = 0.25
"""How far the seconds of a schedule may lie from those that states are solved for, where operations take microseconds.

Exchanges of several readers overlap in a schedule, and writing what a device has itself is counted in none but it."""
PUBLISHED = 0.10
"""The same of a published model."""

rates = st.floats(1e8, 1e12)


@functools.cache
def model() -> Program:
    """Attention with shared keys, and two gated layers."""
    return traced(Layers(Attention(8, 2, 16), Gated(128), Gated(128)), torch.randn(1, 256, 128))


@functools.cache
def shared(count: int, mode: str) -> tuple[Solution, Program]:
    """States of the model over equal cards, and a lowered program in them."""
    program = model().copy()
    cards = group(*[1] * count)
    program.rig = Rig.parse(f"{count}x 24GiB").only(cards.devices)
    found = solve(program, cards, mode)
    assert isinstance(found, Solution)
    return found, _in_states(program, found.decision)


@st.composite
def speeds(draw: st.DrawFn, count: int = 4) -> Speeds:
    """Equal cards with ways of any speed, some of them of pairs, and roots."""
    cards = [Device.named(f"cuda{at}") for at in range(count)]
    peer = draw(st.one_of(st.none(), st.just(0.0), rates))
    speed = Speed({"float32": draw(rates)}, draw(rates), draw(rates), draw(st.floats(0, 1e-4)), peer=peer)
    pairs = st.sets(st.sampled_from(cards), min_size=2, max_size=2).map(frozenset)
    ways = draw(st.dictionaries(pairs, rates, max_size=3))
    return Speeds({**dict.fromkeys(cards, speed), Device("cpu"): speed}, ways=ways, latency=draw(st.floats(0, 1e-4)))


def seconds_of(known: Speeds, flow: Sequence[Sequence[int]]) -> list[float]:
    """Those of an exchange, and of a schedule with several of them."""
    cards = tuple(one for one in known.devices if not one.is_host)
    exchange = Group(cards, (1,) * len(cards), known).seconds(tuple(map(tuple, flow)))
    return [exchange, *(timeline(shared(len(cards), mode)[1], known).seconds for mode in ("sequence", "tensor"))]


flows = st.lists(st.lists(st.integers(0, 10**8), min_size=4, max_size=4), min_size=4, max_size=4)


@settings(deadline=None, max_examples=12)
@given(speeds(), flows, st.floats(1, 100))
def test_more_bandwidth_never_predicts_slower(known: Speeds, flow: list[list[int]], times: float) -> None:
    for slow, quick in zip(seconds_of(known, flow), seconds_of(with_links(known, times), flow), strict=True):
        assert quick <= slow * (1 + CLOSE)


@settings(deadline=None, max_examples=12)
@given(speeds(), flows, st.lists(st.sampled_from(["", "root0", "root1"]), min_size=4, max_size=4))
def test_a_shared_root_never_predicts_quicker(known: Speeds, flow: list[list[int]], names: list[str]) -> None:
    cards = [one for one in known.devices if not one.is_host]
    roots = {card: name for card, name in zip(cards, names, strict=True) if name}
    for apart, joined in zip(seconds_of(known, flow), seconds_of(replace(known, roots=roots), flow), strict=True):
        assert apart <= joined * (1 + CLOSE)


@settings(deadline=None, max_examples=6)
@given(rates, rates, st.floats(0, 1e-4))
def test_more_shares_of_equal_cards_never_predict_more_computing(rate: float, memory: float, launch: float) -> None:
    speed = Speed({"float32": rate}, memory, 1e15, launch)
    taken: dict[str, list[float]] = {}
    for count in (2, 4, 8):
        cards = group(*[1] * count).devices
        question = posed(model(), Group(cards, (1,) * count, Speeds(dict.fromkeys(cards, speed), latency=0.0)), "free")
        for one in recipes(question):
            times = question.problem.times
            taken.setdefault(one.name, []).append(sum(some[one.choice[node]] for node, some in times.items()))
    alone = taken.pop("whole")
    assert alone == pytest.approx([alone[0]] * 3)
    assert taken
    for name, each in taken.items():
        assert all(more <= less * (1 + CLOSE) for less, more in zip([alone[0], *each], each, strict=False)), name


@settings(deadline=None, max_examples=6)
@given(st.floats(1e-6, 1e-3))
def test_the_start_of_each_operation_counts(launch: float) -> None:
    one = model().copy()
    one.rig = Rig.parse("cuda0=24GiB")
    PassManager(default_passes()).run(one)
    known = {at: Speeds({one.main: Speed({"float32": 1e12}, 1e12, 1e9, at)}) for at in (0.0, launch)}
    seconds = [timeline(one, some).seconds for some in known.values()]
    started = sum(bool(cost.flops or cost.read or cost.written) for cost in map(cost_of, one.ops()))
    assert seconds[1] - seconds[0] == pytest.approx(started * launch, rel=1e-6)


@pytest.mark.parametrize("mode", ["sequence", "tensor", "free"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_states_take_what_they_were_solved_for_by_their_schedule(count: int, mode: str) -> None:
    found, lowered = shared(count, mode)
    known = group(*[1] * count).speeds
    assert timeline(lowered, known).seconds == pytest.approx(found.account.seconds, rel=TINY)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequence", "tensor"])
@pytest.mark.parametrize("cards", ["2x L20", "4x L20", "4x RTX 4090"])
def test_of_a_published_model_too(cards: str, mode: str) -> None:
    program = traced_entry(deepened("flux-dev", 3))
    rig = Rig.parse(cards)
    program.rig = rig.only(one for one in rig.devices if not one.is_host)
    found = fitted(program, mode)
    assert isinstance(found, Fitted)
    solved, lowered = found.solution, _in_states(program, found.solution.decision)
    seconds = timeline(lowered, speeds_of(program.rig)).seconds
    assert seconds == pytest.approx(solved.account.seconds, rel=PUBLISHED)
    assert seconds_of_states(program, solved.decision) <= seconds * (1 + CLOSE)

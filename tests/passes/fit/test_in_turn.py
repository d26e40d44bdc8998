"""Layer splits through which parts of a call go in turn, as ways of the search: what they take, and when they win."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.compiler.devices import speeds
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec import parse_micro_batches
from dovetail.conventions.request import Request
from dovetail.fitting.asked import request_of, said_of_places, settings_of_request
from dovetail.fitting.chains import chain_of_trace, prepared
from dovetail.fitting.decide import Member, TracedCall, budgets_of, loads_of, machine_of
from dovetail.passes.batches.division import NotDivisible
from dovetail.passes.fit.chain import Chain
from dovetail.passes.fit.group_work import GroupWork, Work
from dovetail.passes.fit.in_turn import options_in_turn
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.part_work import PartWork, part_work
from dovetail.passes.fit.plan import plan_of, settings_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import Solution, fits
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.cost import OpCost
from dovetail.passes.simulate.timeline import timeline
from dovetail.passes.states.solution import NotPossible
from testbed.sharing import slowed

from .test_groups import CARDS, budgets
from .test_search import CPU, MIB, load

ROLES = {"part": "diffusion"}
NEAR = 0.1
"""How far the seconds of a way may lie from those of its schedule, which has the two ends of what is outside blocks."""


@dataclass(frozen=True)
class Divided(GroupWork):
    """Work of so many pictures whose parts are equal; of one mode is said what it takes, and there are no others."""

    whole: Load | None = None
    count: int = 2
    taken: float | None = None

    @property
    def pictures(self) -> int:  # type: ignore[override]
        return self.count

    def in_parts(self, count: int) -> list[tuple[PartWork, float]]:
        assert self.whole is not None
        chain = self.whole.chain
        one = tuple(
            tuple((replace(cost, flops=cost.flops / count), times) for cost, times in part.work)
            for part in (chain.rest, *chain.parts)
        )
        return [(PartWork((one,) * count), self.whole.times)]

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        if self.mode != "batch" or self.taken is None:
            return NotPossible(self.mode, "it cannot be")
        return Work(self.taken, (202 * MIB,) * len(devices), (5 * MIB,) * len(devices), 202 * MIB)


def component(pictures: int = 2, taken: float | None = None, asked: Asked | None = None, flops: float = 1e10) -> Load:
    """A component of 202 MiB, of which blocks take nearly all of the time."""
    one = load("diffusion", 10, 20, live=10, times=20, flops=flops)
    chain = replace(one.chain, rest=replace(one.chain.rest, work=((OpCost(1.0), 1),)))
    one = replace(one, chain=chain, asked=asked or Asked(mode="auto"))
    work = Divided([], lambda program: program, Rig(), "auto", whole=one, count=pictures, taken=taken)
    return replace(one, work=work)


def machine(cards: Sequence[Device] = CARDS, rates: Sequence[float] = (1e12,) * 4) -> Machine:
    """Cards whose ways to the host are slow, so that weights do not come and go, and to one another quick."""
    each = zip(cards, rates, strict=False)
    known = {card: Speed({"float32": rate}, 1e15, 1e6, 0.0, peer=1e12) for card, rate in each}
    every = Speeds({**known, CPU: Speed({"float32": 1e8}, 1e15, 1e6, 0.0)}, 1e6, latency=0.0)
    return Machine((*cards, CPU), every, CPU)


def found(one: Load, on: Machine, given: Budgets) -> Solution:
    solution = search([one], on, given)
    assert solution is not None
    assert fits(solution, given)
    return solution


@pytest.mark.parametrize(("pictures", "parts"), [(2, 2), (3, 2), (8, 8)])
@pytest.mark.parametrize("count", [2, 5])
def test_equal_parts_over_equal_devices_take_as_long_as_they_must(pictures: int, parts: int, count: int) -> None:
    cards = tuple(Device("cuda", index) for index in range(count))
    on = machine(cards, (1e12,) * count)
    given = Budgets({**dict.fromkeys(cards, 270 // count * MIB), CPU: 4 * MIB}, CPU)
    way = found(component(pictures), on, given).ways["diffusion"]
    assert (way.mode, way.micro_batches, way.devices) == ("layer", parts, cards)
    assert way.seconds == pytest.approx(20 * 0.1 * (parts + count - 1) / (parts * count), rel=0.01)
    settings = settings_of(Solution({"diffusion": way}), [component(pictures)])
    assert settings["--micro-batches"] == f"diffusion={parts}"
    assert "--split-mode" not in settings


def test_a_mode_that_is_quicker_is_taken() -> None:
    roomy = budgets(300, 300)
    on = machine(CARDS[:2])
    assert found(component(taken=1.2), on, roomy).ways["diffusion"].mode == "batch"
    assert found(component(taken=1.6), on, roomy).ways["diffusion"].micro_batches == 2
    assert found(component(), on, roomy).ways["diffusion"].micro_batches == 2


@pytest.mark.parametrize(
    ("asked", "pictures"),
    [
        (Asked(mode="auto"), 1),
        (Asked(mode="auto", micro_batches=1), 2),
        (Asked(mode="auto", chunks=2), 2),
        (Asked(mode="layer"), 2),
        (Asked(CARDS[:2], mode="auto", shares=(1.0, 1.0)), 2),
    ],
)
def test_there_is_none_of_one_picture_nor_where_something_else_was_asked_for(asked: Asked, pictures: int) -> None:
    way = found(component(pictures, asked=asked), machine(CARDS[:2]), budgets(150, 150)).ways["diffusion"]
    assert way.micro_batches == 1


def test_parts_wait_for_the_link_that_the_part_before_is_on() -> None:
    """So that what crosses takes as long in parts as whole."""
    one, given = component(8, asked=Asked(CARDS[:2], mode="auto", micro_batches=8)), budgets(150, 150)
    on = machine(CARDS[:2])
    slow = {device: replace(on.speeds[device], peer=1e6) for device in CARDS[:2]}
    on = Machine(on.devices, Speeds({**slow, CPU: on.speeds[CPU]}, 1e6, latency=0.0), CPU)
    (way,) = options_in_turn(one, on, given, (), 0.0)
    assert way.seconds >= 20 * MIB / 1e6


def test_the_number_that_was_asked_for_is_taken() -> None:
    way = found(component(8, asked=Asked(mode="auto", micro_batches=3)), machine(), budgets(150, 150)).ways["diffusion"]
    assert way.micro_batches == 3


@pytest.mark.parametrize("named", [(), CARDS[:2]])
@pytest.mark.parametrize("count", [2, 4])
def test_layers_through_which_parts_do_not_go_are_none_where_a_number_was_asked_for(
    named: tuple[Device, ...], count: int
) -> None:
    """Parts take longer here than the whole: no device has room for all blocks, and each part is as long as that."""
    slow = component(4, asked=Asked(named, mode="auto", micro_batches=count))
    assert isinstance(slow.work, Divided)
    slow = replace(slow, work=replace(slow.work, whole=replace(slow, chain=longer(slow.chain))))
    on, given = machine(CARDS[:2]), budgets(150, 150)
    ways = search([slow], on, given, {"diffusion": "layer"}), found(slow, on, given)
    assert [one.ways["diffusion"].micro_batches for one in ways if one is not None] == [count, count]


def longer(chain: Chain) -> Chain:
    """A chain that takes ten times as long."""
    work = [tuple((replace(cost, flops=10 * cost.flops), times) for cost, times in one.work) for one in chain.parts]
    return replace(chain, parts=tuple(replace(one, work=each) for one, each in zip(chain.parts, work, strict=True)))


@pytest.mark.parametrize(("asked", "taken", "kept"), [("2", 1, 1), ("2", 2, 2), ("4", 2, 2), (None, 1, 1)])
def test_the_request_of_a_way_that_was_found_has_its_number_of_parts(
    asked: str | None, taken: int, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = component(2)
    way = replace(found(one, machine(CARDS[:2]), budgets(150, 150)).ways["diffusion"], micro_batches=taken)
    plan = plan_of(Solution({"diffusion": way}), [one], budgets(150, 150))
    request = Request.parse(backend="cuda0&cuda1", rig="cuda0=1GiB,cuda1=1GiB", split_mode="auto", micro_batches=asked)
    asked_for = request_of(request, plan, {"diffusion": "diffusion"})
    assert asked_for.micro_batches_for("diffusion", "diffusion", CARDS[:2]) == kept
    assert ("is not computed in 2 micro-batches" in caplog.text) == (asked == "2" and taken == 1)


@settings(max_examples=25)
@given(
    st.lists(st.floats(1e11, 1e12), min_size=2, max_size=4), st.lists(st.integers(15, 250), min_size=2, max_size=4),
    st.integers(2, 8),
)  # fmt: skip
def test_blocks_are_given_out_once_within_budgets_and_never_slower_than_one_after_another(
    rates: list[float], mib: list[int], pictures: int
) -> None:
    count = min(len(rates), len(mib))
    cards, given = CARDS[:count], budgets(*mib[:count])
    on, one = machine(cards, rates), component(pictures)
    lists = [some for some in on.lists(given) if CPU not in some]
    for way in options_in_turn(one, on, given, lists, float("inf")):
        assert [block for start, end in way.ranges for block in range(start, end)] == list(range(10))
        assert len(way.devices) > 1
        assert fits(Solution({"diffusion": way}), given)
        known = dict(zip(cards, rates, strict=False))
        blocks = zip(way.devices, way.ranges, strict=True)
        seconds = [0.01 * (end - start) * 1e12 / known[card] for card, (start, end) in blocks]
        assert 20 * max(seconds) * 0.999 <= way.seconds <= 20 * sum(seconds) * 1.001


class Block(nn.Module):
    """Two layers one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def stack(pictures: int, depth: int = 6) -> Program:
    """A program of some blocks over tokens of some pictures."""
    module = nn.Sequential(*(Block() for _ in range(depth))).eval()
    return trace(module, (torch.zeros(pictures, 8, 64),), {})


def flops(some: Iterable[Iterable[tuple[OpCost, float]]]) -> float:
    return sum(cost.flops * times for work in some for cost, times in work)


@pytest.mark.fifth
def test_parts_have_all_the_arithmetic_of_the_whole_block_by_block() -> None:
    whole, work = chain_of_trace(stack(5)), part_work(prepared(stack(5)), 2)
    assert isinstance(work, PartWork)
    assert len(work.parts) == 2
    for at, one in enumerate((whole.rest, *whole.parts)):
        assert flops(part[at] for part in work.parts) == pytest.approx(flops([one.work]))


def test_parts_are_counted_of_a_program_without_devices_too() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    program = prepared(trace(module, (torch.zeros(2, 8, 64),), {}))
    program.rig = Rig()
    assert isinstance(part_work(program, 2), PartWork)


def test_what_cannot_be_taken_apart_has_no_parts() -> None:
    assert isinstance(part_work(prepared(stack(1)), 2), NotDivisible)


@pytest.mark.parametrize("pictures", [2, 4])
def test_a_way_takes_what_its_schedule_takes(pictures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = speeds.of_card
    monkeypatch.setattr(speeds, "of_card", lambda card: slowed(real(card), 1e-6, 1e-3))
    traced = stack(pictures)
    nbytes = sum(weight.nbytes for weight in traced.weights.values())
    room = int(0.9 * nbytes)
    request = Request.parse(rig=f"cuda0={room}B@L20,cuda1={room}B@L20,cpu=64KiB", split_mode="auto", components=ROLES)
    loads = loads_of({"part": Member("diffusion", "sampling", nbytes)}, [TracedCall("part", traced)], request)
    on, (given, _) = machine_of(request), budgets_of(request)
    (one,) = loads
    way = min(options_in_turn(one, on, given, on.lists(given), float("inf")), key=lambda way: way.seconds)
    placed = request_of(request, plan_of(Solution({"part": way}), loads, given), ROLES)
    assert placed.micro_batches_for("part", "diffusion") == way.micro_batches == pictures
    said = replace(request, micro_batches=parse_micro_batches(f"diffusion={pictures}", ROLES))
    again = request_of(said, plan_of(Solution({"part": way}), loads, given), ROLES)
    assert str(again.micro_batches) == f"diffusion={pictures}", "what was said is not said again by name"
    traced.rig = placed.rig_for("part", "diffusion")
    shares = placed.shares_for("part", "diffusion", traced.rig.devices)
    lowered = PassManager(default_passes(shares, micro_batches=way.micro_batches)).run(traced)
    assert timeline(lowered, on.speeds).seconds == pytest.approx(way.seconds, rel=NEAR)


@pytest.mark.parametrize(("given", "said"), [(None, {}), ("diffusion=2", {"--micro-batches": "diffusion=2"})])
def test_the_command_has_micro_batches_as_they_were_asked_for_or_as_a_plan_has_them(
    given: str | None, said: dict[str, str]
) -> None:
    asked = Request.parse(rig="cuda0=1GiB,cuda1=1GiB", micro_batches=given, components=ROLES)
    found = replace(asked, micro_batches=parse_micro_batches(given or "part=2", ROLES))
    assert said_of_places(asked, settings_of_request(found, ROLES)) == said
    assert "--micro-batches" not in settings_of_request(found, ROLES, alone=ROLES), "they say nothing of one device"

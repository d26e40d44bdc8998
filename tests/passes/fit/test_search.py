"""The plan of a whole pipeline: never worse than simpler ways to plan, always within every budget."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds, speeds_of
from dovetail.compiler.spec.residency import Amounts, Residency
from dovetail.passes.fit.chain import Chain, Part
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.options import Option, option, options_of, proportional
from dovetail.passes.fit.plan import settings_of
from dovetail.passes.fit.search import SLACK, compose, search
from dovetail.passes.fit.solution import Solution, fits, peaks
from dovetail.passes.fit.trial import Trial
from dovetail.passes.fit.workload import Asked, Budgets, Load, foreseeing, taken_off
from dovetail.passes.simulate.cost import OpCost
from tests.cases import slow_but

MIB = 2**20
CPU, FAST, SLOW = Device("cpu"), Device("cuda"), Device("cuda", 1)
PHASES = {"te": "conditioning", "diffusion": "sampling", "vae": "decoding"}


def part(name: str, mib: int, live: int = 1, flops: float = 1e9, boundary: int = 1) -> Part:
    return Part(name, mib * MIB, mib * MIB, live * MIB, boundary * MIB, ((OpCost(flops, 0, 1), 1),))


def load(name: str, blocks: int, mib: int, live: int = 4, times: float = 1, flops: float = 1e9, **more: object) -> Load:
    parts = tuple(part(f"blocks.{i}", mib, live, flops) for i in range(blocks))
    chain = Chain(name, part("rest", 2, live, flops), parts)
    role = name.split("_")[0]
    return Load(name, role, PHASES[role], chain, times, nbytes=chain.nbytes, **more)  # type: ignore[arg-type]


def machine(devices: Sequence[Device] = (FAST, SLOW, CPU), link: float = 1e9, disk: float = 1e8) -> Machine:
    of = {FAST: 1e12, SLOW: 1e11, CPU: 1e10}
    speeds = {device: Speed({"float32": of[device]}, 1e15, link, 0.0) for device in (*devices, CPU)}
    return Machine(tuple(devices), Speeds(speeds, disk), CPU)


def budgets(fast: int, slow: int, cpu: int) -> Budgets:
    return Budgets({FAST: fast * MIB, SLOW: slow * MIB, CPU: cpu * MIB}, CPU)


def pipeline(**asked: Asked) -> list[Load]:
    te = load("te", 4, 20, flops=1e10)
    diffusion = load("diffusion", 10, 20, live=10, times=20, flops=1e10)
    tiles = (replace(diffusion.chain, rest=part("rest", 10, 10), parts=()), 4.0)
    vae = load("vae", 0, 0, live=60, flops=1e9, tiles=tiles)
    return [replace(one, asked=asked.get(one.name, Asked())) for one in (te, diffusion, vae)]


def found(loads: Sequence[Load], given: Budgets, on: Machine | None = None) -> Solution:
    solution = search(loads, on or machine(), given)
    assert solution is not None
    assert fits(solution, given)
    assert solution.ways.keys() == {one.name for one in loads}
    return solution


def test_what_fits_on_the_fastest_device_stays_there() -> None:
    solution = found(pipeline(), budgets(1000, 1000, 1000))
    assert {way.devices for way in solution.ways.values()} == {(FAST,)}
    assert {way.residency for way in solution.ways.values()} == {Residency.DEVICE}


def test_components_take_turns_on_a_device_that_has_not_room_for_all() -> None:
    ways = found(pipeline(), budgets(300, 0, 1000)).ways
    assert ways["diffusion"].residency is Residency.DEVICE
    assert ways["te"].residency is Residency.HOST
    assert ways["te"].devices == (FAST,)


def test_a_slow_second_device_is_used_where_it_helps() -> None:
    slow_link = machine(link=1e7)
    assert set(found(pipeline(), budgets(150, 150, 1000), slow_link).ways["diffusion"].devices) == {FAST, SLOW}
    alone = found(pipeline(), budgets(150, 150, 1000), machine(link=1e12))
    assert alone.ways["diffusion"].devices == (FAST,), "streaming is faster than the slow device"


def test_what_is_streamed_is_brought_in_every_call_and_the_rest_for_the_phase() -> None:
    one = load("diffusion", 10, 20, times=5)
    way = option(one, machine(), budgets(100, 0, 1000), (FAST,), Residency.HOST, False)
    assert way is not None
    assert way.streamed == {FAST: 160 * MIB}, "two slots of 20 and the values leave room for two blocks"
    assert way.comes == {FAST: (2 + 40 + 40) * MIB}
    assert way.host == 202 * MIB


def test_weights_stay_on_one_device_as_far_as_others_can_do_with_what_is_left() -> None:
    """They need not be brought for each picture; an encoder, which is read once a picture, comes block by block."""
    te, diffusion = load("te", 8, 10, flops=1e8), load("diffusion", 10, 20, live=10, times=20, flops=1e10)
    given = budgets(150, 0, 1000)
    solution = found([te, diffusion], given)
    way, beside = solution.ways["diffusion"], solution.ways["te"]
    assert way.devices == beside.devices == (FAST,)
    assert 0.5 * 150 * MIB < way.amounts.on_device == way.stays[FAST]
    assert way.host == 202 * MIB - way.amounts.on_device
    assert beside.streamed[FAST] > 0
    apart = [option(one, machine(), given, (FAST,), Residency.HOST, False) for one in (te, diffusion)]
    assert solution.seconds < sum(one.seconds for one in apart if one is not None)


@pytest.mark.parametrize("seed", range(12))
def test_what_stays_in_part_makes_no_plan_slower(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    loads, on = random_pipeline(rng), machine((FAST, CPU), link=10 ** rng.uniform(7.0, 10.0))
    given = Budgets({FAST: rng.choice([40, 60, 100, 150]) * MIB, CPU: 1000 * MIB}, CPU)
    with_parts = search(loads, on, given)
    monkeypatch.setattr("dovetail.passes.fit.search._with_parts", lambda trial, columns, best: best)
    without = search(loads, on, given)
    assert (with_parts is None) == (without is None)
    if with_parts and without:
        assert fits(with_parts, given)
        assert with_parts.seconds <= without.seconds * SLACK


def test_a_phase_that_needs_room_for_values_is_done_in_tiles() -> None:
    assert found(pipeline(), budgets(50, 0, 330)).ways["vae"].tiled
    assert not found(pipeline(), budgets(100, 0, 1000)).ways["vae"].tiled


@pytest.mark.parametrize(
    "asked",
    [
        Asked((SLOW,)),
        Asked((CPU,)),
        Asked((SLOW, FAST)),
        Asked(residency=Residency.DISK),
        Asked((FAST,), Residency.HOST),
    ],
)
def test_what_was_asked_is_done(asked: Asked) -> None:
    way = found(pipeline(diffusion=asked), budgets(1000, 1000, 1000)).ways["diffusion"]
    if asked.devices:
        assert way.devices == asked.devices[: len(way.devices)]
    if asked.residency:
        assert way.residency is asked.residency


def test_shares_that_were_asked_for_decide_the_ranges() -> None:
    way = found(pipeline(diffusion=Asked((FAST, SLOW), shares=(1.0, 1.0))), budgets(1000, 1000, 1000)).ways["diffusion"]
    assert way.ranges == ((0, 5), (5, 10))


def test_nothing_is_found_where_nothing_fits() -> None:
    assert search(pipeline(), machine(), budgets(5, 5, 5)) is None
    assert search(pipeline(diffusion=Asked((SLOW,), Residency.DEVICE)), machine(), budgets(1000, 100, 1000)) is None


def test_the_host_is_a_budget_too() -> None:
    on_disk = found(pipeline(), budgets(100, 0, 60))
    assert on_disk.ways["diffusion"].residency is Residency.DISK
    assert max(n for (_, device), n in peaks(on_disk, budgets(100, 0, 60)).items() if device == CPU) <= 60 * MIB


@pytest.mark.parametrize("seed", range(16))
def test_lists_of_devices_are_all_orders_of_their_kinds_of_each_number_of_devices(seed: int) -> None:
    rng = random.Random(seed)
    cards = tuple(Device("cuda", index) for index in range(rng.randint(0, 5)))
    sizes = {card: rng.choice((100, 50, 25)) for card in cards}  # of three kinds, a percent apart within each
    nbytes = {card: size * MIB * rng.randint(990, 1000) // 1000 for card, size in sizes.items()}
    on = Machine((*cards, CPU), Speeds(dict.fromkeys((*cards, CPU), Speed({"float32": 1e9}, 1e9, 1e9, 0.0)), 1e8), CPU)
    alike = {**sizes, CPU: -1}
    orders = [order for count in range(1, len(cards) + 1) for order in itertools.permutations(cards, count)]
    every = [*(one for one in orders if len(one) > 1), *((*one, CPU) for one in orders)]
    kinds = {tuple(alike[device] for device in order): order for order in reversed(every)}
    differing = [order for order in every if kinds[tuple(alike[device] for device in order)] == order]
    lists = on.lists(Budgets({**nbytes, CPU: MIB}, CPU))
    alone = len(cards) + 1
    assert lists[:alone] == [(device,) for device in (*cards, CPU)]
    assert len(lists[alone:]) == len({*lists[alone:]}) == min(32, len(differing))
    assert {*lists[alone:]} <= {*differing}
    assert {(len(one), CPU in one) for one in lists[alone:]} == {(len(one), CPU in one) for one in differing}
    assert all(sizes[card] == max(sizes.values()) for card in (lists[alone][0] for _ in cards[:1]) if card != CPU)


def test_cards_that_differ_by_next_to_nothing_work_together_in_any_order() -> None:
    cards = tuple(Device("cuda", index) for index in range(4))
    speed = machine().speeds[FAST]
    on = Machine((*cards, CPU), Speeds({**dict.fromkeys(cards, speed), CPU: machine().speeds[CPU]}, 1e8), CPU)
    one = load("diffusion", 12, 20, live=2, times=20)
    for sizes in ([68, 68, 68, 68], [67, 68, 68, 67], [68, 67, 67, 67]):
        given = Budgets({**{card: size * MIB for card, size in zip(cards, sizes, strict=True)}, CPU: 1000 * MIB}, CPU)
        assert len(found([one], given, on).ways["diffusion"].devices) == 4, sizes


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 3), (2, 3)])
def test_cards_that_are_joined_work_together(pair: tuple[int, int]) -> None:
    cards = tuple(Device("cuda", index) for index in range(4))
    joined = frozenset(cards[index] for index in pair)
    speeds = Speeds({**dict.fromkeys(cards, machine().speeds[FAST]), CPU: machine().speeds[CPU]}, 1e8, {joined: 1e12})
    one = load("diffusion", 12, 20, live=2, times=20)
    given = Budgets({**dict.fromkeys(cards, 130 * MIB), CPU: 1000 * MIB}, CPU)
    assert {*found([one], given, Machine((*cards, CPU), speeds, CPU)).ways["diffusion"].devices} == joined


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("pair", ["cuda0-cuda1", "cuda2-cuda3"])
@pytest.mark.parametrize("way", ["1GB/s", "no P2P"])
def test_a_slow_way_between_two_cards_can_be_avoided(pair: str, way: str, count: int) -> None:
    rig = Rig.parse(f"{count}x H100,64GiB;{pair}={way}")
    slow = {Device.named(name) for name in pair.split("-")}
    lists = Machine(rig.devices, speeds_of(rig), CPU).lists(Budgets(rig.free, CPU))
    whole = [order for order in lists if len(order) == count and CPU not in order]
    assert any(all(set(two) != slow for two in itertools.pairwise(order)) for order in whole)


def test_sixteen_cards_that_are_joined_in_pairs_are_of_one_kind() -> None:
    links = "".join(f";cuda{index}-cuda{index + 1}=NVLink" for index in range(0, 16, 2))
    rig = Rig.parse(f"16x RTX 3090,64GiB{links}")
    on = Machine(rig.devices, speeds_of(rig), CPU)
    assert len({kind for card, kind in on.kinds(Budgets(rig.free, CPU)).items() if card != CPU}) == 1
    two = next(order for order in on.lists(Budgets(rig.free, CPU)) if len(order) == 2 and CPU not in order)
    assert two[0].index // 2 == two[1].index // 2, "joined ones"


def test_many_cards_are_many_lists_and_no_more() -> None:
    cards = tuple(Device("cuda", index) for index in range(64))
    on = Machine((*cards, CPU), Speeds(dict.fromkeys((*cards, CPU), machine().speeds[CPU]), 1e8), CPU)
    for nbytes in (dict.fromkeys(cards, MIB), {card: 2 ** (1 + card.index) for card in cards}):
        lists = on.lists(Budgets({**nbytes, CPU: MIB}, CPU))
        assert len(lists) <= 65 + 32
        assert {64, 65} <= {*map(len, lists)}, "all of them, with the host and without it"


def random_pipeline(rng: random.Random) -> list[Load]:
    loads = [load(f"te_{i}", rng.randint(1, 4), rng.randint(5, 30), flops=1e8) for i in range(rng.randint(1, 2))]
    loads.append(
        load("diffusion", rng.randint(2, 8), rng.randint(5, 40), rng.randint(1, 20), 10, 10 ** rng.uniform(8, 11))
    )
    return [*loads, load("vae", 1, rng.randint(1, 10), rng.randint(5, 80))]


@pytest.mark.parametrize("seed", range(24))
def test_a_plan_is_never_worse_than_partitions_composed_or_the_proportional_split(seed: int) -> None:
    rng = random.Random(seed)
    loads, on = random_pipeline(rng), machine(link=10 ** rng.uniform(7, 10), disk=10 ** rng.uniform(6, 9))
    given = budgets(*(rng.choice([60, 120, 300, 600]) for _ in range(3)))
    solution = search(loads, on, given)
    for other in simple_plans(loads, on, given):
        if other is not None and fits(other, given):
            assert solution is not None
            assert solution.seconds <= other.seconds * SLACK * (1 + 1e-6)


def simple_plans(loads: list[Load], on: Machine, given: Budgets) -> list[Solution | None]:
    lists = [one for n in (1, 2, 3) for one in itertools.permutations(on.devices, n) if CPU not in one[:-1]]
    split = [proportional(one, on, given, (FAST, SLOW)) for one in loads]
    return [
        compose(Trial(loads, on, given, lists, list(Residency))),
        Solution({w.name: w for w in split if w}) if all(split) else None,
    ]


@pytest.mark.fifth
@pytest.mark.parametrize("seed", slow_but(range(4), range(8)))
def test_a_plan_is_the_best_of_all_combinations_of_ways(seed: int) -> None:
    rng = random.Random(seed)
    loads, on = random_pipeline(rng), machine()
    given = budgets(*(rng.choice([60, 120, 300]) for _ in range(3)))
    lists = [(FAST,), (SLOW,), (CPU,), (FAST, SLOW)]
    columns: list[list[Option]] = [list(options_of(one, on, given, lists, list(Residency))) for one in loads]
    best = min(
        (
            one.seconds
            for ways in itertools.product(*columns)
            if fits(one := Solution({w.name: w for w in ways}), given)
        ),
        default=None,
    )
    solution = search(loads, on, given)
    if best is not None:
        assert solution is not None
        assert solution.seconds <= best * SLACK * (1 + 1e-6)


def test_what_has_room_in_host_memory_is_streamed_though_an_even_part_from_disk_would_not_pay() -> None:
    """The second card is ten times slower; what the first one streams is less than what lies in host memory."""
    one = load("diffusion", 12, 10, times=10, flops=9e9)
    amounts = Amounts(0, 60 * MIB)
    way = option(one, machine(disk=3e7), budgets(100, 60, 1000), (FAST, SLOW), Residency.DISK, False, amounts=amounts)
    assert way is not None
    assert way.devices == (FAST,)
    assert 0 < way.streamed[FAST] <= way.host


@pytest.mark.parametrize("seed", range(12))
def test_a_list_of_devices_that_is_not_tried_has_no_better_way(seed: int) -> None:
    """With no more devices than those of the list: what other devices have left is for other components."""
    rng = random.Random(seed)
    cards = [Device("cuda", index) for index in range(5)]
    rates = rng.choices((1e11, 5e11, 1e12), k=len(cards))
    speeds = {one: Speed({"float32": rate}, 1e15, 1e9, 0.0) for one, rate in zip(cards, rates, strict=True)}
    on = Machine((*cards, CPU), Speeds({**speeds, CPU: Speed({"float32": 1e10}, 1e15, 1e9, 0.0)}, 1e8), CPU)
    given = Budgets(
        {**{one: rng.choice([40, 60, 100, 200]) * MIB for one in cards}, CPU: rng.choice([60, 300]) * MIB}, CPU
    )
    places = [Residency.DEVICE, Residency.HOST, Residency.DISK]
    for one in random_pipeline(rng):
        tried = list(options_of(one, on, given, on.lists(given), places))
        for devices, residency, tiled in itertools.product(on.lists(given), places, one.ways()):
            way = option(replace(one), on, given, devices, residency, tiled)
            others = [other.seconds for other in tried if set(other.devices) <= set(devices) and other.tiled == tiled]
            assert way is None or min(others) <= way.seconds * (1 + 1e-9)


def test_a_way_is_found_once_for_what_its_devices_may_use() -> None:
    one, on = load("diffusion", 10, 20), machine()
    way = option(one, on, budgets(150, 100, 300), (FAST,), Residency.HOST, False)
    assert option(one, on, budgets(150, 200, 100), (FAST,), Residency.HOST, False) is way
    assert option(one, on, budgets(200, 100, 300), (FAST,), Residency.HOST, False) != way
    slower = option(one, machine(link=1e7), budgets(150, 100, 300), (FAST,), Residency.HOST, False)
    assert slower
    assert way
    assert slower.seconds > way.seconds


def test_an_option_has_all_weights_of_its_component() -> None:
    one = load("diffusion", 10, 20)
    for devices in [(FAST,), (FAST, SLOW), (SLOW, CPU)]:
        for residency in Residency:
            way = option(one, machine(), budgets(150, 100, 300), devices, residency, False)
            if way is not None:
                assert sum(way.weights.values()) + sum(way.streamed.values()) == one.nbytes


def test_what_does_not_fit_in_host_memory_rests_on_disk_and_only_that() -> None:
    """Disk is ten times slower than the way from the host's memory."""
    loads = [load("diffusion", 20, 20, live=5, times=50, flops=1e9)]
    given = Budgets({FAST: 80 * MIB, CPU: 300 * MIB}, CPU)
    way = found(loads, given, machine((FAST, CPU))).ways["diffusion"]
    assert way.residency is Residency.DISK
    assert 250 * MIB < way.amounts.in_memory <= 300 * MIB
    assert way.host == way.amounts.in_memory
    on_disk = replace(loads[0], asked=Asked((FAST,), Residency.DISK))
    alone = found([on_disk], given, machine((FAST, CPU))).ways["diffusion"]
    assert way.seconds < 0.5 * alone.seconds


def test_what_the_host_has_no_room_for_stays_on_the_card_and_the_rest_is_streamed() -> None:
    """400 MiB, 300 of which the host takes: without files they are computed on the card, and not on the host."""
    loads = [load("diffusion", 20, 20, live=5, times=50, flops=1e9)]
    loads = [replace(loads[0], in_files=False)]
    given = Budgets({FAST: 200 * MIB, CPU: 300 * MIB}, CPU)
    solution = found(loads, given, machine((FAST, CPU)))
    way = solution.ways["diffusion"]
    assert (way.devices, way.residency) == ((FAST,), Residency.HOST)
    assert way.host <= 300 * MIB
    assert abs(way.stays[FAST] - way.amounts.on_device) < 1024
    assert way.stays[FAST] + way.host == loads[0].nbytes
    assert settings_of(solution, loads)["--params-backend"] == f"diffusion=device:{way.amounts.on_device // MIB}MiB&cpu"
    roomy = found(loads, Budgets({FAST: 200 * MIB, CPU: 600 * MIB}, CPU), machine((FAST, CPU)))
    assert solution.seconds <= roomy.seconds * 1.02


def test_what_was_said_of_the_card_the_host_and_the_disk_is_kept_to_and_said_again() -> None:
    asked = Asked((FAST,), Residency.DISK, amounts=Amounts(40 * MIB, 128 * MIB))
    loads = [load("diffusion", 20, 20, live=5, times=50, asked=asked)]
    solution = found(loads, Budgets({FAST: 120 * MIB, CPU: 300 * MIB}, CPU), machine((FAST, CPU)))
    way = solution.ways["diffusion"]
    assert abs(way.stays[FAST] - 40 * MIB) < 1024
    assert way.host == 128 * MIB
    assert settings_of(solution, loads)["--params-backend"] == "diffusion=device:40MiB&cpu:128MiB&disk"


def test_denoisers_of_phases_of_their_own_use_a_card_in_turn() -> None:
    """Each fits on the card and both do not: where one comes after the other, nothing is brought in each step."""
    first = load("diffusion", 10, 20, times=20, flops=1e9)
    second = replace(first, name="diffusion_2", chain=replace(first.chain, name="diffusion_2"))
    given, on = Budgets({FAST: 250 * MIB, CPU: 900 * MIB}, CPU), machine((FAST, CPU))
    in_turn = found([first, replace(second, phase="sampling 2")], given, on)
    together = found([first, second], given, on)
    assert not any(sum(way.streamed.values()) for way in in_turn.ways.values())
    assert any(sum(way.streamed.values()) for way in together.ways.values())
    assert in_turn.seconds < together.seconds


def test_what_was_said_of_host_memory_and_disk_is_kept_to_and_said_again() -> None:
    asked = Asked((FAST,), Residency.DISK, amounts=Amounts(in_memory=128 * MIB))
    loads = [load("diffusion", 20, 20, live=5, times=50, asked=asked)]
    given = Budgets({FAST: 80 * MIB, CPU: 300 * MIB}, CPU)
    solution = found(loads, given, machine((FAST, CPU)))
    assert solution.ways["diffusion"].amounts.in_memory == 128 * MIB
    assert settings_of(solution, loads)["--params-backend"] == "diffusion=cpu:128MiB&disk"


def test_devices_that_share_the_memory_of_the_host_have_one_budget_with_it() -> None:
    loads = [load("te", 4, 20), load("diffusion", 10, 20)]
    apart = Budgets({FAST: 250 * MIB, CPU: 250 * MIB}, CPU)
    assert search(loads, machine((FAST, CPU)), apart) is not None
    shared = replace(apart, shared=frozenset({FAST}))
    solution = found(loads, shared, machine((FAST, CPU)))
    for phase in ("conditioning", "sampling"):
        of = peaks(solution, shared)
        assert of[phase, FAST] + of[phase, CPU] <= 250 * MIB
    kept = [replace(one, asked=Asked(residency=Residency.DEVICE)) for one in loads]
    assert search(kept, machine((FAST, CPU)), apart) is not None
    assert search(kept, machine((FAST, CPU)), shared) is None


def test_what_one_component_needs_more_than_foreseen_takes_room_from_no_other() -> None:
    loads, given = pipeline(), budgets(240, 0, 1000)
    before = found(loads, given)
    again, left = foreseeing(loads, given, {("vae", FAST): 185 * MIB})
    after = found(again, left)
    assert after.ways["vae"].devices == (CPU,), "60 MiB and 185 are more than its device has"
    assert after.ways["diffusion"] == before.ways["diffusion"]
    assert left == given
    _, left = foreseeing(loads, given, {("", FAST): 185 * MIB})
    assert left.of(FAST) == 55 * MIB


def test_where_more_of_a_component_mended_nothing_all_have_less_of_the_device() -> None:
    over = {("vae", FAST): 100}
    first = taken_off(over, 1)
    assert first == {("vae", FAST): 102}
    assert taken_off(over, 2, first) == {("", FAST): 102}


def test_each_card_is_the_main_one_of_lists_that_are_tried() -> None:
    cards = tuple(Device("cuda", index) for index in range(4))
    rates = {card: Speed({"float32": 1e12 / (1 + card.index)}, 1e15, 1e9, 0.0) for card in cards}
    on = Machine((*cards, CPU), Speeds({**rates, CPU: machine().speeds[CPU]}, 1e8), CPU)
    lists = on.lists(Budgets({**dict.fromkeys(cards, 100 * MIB), CPU: 100 * MIB}, CPU))
    for count in (2, 3, 4):
        assert {one[0] for one in lists if len(one) == count and CPU not in one} == {*cards}


@pytest.mark.parametrize(("fast", "slow"), [(150, 50), (130, 50), (110, 60)])
def test_what_one_card_streams_comes_from_disk_though_another_one_keeps_its_own(fast: int, slow: int) -> None:
    """Memory is spread evenly over all weights, so that what the other card keeps of it is of no use."""
    one, given = load("diffusion", 10, 20, flops=1e6), budgets(fast, slow, 120)
    way = option(one, machine(), given, (FAST, SLOW), Residency.DISK, False, amounts=Amounts(0, 100 * MIB))
    assert way is not None
    rest = one.chain.rest.nbytes
    own = {
        device: (end - start) * 20 * MIB + (rest if device == FAST else 0)
        for device, (start, end) in zip(way.devices, way.ranges, strict=True)
    }
    in_memory = {device: nbytes * 100 * MIB / one.nbytes for device, nbytes in own.items()}
    from_disk = sum(max(0, way.streamed.get(device, 0) - in_memory[device]) for device in own)
    assert way.seconds - way.bringing >= from_disk / 1e8

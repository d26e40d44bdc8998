"""Groups of devices that compute a component together, as ways of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.spec.residency import Amounts, Residency
from dovetail.passes.fit.group_work import GroupWork, Work
from dovetail.passes.fit.groups import group_option, groups_of, why_no_group
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.plan import plan_of, settings_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import Solution, fits
from dovetail.passes.fit.trial import places_of
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.states.solution import NotPossible

from .test_search import CPU, MIB, load

CARDS = tuple(Device("cuda", index) for index in range(4))
PARTS = {"sequence": lambda _: 1.0, "tensor": lambda count: 1 / count}


class Known(GroupWork):
    """Work that is said: of so many seconds on one device, shared out, with weights whole or parted."""

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        if self.mode == "batch":
            return NotPossible("batch", "the inputs are of one picture")
        count, whole = len(devices), 200 * MIB
        part = int(PARTS[self.mode](count) * whole)
        return Work(20 * 0.11 / count, (part,) * count, (5 * MIB,) * count, whole)


class Wide(Known):
    """The same with many values on devices, or with few of them in states that take half as much longer."""

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        work = super().over(devices)
        assert isinstance(work, Work)
        if not room:
            return replace(work, alive=(90 * MIB,) * len(devices))
        if min(room) < work.weights[0] + work.alive[0]:
            return NotPossible(self.mode, "no recipe keeps to the bytes that devices may have")
        return replace(work, seconds=1.5 * work.seconds)


def machine(cards: Sequence[Device] = CARDS, slow: Sequence[Device] = ()) -> Machine:
    rates = {**dict.fromkeys(cards, 1e12), **dict.fromkeys(slow, 1e11), CPU: 1e10}
    speeds = {device: Speed({"float32": rate}, 1e15, 1e9, 0.0) for device, rate in rates.items()}
    return Machine((*cards, *slow, CPU), Speeds(speeds, 1e8), CPU)


def budgets(*mib: int, cpu: int = 1000) -> Budgets:
    return Budgets({**{card: n * MIB for card, n in zip(CARDS, mib, strict=False)}, CPU: cpu * MIB}, CPU)


def asked(mode: str, **more: object) -> Load:
    """A component of 202 MiB of weights whose devices are open."""
    one = load("diffusion", 10, 20, live=10, times=20, flops=1e10)
    return replace(one, asked=Asked(mode=mode, **more), work=Known([], lambda program: program, Rig(), mode))  # type: ignore[arg-type]


def found(one: Load, on: Machine, given: Budgets) -> Solution:
    solution = search([one], on, given)
    assert solution is not None
    assert fits(solution, given)
    return solution


@given(st.lists(st.sampled_from(["cuda", "xpu"]), min_size=1, max_size=12), st.data())
def test_groups_are_of_one_kind_and_few(kinds: list[str], data: st.DataObject) -> None:
    cards = [Device(kind, index) for index, kind in enumerate(kinds)]
    slow = data.draw(st.sets(st.sampled_from(cards)))
    on = machine([one for one in cards if one not in slow], sorted(slow, key=str))
    groups = groups_of(on, Budgets(dict.fromkeys(on.devices, MIB), CPU))
    assert all(len(set(group)) == len(group) > 1 for group in groups)
    assert all(len({one.kind for one in group}) == 1 for group in groups)
    assert len(groups) <= 32
    for kind in set(kinds):
        of_kind = {one for one in cards if one.kind == kind}
        assert len(of_kind) == 1 or any(set(group) == of_kind for group in groups)
        assert all(one == CPU or one in cards for group in groups for one in group)


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
def test_a_mode_takes_all_devices_where_that_is_quickest(mode: str) -> None:
    way = found(asked(mode), machine(), budgets(300, 300, 300, 300)).ways["diffusion"]
    assert way.devices == CARDS
    assert way.mode == mode
    assert way.residency is Residency.DEVICE
    assert way.seconds == pytest.approx(20 * 0.11 / 4)
    part = PARTS[mode](4)
    assert all(way.stays[card] == pytest.approx(part * 202 * MIB, rel=0.02) for card in CARDS)
    assert set(way.live.values()) == {5 * MIB}


def test_devices_without_room_for_all_weights_hold_parts_of_them() -> None:
    small = budgets(70, 70, 70, 70, cpu=100)
    assert search([replace(asked("sequence"), in_files=False)], machine(), small) is None
    way = found(asked("tensor"), machine(), small).ways["diffusion"]
    assert (way.devices, way.residency) == (CARDS, Residency.DEVICE)


def test_states_are_solved_for_again_where_the_quickest_have_no_room() -> None:
    one = replace(asked("tensor"), work=Wide([], lambda program: program, Rig(), "tensor"))
    for mib, slower in ((300, 1.0), (80, 1.5)):
        way = found(one, machine(), budgets(mib, mib, mib, mib)).ways["diffusion"]
        assert (way.devices, way.residency) == (CARDS, Residency.DEVICE)
        assert way.seconds == pytest.approx(slower * 20 * 0.11 / 4)
    assert "90.0 MiB of values" in why_no_group(one, machine(), budgets(40, 40), places_of([one], budgets(40, 40)))


def test_weights_that_do_not_fit_on_the_devices_come_and_go() -> None:
    way = found(asked("sequence"), machine(), budgets(100, 100, 100, 100)).ways["diffusion"]
    assert way.residency is Residency.HOST
    assert way.host + way.amounts.on_device == 202 * MIB
    assert all(way.streamed[card] > 0 for card in way.devices)
    assert way.seconds > 20 * 0.11 / len(way.devices)


def test_weights_that_each_device_has_all_of_stay_there_as_far_as_there_is_room() -> None:
    given = budgets(150, 150, 150, 150)
    one, on = asked("sequence"), machine()
    way = found(one, on, given).ways["diffusion"]
    assert way.residency is Residency.HOST
    assert 0.5 * 150 * MIB < way.amounts.on_device < 150 * MIB
    assert way.host == 202 * MIB - way.amounts.on_device
    assert all(way.stays[card] == pytest.approx(way.amounts.on_device, rel=0.02) for card in way.devices)
    work = Known([], lambda program: program, Rig(), "sequence").over(way.devices)
    assert isinstance(work, Work)
    brought = group_option(one, on, given, way.devices, Residency.HOST, work)
    assert brought is not None
    assert brought.seconds > way.seconds
    assert brought.bringing > 3 * way.bringing
    typed = settings_of(Solution({"diffusion": way}), [one])["--params-backend"]
    assert typed.startswith("diffusion=device:")
    assert typed.endswith("&cpu")


@pytest.mark.parametrize("by", ["root", "memory", "disk"])
def test_what_a_group_streams_takes_as_long_as_what_its_devices_share(by: str) -> None:
    one, given, apart = asked("sequence"), budgets(100, 100, 100, 100), machine()
    residency = Residency.DISK if by == "disk" else Residency.HOST
    host = replace(apart.speeds[CPU], bandwidth=1e9)
    shared = {
        "root": replace(apart.speeds, roots=dict.fromkeys(CARDS, "root0")),
        "memory": replace(apart.speeds, devices={**apart.speeds.devices, CPU: host}),
        "disk": apart.speeds,
    }[by]
    work = Known([], lambda program: program, Rig(), "sequence").over(CARDS)
    assert isinstance(work, Work)
    way = group_option(one, replace(apart, speeds=shared), given, CARDS, residency, work)
    assert way is not None
    streamed = sum(way.streamed.values())
    assert streamed > 4 * 100 * MIB
    assert way.seconds >= one.times * streamed / (1e8 if by == "disk" else 1e9)
    if by != "disk":
        alone = group_option(one, apart, given, CARDS, residency, work)
        assert alone is not None
        assert alone.seconds < way.seconds / 3


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
def test_an_amount_that_was_asked_for_is_of_all_devices_and_is_printed(mode: str) -> None:
    amounts = Amounts(on_device=100 * MIB)
    one = asked(mode, residency=Residency.HOST, amounts=amounts)
    way = found(one, machine(), budgets(150, 150, 150, 150)).ways["diffusion"]
    assert way.amounts == amounts
    part = PARTS[mode](len(way.devices))
    assert all(way.stays[card] == pytest.approx(part * 100 * MIB, rel=0.02) for card in way.devices)
    assert settings_of(Solution({"diffusion": way}), [one])["--params-backend"] == "diffusion=device:100MiB&cpu"


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
@pytest.mark.parametrize(("on_device", "in_memory", "host"), [(40, 100, 100), (0, 100, 100), (100, 150, 102)])
def test_what_rests_in_memory_counts_once_for_all_devices(mode: str, on_device: int, in_memory: int, host: int) -> None:
    amounts = Amounts(on_device * MIB, in_memory * MIB)
    one = asked(mode, residency=Residency.DISK, amounts=amounts)
    way = found(one, machine(), budgets(150, 150, 150, 150)).ways["diffusion"]
    assert way.host == host * MIB
    assert way.amounts == Amounts(on_device * MIB, host * MIB)
    typed = f"device:{on_device}MiB&" * bool(on_device) + f"cpu:{in_memory}MiB&disk"
    assert settings_of(Solution({"diffusion": way}), [one])["--params-backend"] == f"diffusion={typed}"


@pytest.mark.parametrize("mode", ["sequence", "tensor"])
@given(st.lists(st.integers(10, 300), min_size=2, max_size=4), st.integers(100, 1000), st.booleans())
def test_what_is_found_fits_and_is_as_was_asked(mode: str, mib: list[int], cpu: int, is_of_all: bool) -> None:
    given, on = budgets(*mib, cpu=cpu), machine(CARDS[: len(mib)])
    one = asked(mode, may_be_alone=is_of_all)
    solution = search([one], on, given)
    if solution is None:
        assert is_of_all or why_no_group(one, on, given, places_of([one], given))
        return
    assert fits(solution, given)
    way = solution.ways["diffusion"]
    assert (way.mode == mode) == (len(way.devices) > 1)
    assert is_of_all or len(way.devices) > 1
    plan = plan_of(solution, [one], given)
    assert plan.components[0].mode == way.mode
    assert ("--split-mode" in plan.settings) == (len(way.devices) > 1)
    assert "--tensor-split" not in plan.settings


def test_a_mode_of_all_components_leaves_one_on_one_device_where_that_is_quicker() -> None:
    light = load("diffusion", 10, 20, live=10, times=20, flops=1e8)
    one = replace(asked("sequence", may_be_alone=True), chain=light.chain)
    way = found(one, machine(), budgets(300, 300, 300, 300)).ways["diffusion"]
    assert (len(way.devices), way.mode) == (1, "layer")
    only = replace(one, asked=replace(one.asked, may_be_alone=False))
    assert len(found(only, machine(), budgets(300, 300, 300, 300)).ways["diffusion"].devices) > 1


def test_shares_say_how_many_devices_and_are_printed() -> None:
    one = asked("tensor", shares=(3.0, 1.0))
    given = budgets(300, 300, 300, 300)
    work = Work(1.0, (150 * MIB, 50 * MIB), (5 * MIB,) * 2, 200 * MIB)
    way = group_option(one, machine(), given, CARDS[:2], Residency.DEVICE, work)
    assert way is not None
    assert way.stays[CARDS[0]] == pytest.approx(3 * way.stays[CARDS[1]], rel=0.01)
    settings = settings_of(Solution({"diffusion": way}), [one])
    assert settings == {
        "--backend": "diffusion=cuda0&cuda1",
        "--split-mode": "tensor",
        "--tensor-split": "diffusion=3:1",
    }
    real = GroupWork([], lambda program: program, Rig(), "tensor", (3.0, 1.0))
    assert isinstance(real.over(CARDS), NotPossible)


def test_why_there_is_no_group() -> None:
    given = budgets(300, 300)

    def why(one: Load, on: Machine, given: Budgets) -> str:
        return why_no_group(one, on, given, places_of([one], given))

    assert why(asked("sequence"), machine(CARDS[:2]), given) == ""
    assert "no two devices of one kind" in why(asked("sequence"), machine(CARDS[:1]), given)
    assert why(asked("batch"), machine(CARDS[:2]), given) == "the inputs are of one picture"
    assert "by its parts" in why(replace(asked("sequence"), work=None), machine(CARDS[:2]), given)
    in_memory = replace(asked("tensor"), asked=Asked(mode="row", residency=Residency.HOST))
    assert why(in_memory, machine(CARDS[:2]), given).startswith("rows stay on their devices")
    in_turn = replace(asked("batch"), parts=2)
    assert why(in_turn, machine(CARDS[:2]), budgets(20, 20)).startswith("its calls take turns on devices that hold all")
    reason = why(asked("sequence"), machine(CARDS[:2]), budgets(20, 20))
    assert "200.0 MiB of weights" in reason
    assert "cuda0 has 20.0 MiB" in reason

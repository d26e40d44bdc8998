"""Why devices are used or not, in lines that say something."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.explain.what_if import with_more_memory
from dovetail.fitting import decide
from dovetail.fitting.decide import Decision, _longer, joined, why_not_used, why_used
from dovetail.fitting.others import Other
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.plan import plan_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import Solution
from dovetail.passes.fit.workload import Budgets, Load

from ...passes.fit.test_search import CPU, MIB, pipeline

CARDS = [Device("cuda", index) for index in range(8)]


def machine() -> Machine:
    speed = Speed({"float32": 1e12}, 1e15, 1e9, 0.0)
    speeds = dict.fromkeys(CARDS, speed) | {CPU: Speed({"float32": 1e10}, 1e15, 1e9, 0.0)}
    return Machine((*CARDS, CPU), Speeds(speeds, 1e8), CPU)


def test_devices_that_are_alike_are_in_one_line() -> None:
    loads, on = pipeline(), machine()
    given = Budgets({**dict.fromkeys(CARDS, 1000 * MIB), CPU: 1000 * MIB}, CPU)
    solution = search(loads, on, given)
    assert solution is not None
    plans: list[Other] = []
    lines = why_not_used(solution, loads, on, given, plans)
    assert len(lines) == 1
    (plan,) = plans
    assert plan.what.startswith("diffusion over cuda0")
    assert plan.seconds >= solution.seconds
    assert lines[0].startswith("cuda1-cuda7 are not used: splitting diffusion over any of them too by layers would be ")
    assert why_used(solution, loads, on, given) == []


@pytest.mark.parametrize(("room", "several"), [(130, False), (60, True)])
def test_idle_cards_that_are_alike_are_left_out_with_one_that_is_used(room: int, several: bool) -> None:
    loads, on = pipeline(), machine()
    given = Budgets({**dict.fromkeys(CARDS, room * MIB), CPU: 2000 * MIB}, CPU)
    solution = search(loads, on, given)
    assert solution is not None
    used = {device for way in solution.ways.values() for device in way.devices}
    behind, idle = solution.ways["diffusion"].devices[1:], [one for one in CARDS if one not in used]
    assert idle
    assert (len(behind) > 1) == several
    (line,) = why_used(solution, loads, on, given)
    names = f"one of {joined(behind)}" if several else joined(behind)
    assert line.startswith(f"without {names}, and without {joined(idle)} in its place, a picture would ")
    assert "be no faster" not in line


def test_more_memory_of_cards_that_are_alike_is_in_one_sentence() -> None:
    loads, on = pipeline(), machine()
    given = Budgets({**dict.fromkeys(CARDS, 60 * MIB), CPU: 2000 * MIB}, CPU)
    solution = search(loads, on, given)
    assert solution is not None
    decision = Decision(plan_of(solution, loads, given), 0.0, loads, on, given, solution, given)
    told = list(with_more_memory(decision))
    parts = {
        one: {(n, way.devices[0] == one) for n, way in solution.ways.items() if one in way.devices} for one in CARDS
    }
    together = [[one for one in CARDS if parts[one] == parts[first]] for first in CARDS]
    assert any(len(some) > 1 for some in together)
    for some in together:
        names = f"any of {joined(some)}" if len(some) > 1 else str(some[0])
        assert sum(one.startswith(f"With 2.0 GiB more on {names} a picture") for one in told) == 1


def test_cards_that_are_alike_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, on = pipeline(), machine()
    given = Budgets({**dict.fromkeys(CARDS, 60 * MIB), CPU: 2000 * MIB}, CPU)
    solution = search(loads, on, given)
    assert solution is not None
    searched: list[Budgets] = []

    def counted(loads: Sequence[Load], on: Machine, budgets: Budgets) -> Solution | None:
        searched.append(budgets)
        return search(loads, on, budgets)

    monkeypatch.setattr(decide, "search", counted)
    assert len(why_used(solution, loads, on, given)) == len(searched) == 1


def test_a_ratio_of_one_is_no_number() -> None:
    assert _longer(0.999) == _longer(1.0) == _longer(1.004) == "be no faster"
    assert _longer(1.15) == "be 15% slower"
    assert _longer(3.0) == "take 3 times as long"
    assert _longer(1234.0) == "take 1234 times as long"
    assert _longer(1.0, "take as long") == "take as long"


def test_devices_are_listed_as_people_do() -> None:
    assert joined([Device("cuda", 1)]) == "cuda1"
    assert joined([Device("cuda", 1), Device("cuda", 2)]) == "cuda1 and cuda2"
    assert joined([*CARDS[1:4], Device("xpu"), Device("mps")]) == "cuda1-cuda3, xpu0 and mps"

"""The critical path is as long as the time line, and names the lanes that decide it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.ir.program import Program
from dovetail.passes.simulate.critical_path import critical_path
from dovetail.passes.simulate.timeline import timeline
from tests.passes.simulate.test_timeline import ahead, program, speeds

RIGS = ["cpu=1GiB", "cuda0=1GiB", "cuda0=1GiB,cuda1=1GiB", "sim0=1GiB,sim1=1GiB,sim2=1GiB", "cuda0=1GiB,cpu=1GiB"]


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize(
    ("rests", "mode"), [("device", "layer"), ("cpu", "layer"), ("disk", "layer"), ("device", "row")]
)
def test_it_is_as_long_as_the_call(rig: str, rests: str, mode: str) -> None:
    one = program(rig, rests, mode, width=256 if mode == "row" else 64)
    for known in (speeds(one), speeds(one, computing=1e9), speeds(one, link=1e6), speeds(one, launch=1e-3),
                  speeds(one, latency=1e-4)):  # fmt: skip
        path = critical_path(one, known)
        assert sum(part.seconds for part in path) == pytest.approx(timeline(one, known).seconds)
        assert all(math.isfinite(part.seconds) and part.seconds >= 0 for part in path)
        assert all(first.lane != second.lane for first, second in pairwise(path))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_with_slots_in_turn_too(slots: int) -> None:
    one = ahead(program("cuda0=1GiB", "cpu"), slots)
    for known in (speeds(one), speeds(one, computing=1e9), speeds(one, computing=1e7)):
        assert sum(part.seconds for part in critical_path(one, known)) == pytest.approx(timeline(one, known).seconds)


def lanes(one: Program, known: Speeds) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in critical_path(one, known):
        found[part.lane] = found.get(part.lane, 0.0) + part.seconds
    return found


def test_where_weights_come_slowly_their_loads_are_the_path() -> None:
    one = program("cuda0=1GiB", "cpu")
    slow, quick = lanes(one, speeds(one, link=1e6)), lanes(one, speeds(one, computing=1e6, link=1e12))
    assert slow["loads to cuda0"] > 0.99 * timeline(one, speeds(one, link=1e6)).seconds
    assert quick["cuda0"] > 0.99 * timeline(one, speeds(one, computing=1e6, link=1e12)).seconds


def test_a_device_that_is_idle_while_the_path_is_elsewhere_is_not_on_it() -> None:
    one = program("cuda0=1GiB,cuda1=1GiB")
    known = speeds(one)
    free = Speed({"float32": math.inf}, math.inf, 1e9, 0.0)
    second = one.devices[1]
    assert set(lanes(one, known)) == {"cuda0", "cuda1", "cuda0 to cuda1", "cuda1 to cuda0"}
    without = lanes(one, Speeds({**known.devices, second: free}, known.disk))
    assert without.get("cuda1", 0.0) == 0.0
    assert without["cuda0"] > 0


def test_a_program_without_a_schedule_is_refused() -> None:
    one = program("cuda0=1GiB")
    one.schedule = None
    with pytest.raises(ValueError, match="has no schedule yet"):
        critical_path(one, speeds(one))

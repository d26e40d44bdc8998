"""The time line of a schedule, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Await, Load, Release, Run, Schedule, Step
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.cost import cost_of
from dovetail.passes.simulate.critical_path import critical_path
from dovetail.passes.simulate.timeline import timeline

WIDTH, BLOCKS = 64, 4
NBYTES = WIDTH * WIDTH * 4
CUDA = Device("cuda")


def program(rig: str, rests: str = "device", mode: str = "layer", width: int = WIDTH, pictures: int = 1) -> Program:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(BLOCKS)))
    traced = trace(model, (torch.ones(pictures, width),))
    traced.rig = Rig.parse(rig)
    traced.keep(Residency(rests))
    shares = (1.0,) * len(traced.devices)
    return PassManager(default_passes(shares, split_mode=mode)).run(traced)


def speeds(
    of: Program,
    computing: float = 1e12,
    link: float = 1e9,
    disk: float = 1e8,
    launch: float = 0.0,
    latency: float = 0.0,
) -> Speeds:
    """Memory is so fast that arithmetic alone counts."""
    speed = Speed({"float32": computing}, 1e18, link, launch)
    return Speeds({**dict.fromkeys(of.devices, speed), of.rig.host: speed}, disk, latency=latency)


def computing(of: Program, known: Speeds) -> float:
    return sum(cost_of(node).seconds(known[of.main]) for node in of.ops())


def test_a_program_on_one_device_takes_the_sum_of_its_operations() -> None:
    one = program("cuda0=1GiB")
    known = speeds(one)
    found = timeline(one, known)
    assert found.seconds == pytest.approx(computing(one, known)) == pytest.approx(found.busy("cuda0"))
    assert found.waited == {}


def test_values_that_cross_are_waited_for() -> None:
    one = program("cuda0=1GiB,cuda1=1GiB")
    known = speeds(one)
    crossing = 2 * WIDTH * 4 / 1e9  # there, and the result back
    assert timeline(one, known).seconds == pytest.approx(computing(one, known) + crossing)
    late = timeline(one, speeds(one, latency=1e-3))
    assert late.seconds == pytest.approx(computing(one, known) + crossing + 2e-3)
    assert late.busy("cuda0 to cuda1") == pytest.approx(crossing / 2)  # for others may cross meanwhile


@pytest.mark.parametrize(("rests", "rate"), [("cpu", 1e9), ("disk", 1e8)])
def test_weights_of_a_stage_come_from_where_they_rest(rests: str, rate: float) -> None:
    one = program("cuda0=1GiB", rests)
    found = timeline(one, speeds(one))
    assert found.busy("loads to cuda0") == pytest.approx(BLOCKS * NBYTES / rate)


def test_with_one_slot_a_load_waits_until_the_stage_before_is_released() -> None:
    one = program("cuda0=1GiB", "cpu")
    known = speeds(one, computing=1e9)
    every = NBYTES / 1e9 + cost_of(next(n for n in one.ops() if cost_of(n).flops)).seconds(known[one.main])
    assert timeline(ahead(one, 1), known).seconds == pytest.approx(BLOCKS * every)


def ahead(one: Program, slots: int) -> Program:
    """The same program with so many slots on its one device."""
    assert one.schedule is not None
    kept = [x for x in one.schedule if not isinstance(x, (Load, Release, Run))]
    loads = [x for x in one.schedule if isinstance(x, Load)]
    runs = [x for x in one.schedule if isinstance(x, Run)]
    new = [Load(x.number, x.weights, x.device, x.lifetime, i % slots) for i, x in enumerate(loads)]
    begun: list[object] = list(new[:slots])
    for i, run in enumerate(runs):
        steps = tuple(
            Step(s.node, tuple(Await(new[i], a.device) if isinstance(a.started, Load) else a for a in s.awaits),
                 s.sends, s.frees, s.scratch)
            for s in run.steps
        )  # fmt: skip
        begun += [Run(run.segment, run.device, steps), Release(new[i]), *new[i + slots : i + slots + 1]]
    one.schedule = Schedule((kept[0], *begun, *kept[1:]))  # type: ignore[arg-type]
    return one


@pytest.mark.parametrize("computing_rate", [1e8, 1e9, 1e10])
def test_loads_ahead_of_their_stages_overlap_computing(computing_rate: float) -> None:
    one = program("cuda0=1GiB", "cpu")
    known = speeds(one, computing=computing_rate)
    load, run = NBYTES / 1e9, computing(one, known) / BLOCKS
    assert timeline(ahead(one, 2), known).seconds == pytest.approx(load + run + (BLOCKS - 1) * max(load, run))


@pytest.mark.parametrize("rests", ["cpu", "disk"])
def test_devices_of_a_root_take_turns_on_their_way_to_the_host(rests: str) -> None:
    one = program("cuda0=1GiB,cuda1=1GiB", rests)
    known = replace(speeds(one, computing=1e15), disk=1e9)
    roots = dict.fromkeys(one.devices, "root0")
    apart, shared = timeline(one, known), timeline(one, replace(known, roots=roots))
    crossing = WIDTH * 4 / 1e9
    assert apart.seconds == pytest.approx(BLOCKS / 2 * NBYTES / 1e9 + 2 * crossing, rel=1e-3)
    assert shared.seconds == pytest.approx(BLOCKS * NBYTES / 1e9 + crossing, rel=1e-3)  # there while weights still come
    assert shared.busy("loads to cuda1") == pytest.approx(apart.busy("loads to cuda1"))


def test_what_devices_that_work_at_once_stream_shares_the_memory_of_the_host_and_the_disk() -> None:
    in_memory, on_disk = (program("cuda0=1GiB,cuda1=1GiB", rests, "batch", pictures=8) for rests in ("cpu", "disk"))
    assert in_memory.works_at_once
    wide = speeds(in_memory, computing=1e15, disk=1e8)
    narrow = replace(wide, devices={**wide.devices, in_memory.rig.host: replace(wide[in_memory.main], bandwidth=1e9)})
    quick = replace(wide, disk=1e10)
    alone, both = BLOCKS * NBYTES / 1e9, 2 * BLOCKS * NBYTES
    assert timeline(in_memory, wide).seconds == pytest.approx(alone, rel=2e-2)
    assert timeline(in_memory, narrow).seconds == pytest.approx(both / 1e9, rel=2e-2)
    assert timeline(on_disk, wide).seconds == pytest.approx(both / 1e8, rel=2e-2)
    assert timeline(on_disk, quick).seconds == pytest.approx(alone, rel=2e-2)
    for known, one in ((wide, in_memory), (narrow, in_memory), (wide, on_disk), (quick, on_disk)):
        path = critical_path(one, known)
        assert sum(part.seconds for part in path) == pytest.approx(timeline(one, known).seconds)


def test_the_host_issues_nothing_ahead_of_what_it_computes() -> None:
    one = program("cpu=1GiB", "disk")
    known = speeds(one, computing=1e7)
    found = timeline(ahead(one, 1), known)
    assert found.seconds == pytest.approx(computing(one, known) + BLOCKS * NBYTES / 1e8)


def test_what_stays_for_a_phase_is_counted_apart() -> None:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
    traced = trace(model, (torch.ones(1, WIDTH),))
    traced.rig = Rig.parse("cuda0=1GiB")
    traced.keep(Residency.HOST)
    traced.keeps_staged = True
    one = PassManager(default_passes()).run(traced)
    found = timeline(one, speeds(one))
    assert found.bringing == pytest.approx(BLOCKS * NBYTES / 1e9)
    assert found.seconds == pytest.approx(computing(one, speeds(one)))


@pytest.mark.parametrize(("mode", "rests"), [("layer", "cpu"), ("sequence", "cpu"), ("sequence", "disk")])
def test_what_stays_for_a_phase_comes_at_once_to_devices_that_work_at_once(mode: str, rests: str) -> None:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
    traced = trace(model, (torch.ones(1, 8, WIDTH),))
    traced.rig = Rig.parse("cuda0=1GiB,cuda1=1GiB")
    traced.keep(Residency(rests))
    traced.keeps_staged = True
    one = PassManager(default_passes((1.0, 1.0), split_mode=mode)).run(traced)
    assert one.works_at_once == (mode == "sequence")
    alone = BLOCKS * NBYTES / (1e9 if rests == "cpu" else 1e8)
    devices = 2 if rests == "disk" else 1  # which both have all weights under the one, and half of them by layers
    assert timeline(one, speeds(one)).bringing == pytest.approx(devices * alone)


@pytest.mark.parametrize("kind", ["cuda", "sim"])
def test_devices_that_share_rows_compute_at_the_same_time(kind: str) -> None:
    """So do simulated ones that stand for cards."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x).relu()
            return x

    traced = trace(Wide(), (torch.ones(8, 512),))
    traced.rig = Rig.parse(f"{kind}0=1GiB,{kind}1=1GiB")
    one = PassManager(default_passes((1.0, 1.0), split_mode="row")).run(traced)
    known = speeds(one, computing=1e6, link=1e15)
    whole = computing(one, known)
    cards = {one: speed if one.is_host else replace(speed, label="a card") for one, speed in known.devices.items()}
    assert whole / 2 <= timeline(one, replace(known, devices=cards)).seconds < 0.6 * whole
    if kind == "sim":
        assert timeline(one, known).seconds == pytest.approx(whole, rel=0.01)  # at the speed of a host that they share

"""The plan as data: its shares, its peaks, and the line that asks for it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.compiler.spec import parse_backend, parse_chunks, parse_params_backend, parse_tensor_split
from dovetail.compiler.spec.backend import Resting
from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.options import option
from dovetail.passes.fit.plan import plan_of
from dovetail.passes.fit.solution import Solution
from dovetail.passes.placement.place import Part, Room, split_parts

from .test_search import CPU, FAST, MIB, SLOW, budgets, found, load, machine, pipeline


def test_a_plan_says_what_each_device_has() -> None:
    loads, given = pipeline(), budgets(150, 150, 1000)
    plan = plan_of(found(loads, given, machine(link=1e7)), loads, given)
    diffusion = plan.components[1]
    assert set(diffusion.devices) == {FAST, SLOW}
    assert sum(share.weights for share in diffusion.shares) == loads[1].nbytes
    assert [share.blocks for share in diffusion.shares] == [
        (0, diffusion.shares[0].blocks[1]),
        (diffusion.shares[0].blocks[1], 10),
    ]
    assert all(plan.peak[device] <= limit for device, limit in given.devices.items())


def test_the_line_has_the_devices_and_residencies_of_the_plan() -> None:
    loads, given = pipeline(), budgets(100, 0, 1000)
    plan = plan_of(found(loads, given), loads, replace(given, typed="cuda0=100MiB"))
    names = {one.name: one.role for one in loads}
    backend = parse_backend(plan.settings["--backend"], names)
    resting = parse_params_backend(plan.settings["--params-backend"], names)
    for one in plan.components:
        assert tuple(map(str, one.devices)) == tuple(map(str, backend.get(one.name, one.role) or ()))
        rests = resting.get(one.name, one.role)
        assert (str(rests) if rests else "device") == str(Resting(one.residency.value, amounts=one.amounts))
    assert plan.components[1].amounts.on_device, "what stays on the card need not be brought for each picture"
    assert plan.line.endswith("--max-vram cuda0=100MiB")


def test_one_device_for_all_is_written_once() -> None:
    loads, given = pipeline(), budgets(1000, 0, 1000)
    assert plan_of(found(loads, given), loads, given).line == "--backend cuda0"


@pytest.mark.parametrize("unread", [0, 200])
def test_the_shares_of_the_line_give_the_ranges_of_the_plan(unread: int) -> None:
    one = load("diffusion", 13, 20)
    one = replace(one, nbytes=one.nbytes + unread * MIB)  # which no call reads, and no program has
    on = Machine((FAST, SLOW, CPU), machine().speeds, CPU)
    for fast in range(50, 250, 10):
        way = option(one, on, budgets(fast + unread, 250, 0), (FAST, SLOW), Residency.DEVICE, False)
        assert way is not None
        if len(way.devices) < 2:
            continue
        plan = plan_of(Solution({"diffusion": way}), [one], budgets(fast + unread, 250, 0))
        shares = parse_tensor_split(plan.settings["--tensor-split"], {"diffusion": "diffusion"}).shares_for(
            "diffusion", "diffusion", (FAST, SLOW)
        )
        counts = split_parts([Part(20 * MIB)] * 13, [Room(0)] * 2, Part(2 * MIB), shares or ())
        assert counts == [end - start for start, end in way.ranges]


def test_what_is_said_of_a_component_named_as_a_role_is_said_of_no_other_of_that_role() -> None:
    vae = load("vae", 4, 20)
    audio = replace(load("vae", 4, 20), name="audio_vae")
    on = Machine((FAST, SLOW, CPU), machine().speeds, CPU)
    given = budgets(1000, 1000, 1000)
    split = option(vae, on, budgets(50, 250, 0), (FAST, SLOW), Residency.DEVICE, False)
    alone = option(audio, on, given, (FAST,), Residency.DEVICE, False)
    assert split is not None
    assert alone is not None
    solution = Solution({"vae": replace(split, residency=Residency.HOST), "audio_vae": alone})
    vae = replace(vae, asked=replace(vae.asked, chunks=4))
    settings = plan_of(solution, [vae, audio], given).settings
    roles = {"vae": "vae", "audio_vae": "vae"}
    assert len(split.devices) == 2
    assert parse_tensor_split(settings["--tensor-split"], roles).shares_for("audio_vae", "vae", (FAST,)) == (1.0,)
    assert str(parse_params_backend(settings["--params-backend"], roles).get("audio_vae", "vae")) == "auto"
    assert parse_chunks(settings["--chunk"], roles).count_for("audio_vae", "vae") == 1
    assert parse_chunks(settings["--chunk"], roles).count_for("vae", "vae") == 4


def test_the_line_says_by_role_what_all_components_of_a_role_have() -> None:
    names = {"clip": "te", "t5": "te", "transformer": "diffusion", "vae": "vae"}
    loads = [replace(load("diffusion", 4, 20), name=name, role=role) for name, role in names.items()]
    on = Machine((FAST, SLOW, CPU), machine().speeds, CPU)
    given = budgets(1000, 1000, 1000)

    def line(**devices: tuple[object, ...]) -> str:
        ways = {
            one.name: option(one, on, given, devices.get(one.name, (FAST,)), Residency.DEVICE, False) for one in loads
        }
        return plan_of(Solution(ways), loads, given).settings["--backend"]

    assert line(clip=(SLOW,), t5=(SLOW,)) == "te=cuda1,cuda0"
    assert line(t5=(SLOW,)) == "t5=cuda1,cuda0"
    assert line() == "cuda0"
    for told in (line(clip=(SLOW,), t5=(SLOW,)), line(t5=(SLOW,))):
        assert {name: str(parse_backend(told, names).get(name, role)[0]) for name, role in names.items()}[
            "t5"
        ] == "cuda1"


def test_the_shares_of_the_line_are_as_short_as_gives_the_same_ranges() -> None:
    one = load("diffusion", 13, 20)
    on = Machine((FAST, SLOW, CPU), machine().speeds, CPU)
    way = option(one, on, budgets(100, 250, 0), (FAST, SLOW), Residency.DEVICE, False)
    assert way is not None
    told = plan_of(Solution({"diffusion": way}), [one], budgets(100, 250, 0)).settings["--tensor-split"]
    assert len(told.partition("=")[2]) <= len("33:67"), told

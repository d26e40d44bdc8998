"""What was decided of a component is one value, which says itself in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.spec.residency import Amounts, Residency
from dovetail.components.plan import ComponentPlan
from dovetail.conventions.request import Request
from dovetail.planning.phases import Phases
from dovetail.planning.pipeline_plan import PipelinePlan
from dovetail.planning.tiling import Tile

BOTH = ComponentPlan(Rig.parse("cuda0=8GiB,cuda1=4GiB"))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ComponentPlan(Rig.parse("cuda0=8GiB"), mode="row"), "cuda0"),
        (BOTH, "cuda0&cuda1, split by layers"),
        (replace(BOTH, mode="row", shares=(3.0, 1.0)), "cuda0&cuda1, split by rows, shares 3:1"),
        (
            replace(BOTH, residency=Residency.DISK, amounts=Amounts(on_device=2**30), chunks=4, inductor=True),
            "cuda0&cuda1, split by layers, weights device:1GiB&disk, chunks 4, inductor yes",
        ),
    ],
)
def test_a_plan_says_itself_in_a_line(plan: ComponentPlan, said: str) -> None:
    assert str(plan) == said


def test_the_plan_of_a_pipeline_has_a_line_for_each_component() -> None:
    request = Request.parse(rig="cuda0=8GiB,cuda1=4GiB", components={"transformer": "diffusion", "vae": "vae"})
    tiles, phases = {"vae": Tile(64, 128)}, Phases(going=frozenset({"transformer"}))
    plan = PipelinePlan(request, {"transformer": BOTH, "vae": BOTH}, phases=phases, tiles=tiles)
    assert str(plan).splitlines() == [
        "transformer: cuda0&cuda1, split by layers, while sampling, weights come and go in each call",
        "vae: cuda0&cuda1, split by layers, while decoding, in tiles of 128x64",
    ]


def test_one_device_has_no_rows() -> None:
    assert not ComponentPlan(Rig.parse("cuda0=8GiB"), mode="row").by_rows
    assert replace(BOTH, mode="row").by_rows

"""What was decided of a component is one value, which says itself in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.spec.residency import Amounts, Residency
from dovetail.components.plan import ComponentPlan
from dovetail.pipelines.plan import PipelinePlan

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
    assert str(PipelinePlan({"transformer": plan})) == f"transformer: {said}"


def test_one_device_has_no_rows() -> None:
    assert not ComponentPlan(Rig.parse("cuda0=8GiB"), mode="row").by_rows
    assert replace(BOTH, mode="row").by_rows

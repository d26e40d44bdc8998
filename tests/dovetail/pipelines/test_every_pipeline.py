"""Every tiny pipeline gives on one, two and three simulated devices what it gives in eager, to the bit."""

from __future__ import annotations

import pytest

from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import DEVICES, EVERY_PIPELINE, compare
from tests.cases import drawn

FAST = ("sd_inpaint_channels_last",)
SOME = tuple(EVERY_PIPELINE)[::9]
THIRD = len(EVERY_PIPELINE) // 3


@pytest.mark.fifth
@pytest.mark.parametrize("name", FAST)
def test_a_pipeline_over_two_devices_is_equal_to_eager(name: str) -> None:
    sim.enable()
    assert compare(name, ("sim0&sim1",)) == {"sim0&sim1": "equal"}


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(EVERY_PIPELINE, THIRD))
def test_every_pipeline_is_equal_to_eager(name: str) -> None:
    """Over two devices a third of them are compared at each run, and of these every ninth over one and three.

    `python -m benchmarks.pipelines` compares all of them over one, two and three.
    """
    sim.enable()
    devices = DEVICES if name in SOME else ("sim0&sim1",)
    assert compare(name, devices) == dict.fromkeys(devices, "equal")


def test_there_are_many_pipelines() -> None:
    assert len(EVERY_PIPELINE) >= 60

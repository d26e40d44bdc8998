"""Pipelines whose devices are left open: what is planned on the devices that are found is what is measured there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import dovetail
from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import EVERY_PIPELINE
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

RIGS = ("sim0=300KiB,sim1=300KiB", "sim0=600KiB,cpu=4GiB", "sim0=1GiB")


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("name", slow_but(["sd"], ["sd", "sdxl", "flux", "lumina2"]))
def test_the_peaks_of_devices_that_were_found_are_the_planned_ones(name: str, rig: str) -> None:
    pipe, call = EVERY_PIPELINE[name]()
    pipe.set_progress_bar_config(disable=True)
    dovetail.compile_pipeline(pipe, rig=rig)
    given: dict[str, Any] = {"output_type": "pt", "return_dict": False, **call}
    plan = pipe.dovetail.plan(**given)
    assert plan is not None
    assert pipe.dovetail.decision is not None
    pipe(**given)  # so that all weights that stay are there
    peaks = {device: peak.total for device, peak in plan.peaks().items() if device.is_simulated}
    for device in peaks:
        sim.reset_peak(device.index)
    pipe(**given)
    assert {device: sim.stats(device.index).peak for device in peaks} == peaks
    pipe.dovetail.undo()

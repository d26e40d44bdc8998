"""What a call leaves in a pipeline is on its devices in the next one, and is counted there once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import compile_pipeline
from dovetail.compiler.devices.device import Device
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")


def held(pipe: Any, call: Mapping[str, Any]) -> dict[str, Mapping[Device, int]]:
    """What the pipeline is to hold at each of its calls of components."""
    return {one.title: one.held for one in pipe.dovetail.plan(**call).calls}


@pytest.mark.parametrize("made", [tiny_pipelines.flux, tiny_pipelines.sd], ids=lambda one: one.__name__)
def test_what_an_earlier_call_has_left_is_counted_once(made: Any) -> None:
    pipe, call = made()
    smaller = {**call, "height": call["height"] // 2, "width": call["width"] // 2}
    fresh = compile_pipeline(made()[0], backend="sim0")
    used = compile_pipeline(pipe, backend="sim1")
    used(**call)
    by_number = [{title: sum(there.values()) for title, there in held(one, smaller).items()} for one in (fresh, used)]
    assert by_number[0] == by_number[1]
    assert all(tensor.device.type == "sim" for tensor in [used.scheduler.timesteps])

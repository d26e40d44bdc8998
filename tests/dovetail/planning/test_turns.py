"""Denoisers of which one comes after the other: they use the memory of their devices in turn."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

from dovetail import compile_pipeline
from dovetail.compiler.devices.device import Device
from dovetail.planning.turns import turns_of
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")
SIM = Device("sim")


def experts(boundary: float | None) -> tuple[Any, dict[str, Any]]:
    """Wan with two experts: the second one denoises the steps behind the boundary, or both none."""
    parts = tiny_pipelines.wan_parts(num_layers=6)
    second = diffusers.WanTransformer3DModel(**{**tiny_pipelines.WAN, "num_layers": 6}).eval()
    pipe = diffusers.WanPipeline(**parts, transformer_2=second, boundary_ratio=boundary)
    call = tiny_pipelines.wan()[1] | {"num_inference_steps": 2, "output_type": "latent"}
    return pipe, call


def test_those_that_come_one_after_the_other_have_phases_of_their_own() -> None:
    sampling = dict.fromkeys("abcd", "sampling")
    assert turns_of("taab", {**sampling, "t": "conditioning"}) == {"b": "sampling 2"}
    assert turns_of("aabcbd", sampling) == {"b": "sampling 2", "c": "sampling 2", "d": "sampling 3"}
    assert turns_of("abab", sampling) == turns_of("aa", sampling) == turns_of("", sampling) == {}
    assert turns_of("acab", sampling) == {"b": "sampling 2"}


@pytest.mark.fifth
def test_two_experts_use_one_card_in_turn() -> None:
    pipe, call = experts(0.9)
    expected = pipe(**call, generator=torch.Generator().manual_seed(0)).frames
    pipe = compile_pipeline(pipe, backend="sim0", params_backend="cpu", rig="sim0=1GiB,cpu=4GiB")
    plan = pipe.dovetail.plan(**call)
    assert {one.component: one.phase for one in plan.calls} == {
        "text_encoder": "conditioning", "transformer": "sampling", "transformer_2": "sampling 2",
    }  # fmt: skip
    both = sum(one.view.nbytes for name, one in pipe.dovetail.components.items() if name.startswith("transformer"))
    assert max(one.staged for one in plan.moments if one.device == SIM) < 0.6 * both
    found = pipe(**call, generator=torch.Generator().manual_seed(0)).frames
    assert torch.equal(found.cpu(), expected)


@pytest.mark.slow
def test_another_call_has_turns_of_its_own() -> None:
    pipe, call = experts(0.9)
    pipe = compile_pipeline(pipe, backend="sim0", params_backend="cpu", rig="sim0=1GiB,cpu=4GiB")
    first = pipe.dovetail.plan(**call)
    pipe.register_to_config(boundary_ratio=None)
    alone = pipe.dovetail.plan(**call, guidance_scale=1.0)
    assert {one.component for one in alone.calls if one.phase.startswith("sampling")} == {"transformer"}
    pipe.register_to_config(boundary_ratio=0.9)
    assert [one.phase for one in pipe.dovetail.plan(**call).calls] == [one.phase for one in first.calls]

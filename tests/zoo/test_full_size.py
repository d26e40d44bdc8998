from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from dovetail.compiler.program import Program
from dovetail.passes.verify import verify
from dovetail.passes.verify_deep import verify_deep
from dovetail.runtime import sim
from tests.cases import slow_but

from .full_size import FULL_SIZE, compile_entry, trace_entry

# Text encoders, a UNet's stages, an encoder whose units stand in one mixed list, and double and single blocks.
QUICK = ("te-clip-l", "vae-sd15-dec", "vae-qwenimage-enc")
BLOCKS = {
    "flux-dev": 19 + 38,
    "flux-schnell": 19 + 38,
    "flux2-dev": 8 + 48,
    "flux2-klein-9b": 8 + 24,
    "sd3.5-large": 38,
    "chroma1-hd": 5 + 19 + 38,  # its modulation comes from five layers
    "qwen-image": 60,
    "z-image": 2 + 2 + 30,
    "pixart-sigma-1024": 28,
    "sana-1.6b": 20,
    "ltx-0.9.7-13b": 48,
    "ltx2-19b": 48,
    "wan2.1-14b": 40,
    "wan2.2-ti2v-5b": 30,
    "hunyuan-video": 2 + 20 + 40,
    "controlnet-flux-union": 5 + 10,
    "te-clip-l": 12,
    "te-openclip-g": 32,
    "te-t5-xxl-mask": 24,
    "te-qwen2.5-vl-7b-text": 28,
    "te-qwen3-4b": 36,
    "te-gemma3-12b-text": 48,
    "te-mistral3-24b": 40,
}
"""Transformer blocks as the models' papers count them."""


@dataclass
class Traced:
    """A full-size program as it was traced."""

    name: str
    program: Program


@pytest.fixture(scope="module", params=slow_but(QUICK, FULL_SIZE))
def traced(request: pytest.FixtureRequest) -> Traced:
    program, _ = trace_entry(FULL_SIZE[request.param])
    return Traced(request.param, program)


def test_a_full_size_model_compiles_for_devices_that_hold_a_part_of_it(traced: Traced) -> None:
    for count in (2, 4):
        compiled, _ = compile_entry(traced.program, count)
        segments = compiled.segments
        assert {segment.device for segment in segments} == set(compiled.devices)
        assert all(one.device != other.device for one, other in pairwise(segments))
        verify(compiled)
        check_homes(compiled)


def test_a_full_size_model_keeps_shapes_dtypes_and_devices_at_every_node(traced: Traced) -> None:
    compiled, _ = compile_entry(traced.program, 4)
    sim.enable(dict.fromkeys(range(4), 2**20))
    stand_ins = {device: torch.device("sim", index) for index, device in enumerate(compiled.devices)}
    assert verify_deep(compiled, stand_ins) >= len(list(compiled.ops()))


def test_nearly_all_bytes_of_a_full_size_model_lie_in_its_blocks(traced: Traced) -> None:
    compiled, _ = compile_entry(traced.program, 2)
    names = [weight.name for block in compiled.blocks for weight in block.weights]
    assert len(names) == len(set(names))
    assert compiled.weights.keys() >= set(names)
    tables = [weight for weight in compiled.weights.values() if weight.shape[:1] > (30_000,)]  # words, not work
    inside = sum(block.nbytes for block in compiled.blocks)
    assert inside >= 0.8 * (sum(weight.nbytes for weight in compiled.weights.values()) - sum(t.nbytes for t in tables))
    assert len(compiled.blocks) == BLOCKS.get(traced.name, len(compiled.blocks))
    assert len(compiled.blocks) >= 12


def check_homes(compiled: Program) -> None:
    """Ranges of blocks follow the order of the devices, and what is in no block lies on the main device."""
    order = [compiled.devices.index(compiled.home[block.weights[0].name]) for block in compiled.blocks]
    assert order == sorted(order)
    assert set(order) == set(range(len(compiled.devices)))
    inside = {weight.name for block in compiled.blocks for weight in block.weights}
    assert {compiled.home[name] for name in compiled.weights if name not in inside} <= {compiled.main}

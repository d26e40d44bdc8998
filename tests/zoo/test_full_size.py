"""Full-size published configurations, traced without data: blocks, segments, every node, and what row split marks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim
from testbed.zoo.full_size import FULL_SIZE, compile_entry, rigs_for
from testbed.zoo.row_split import marks
from tests.cases import drawn, slow_but

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
CONVOLUTIONS_ONLY = ("vae-wan2.1-enc", "vae-wan2.1-dec", "vae-qwenimage-enc", "vae-qwenimage-dec")
"""No weight of these can be split into rows."""


DRAWN = [*QUICK, *drawn((name for name in FULL_SIZE if name not in QUICK), len(FULL_SIZE) // 4)]


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(QUICK, DRAWN))
def test_a_full_size_model_is_split_where_its_modules_say(name: str) -> None:
    """Traced once, for that takes longest; then every law of full-size models is looked at."""
    module, call = FULL_SIZE[name].make()
    traced = trace(module, (), call)
    check_row_marks(name, *marks(module, traced))
    rigs = rigs_for(traced)
    two, four = (compile_entry(traced, count, rigs[count])[0] for count in (2, 4))
    check_segments(two)
    check_segments(four)
    check_blocks(name, two)
    check_every_node(four)


def check_row_marks(name: str, found: set[str], eligible: set[str]) -> None:
    """Every eligible weight is marked for row split, and none other."""
    assert found == eligible
    assert bool(found) != (name in CONVOLUTIONS_ONLY)


def check_segments(compiled: Program) -> None:
    """Every device has a part, neighbours lie on different devices, and weights lie in the order of the blocks."""
    segments = compiled.segments
    assert {segment.device for segment in segments} == set(compiled.devices)
    assert all(one.device != other.device for one, other in pairwise(segments))
    verify(compiled)
    check_homes(compiled)


def check_every_node(compiled: Program) -> None:
    """On simulated devices without data, each node has the shape, dtype and device that its metadata states."""
    sim.enable(dict.fromkeys(range(len(compiled.devices)), 2**20))
    stand_ins = {device: torch.device("sim", index) for index, device in enumerate(compiled.devices)}
    assert verify_deep(compiled, stand_ins) >= len(list(compiled.ops()))


def check_blocks(name: str, compiled: Program) -> None:
    """Blocks are those of the model's paper, share no weight, and hold nearly all bytes but tables of words."""
    names = [name for block in compiled.blocks for name in block.weights]
    assert len(names) == len(set(names))
    assert compiled.weights.keys() >= set(names)
    tables = [weight for weight in compiled.weights.values() if weight.shape[:1] > (30_000,)]
    inside = compiled.nbytes_of(names)
    assert inside >= 0.8 * (sum(weight.nbytes for weight in compiled.weights.values()) - sum(t.nbytes for t in tables))
    assert len(compiled.blocks) == BLOCKS.get(name, len(compiled.blocks))
    assert len(compiled.blocks) >= 12


def check_homes(compiled: Program) -> None:
    """Ranges of blocks follow the order of the devices, and what is in no block lies on the main device."""
    order = [compiled.devices.index(compiled.home[block.weights[0]]) for block in compiled.blocks]
    assert order == sorted(order)
    assert set(order) == set(range(len(compiled.devices)))
    inside = {name for block in compiled.blocks for name in block.weights}
    assert {compiled.home[name] for name in compiled.weights if name not in inside} <= {compiled.main}

"""Pictures in other strides than the traced ones: channels-last, transposed, and one picture for all of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dovetail.compiler.frontend.trace import trace
from dovetail.runtime import sim
from testbed.zoo.everything import NAMES
from testbed.zoo.tiny import TINY

from .test_bit_equality import RIG, assert_same, compile_for

PICTURES = (
    "AutoencoderKL-encode",
    "AutoencoderKL-decode",
    "UNet2DModel",
    "UNet2DConditionModel",
    "ControlNetModel",
    "UVit2DModel",
)
"""Components that are fed pictures by image-to-image, inpainting and ControlNet, and those with known differences."""


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    sim.enable({device.index: RIG[device].total for device in RIG})
    yield
    for device in RIG:
        sim.synchronize(device.index)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.clone(memory_format=formats[x.dim()]) if x.dim() in formats else x


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() >= 3 else x


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape) if x.dim() >= 3 else x


Turn = Callable[[torch.Tensor], torch.Tensor]
TURNS: tuple[Turn, ...] = (lambda x: x, channels_last, transposed, expanded, channels_last)


def check(name: str, only_one: bool) -> None:
    """Compiles for dense pictures, and compares calls with others; ``only_one`` takes the first of the batch."""
    module, call = TINY[name].make(torch.float32)
    if only_one:
        call = _map(lambda x: x[:1] if x.dim() else x, call)
    compiled = compile_for(trace(module, (), call), module, 2)
    for turn in TURNS:
        turned = _map(turn, call)
        with torch.no_grad():
            expected = module(**turned)
        assert_same(compiled(**turned), expected)


def _map(turn: Turn, call: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map_only(torch.Tensor, turn, call)  # type: ignore[no-any-return]


@pytest.mark.fifth
@pytest.mark.few(quick=3)
@pytest.mark.parametrize("name", [name for name in PICTURES if name in NAMES])
def test_pictures_in_any_strides_give_the_bits_of_eager(name: str) -> None:
    check(name, only_one=False)


@pytest.mark.parametrize("name", ["AutoencoderKL-encode", "AutoencoderKL-decode"])
def test_one_picture_in_any_strides_gives_the_bits_of_eager(name: str) -> None:
    check(name, only_one=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "VAE" in name or "Autoencoder" in name or "UNet" in name])
def test_every_component_that_takes_pictures_takes_them_in_any_strides(name: str) -> None:
    check(name, only_one=False)

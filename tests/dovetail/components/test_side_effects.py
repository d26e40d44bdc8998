"""What a component or an attention processor keeps of its calls is kept when compiled, and its picture is eager's."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.attention_processor import AttnProcessor
from torch import nn

import dovetail
from testbed.pipelines import tiny_pipelines

from .small_pipeline import WIDTH, Block, Pipeline


class Counting(Block):
    """A block that does every other time something else, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.seen = 0, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.seen.append(x)
        return super().forward(x) * (0.5 if self.count % 2 else 1.0)


class Model(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Counting(), Block(), Counting()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Watching(AttnProcessor):
    """A processor that keeps what it returns, and fades at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.factor = 1.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.factor *= 0.9
        self.seen.append(super().__call__(*args, **kwargs) * self.factor)
        return self.seen[-1]


@pytest.mark.fifth
def test_a_block_that_counts_its_calls_goes_on_counting() -> None:
    torch.manual_seed(0)
    pipe, x = Pipeline(Model().eval()), torch.randn(2, WIDTH)
    eager = copy.deepcopy(pipe)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    for _ in range(3):
        assert torch.equal(pipe(x).cpu(), eager(x))
    for mine, theirs in zip(pipe.unet.blocks[1::2], eager.unet.blocks[1::2], strict=True):
        assert mine.count == theirs.count == 3
        assert all(torch.equal(one.cpu(), other) for one, other in zip(mine.seen, theirs.seen, strict=True))


@pytest.mark.slow
def test_an_attention_processor_that_collects_goes_on_collecting() -> None:
    pipe, call = tiny_pipelines.sd()
    eager = copy.deepcopy(pipe)
    mine, theirs = Watching(), Watching()
    pipe.unet.set_attn_processor(mine)
    eager.unet.set_attn_processor(theirs)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim1,vae=sim0")
    for _ in range(2):
        assert torch.equal(tiny_pipelines.paint(pipe, call).cpu(), tiny_pipelines.paint(eager, call))
    assert mine.factor == theirs.factor < 1
    assert all(torch.equal(one.cpu(), other) for one, other in zip(mine.seen, theirs.seen, strict=True))

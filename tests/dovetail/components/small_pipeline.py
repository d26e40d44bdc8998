"""A pipeline of one small component, for tests of what happens around its calls."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import nn

import dovetail

WIDTH = 32


class Block(nn.Module):
    """A block with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.between(self.up(x))) * self.scale

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Numpy(Block):
    """A block that goes through numpy, which no trace follows."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().cpu().numpy() * 1.5).to(x.device)


class Model(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Blocks between two layers; the model itself reads a parameter."""

    @register_to_config
    def __init__(self, kind: type[Block] = Block) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(kind() for _ in range(4))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.shift
        for block in self.blocks:
            x = block(x)
        last: torch.Tensor = self.last(x) + self.shift
        return last


class Pipeline(diffusers.DiffusionPipeline):  # type: ignore[misc]
    """Calls its one component."""

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet)

    @torch.no_grad()
    def __call__(self, *args: Any) -> Any:
        return self.unet(*args)


def compiled_pair(kind: type[Block]) -> tuple[Model, Pipeline, torch.Tensor]:
    """A small model, a pipeline of a compiled one of the same weights, and an input."""
    torch.manual_seed(0)
    models = [Model(kind).eval() for _ in range(2)]
    for model in models:
        model.blocks = model.blocks[:1]
    models[1].load_state_dict(models[0].state_dict())
    pipe = Pipeline(models[1])
    dovetail.compile_pipeline(pipe, "diffusion=sim0")
    return models[0], pipe, torch.randn(2, WIDTH)

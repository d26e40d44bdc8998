"""A small parameter in no block is held on each device that reads it, and stays one parameter for everybody else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dovetail

from .small_pipeline import WIDTH, Model, Pipeline


class Toned(Model):
    """Multiplies what each block yields by one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.tone = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) * self.tone
        last: torch.Tensor = self.last(x)
        return last


def pair(kind: type[Toned] = Toned, **options: str) -> tuple[Toned, Pipeline, torch.Tensor]:
    torch.manual_seed(0)
    model = kind().eval()
    pipe = Pipeline(copy.deepcopy(model))
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1", **options)  # type: ignore[arg-type]
    return model, pipe, torch.randn(2, WIDTH)


@pytest.mark.parametrize("rests", [{}, {"params_backend": "cpu"}])
def test_it_is_one_parameter_and_writing_it_reaches_every_copy(rests: dict[str, str]) -> None:
    model, pipe, x = pair(**rests)
    with torch.no_grad():
        assert torch.equal(pipe(x).cpu(), model(x))
        assert dict(pipe.unet.named_parameters()).keys() == dict(model.named_parameters()).keys()
        for one in (model, pipe.unet):
            one.tone.mul_(0.5)
        assert torch.equal(pipe(x).cpu(), model(x))
        for one in (model, pipe.unet):
            one.load_state_dict({**one.state_dict(), "tone": torch.ones(WIDTH)})
        assert torch.equal(pipe(x).cpu(), model(x))
        for one in (model, pipe.unet):
            one.tone = nn.Parameter(torch.full((WIDTH,), 3.0))
        assert torch.equal(pipe(x).cpu(), model(x))
    dovetail.undo(pipe)
    assert torch.equal(pipe.unet.tone, model.tone)
    assert pipe.unet.tone.device.type == "cpu"


class Viewed(Toned):
    """Makes one view of the parameter, which all blocks read: the parameter stays on its device between the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tone, x = self.tone.view(1, WIDTH), self.first(x)
        for block in self.blocks:
            x = block(x) * tone
        last: torch.Tensor = self.last(x)
        return last


@pytest.mark.parametrize("rests", [{}, {"params_backend": "cpu"}])
def test_writing_it_reaches_the_copy_that_is_read_through_a_view(rests: dict[str, str]) -> None:
    model, pipe, x = pair(Viewed, **rests)
    with torch.no_grad():
        assert torch.equal(pipe(x).cpu(), model(x))
        for one in (model, pipe.unet):
            one.tone.mul_(0.5)
        assert torch.equal(pipe(x).cpu(), model(x))

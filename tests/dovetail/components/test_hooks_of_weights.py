"""Hooks that compute a part's weight before each call find the weights where the part runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import dovetail
from dovetail.components.calls import answering
from testbed.pipelines.tiny_pipelines import paint, sd
from tests.cases import slow_but

from .small_pipeline import Block, compiled_pair

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
CASES = [(devices, rests) for devices in ("sim0", SPREAD) for rests in (None, "cpu", "disk")]


class Thirds(prune.BasePruningMethod):
    """Prunes each third number; a hook that is not PyTorch's own, so that its part runs as it is."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        """Ones and zeros."""
        mask = default_mask.clone()
        mask.view(-1)[::3] = 0
        return mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pipe, _ = sd()
    pipe.save_pretrained(found := tmp_path_factory.mktemp("sd"))
    return found


def _hook(pipe: Any, theirs: bool) -> None:
    prune.l1_unstructured(pipe.unet.conv_out, "weight", 0.3)
    weight_norm(pipe.unet.mid_block.resnets[0].conv1)
    if theirs:
        Thirds.apply(pipe.unet.conv_in, "weight")
        Thirds.apply(pipe.unet.up_blocks[0].resnets[0].conv1, "weight")


@pytest.mark.fifth
@pytest.mark.parametrize("theirs", slow_but([True], [False, True]))
@pytest.mark.parametrize(("devices", "rests"), slow_but([(SPREAD, "cpu")], CASES))
def test_weights_that_hooks_compute_are_painted_with_as_in_eager(
    devices: str, rests: str | None, theirs: bool, folder: Path
) -> None:
    eager: Any = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = dovetail.load_pipeline(folder, devices, params_backend=rests)
    for one in (eager, pipe):
        _hook(one, theirs)
    wanted = paint(eager, sd()[1])
    assert torch.equal(paint(pipe, sd()[1]).cpu(), wanted)
    assert torch.equal(paint(pipe, sd()[1]).cpu(), wanted)


@pytest.mark.fifth
def test_a_pruned_part_is_in_the_program_of_the_whole(folder: Path) -> None:
    pipe = dovetail.load_pipeline(folder, "sim0")
    _hook(pipe, theirs=False)
    paint(pipe, sd()[1])
    component = answering(pipe.unet)
    assert component is not None
    (call,) = [one for one in component.calls if str(one) == "forward"]
    assert call.whole is None
    assert call.failures == 0


@pytest.mark.slow
def test_a_spectrally_normed_weight_is_as_in_eager_but_for_rounding(folder: Path) -> None:
    """The host's product of a matrix and a vector rounds by where these lie in memory: a copy in eager differs too."""
    eager: Any = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipe = dovetail.load_pipeline(folder, SPREAD, params_backend="disk")
    for one in (eager, pipe):
        torch.manual_seed(0)
        spectral_norm(one.unet.time_embedding.linear_1)
        one.unet.conv_in.register_forward_pre_hook(lambda *_: None)
        spectral_norm(one.unet.conv_in)
    assert torch.allclose(paint(pipe, sd()[1]).cpu(), paint(eager, sd()[1]), atol=1e-4)


class Doubled(torch.nn.Module):
    """Doubles a weight by a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.by.to(weight.device)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / self.by.to(weight.device)


@pytest.mark.fifth
@pytest.mark.parametrize(
    "put",
    [parametrizations.weight_norm, lambda layer: parametrize.register_parametrization(layer, "weight", Doubled())],
)
def test_a_weight_that_is_parametrized_is_read_with_its_gradient_and_made_a_plain_one_again(put: Any) -> None:
    model, pipe, x = compiled_pair(Block)
    layers = [one.blocks[0].up for one in (model, pipe.unet)]
    for layer in layers:
        put(layer)
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))
    assert torch.equal(layers[1].weight.cpu(), layers[0].weight)
    assert layers[1].weight.requires_grad
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight")
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))

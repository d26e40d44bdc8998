"""Pipelines that compute with components beside their forward, or take tensors to numpy: as on a device of its own."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

import dovetail
from dovetail.runtime import sim
from testbed.pipelines.entries import seeing
from testbed.pipelines.every_pipeline import EVERY_PIPELINE, result
from testbed.pipelines.seen_pipelines import motif_parts


class Unconditional(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Holds a tensor and computes nothing, as the learned embeddings of pipelines do."""

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torch.nn.Parameter(torch.arange(32.0))


class Embeds(diffusers.DiffusionPipeline):  # type: ignore[misc]
    def __init__(self, image_encoder: Any, image_normalizer: Any, unconditional: Any) -> None:
        super().__init__()
        self.register_modules(
            image_encoder=image_encoder, image_normalizer=image_normalizer, unconditional=unconditional
        )

    @torch.no_grad()
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        seen = self.image_encoder(image.to(self._execution_device)).image_embeds
        self.image_normalizer.to(seen.device)
        scaled = self.image_normalizer.unscale(self.image_normalizer.scale(seen).sin())
        return torch.cat([self.unconditional.embeddings[None], scaled])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [{}, {"params_backend": "cpu"}, {"backend": "sim0,image_normalizer=sim1"}],
)
def test_components_that_a_pipeline_uses_by_methods_and_tensors_are_where_it_computes(options: dict[str, Any]) -> None:
    from diffusers.pipelines.stable_diffusion import StableUnCLIPImageNormalizer

    normalizer, image = StableUnCLIPImageNormalizer(embedding_dim=32), torch.ones(1, 3, 32, 32)
    torch.nn.init.normal_(normalizer.mean)
    pipe = Embeds(seeing(), normalizer, Unconditional())
    expected = pipe(image)
    dovetail.compile_pipeline(pipe, **{"backend": "sim0&sim1", **options})
    for _ in range(2):
        assert torch.equal(pipe(image).cpu(), expected)
    pipe.dovetail.undo()
    assert {one.device.type for part in (normalizer, pipe.unconditional) for one in part.parameters()} == {"cpu"}
    assert torch.equal(pipe(image), expected)


@pytest.mark.slow
def test_what_a_pipeline_turns_to_numpy_on_a_device_raises_as_it_does_on_a_gpu() -> None:
    sim.enable()
    parts = {**motif_parts(), "feature_extractor": transformers.SiglipImageProcessor(size={"height": 32, "width": 32})}
    _, call = EVERY_PIPELINE["motif_i2v"]()
    pipe = diffusers.MotifVideoImage2VideoPipeline(**parts)
    dovetail.compile_pipeline(pipe, "sim0")
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        result(pipe, call)

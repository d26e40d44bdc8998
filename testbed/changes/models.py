"""The pipelines that are changed: small, with matrices that are large enough to be split by rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from ..pipelines import tiny_text
from ..pipelines.tiny_pipelines import picture, sd_parts, sdxl_parts, still_vae, unet

WIDE = 256
"""Rows and columns from which on a matrix is split by rows."""


@dataclass(frozen=True)
class Model:
    """A pipeline: how it is made, how it is called, and the component that denoises."""

    name: str
    make: Callable[[], Any]
    denoiser: str
    call: Mapping[str, Any] = field(default_factory=lambda: picture(num_inference_steps=1))

    def save(self, folder: Path) -> None:
        """Writes the pipeline as diffusers does."""
        self.make().save_pretrained(folder / self.name)

    def eager(self, folder: Path) -> Any:
        """The pipeline as diffusers loads it."""
        pipe: Any = diffusers.DiffusionPipeline.from_pretrained(folder / self.name, torch_dtype=torch.float32)
        align(pipe)
        return pipe

    def paint(self, pipe: Any, **more: Any) -> torch.Tensor:
        """The picture of a call with a fixed seed, on the host."""
        pipe.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(7)
        return pipe(**{**self.call, **more}, generator=generator, output_type="pt")[0].cpu()  # type: ignore[no-any-return]


def modules(pipe: Any) -> dict[str, nn.Module]:
    return {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}


def align(pipe: Any) -> None:
    """Has weights lie where torch allocates: numbers of a matrix of one row depend on where in a mapped file it is."""
    for part in modules(pipe).values():
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.data_ptr() % 64:
                tensor.data = tensor.data.clone()


def _flux() -> Any:
    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        pooled_projection_dim=32, attention_head_dim=64, num_attention_heads=4, axes_dims_rope=(16, 24, 24),
    ).eval()  # fmt: skip
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=still_vae(4),
        text_encoder=tiny_text.clip(layers=1),
        tokenizer=tiny_text.clip_tokenizer(),
        text_encoder_2=tiny_text.t5(layers=1),
        tokenizer_2=tiny_text.t5_tokenizer(),
        transformer=transformer,
    )


def _sd() -> Any:
    """Stable Diffusion 1.5, whose text encoder has a row for each token, as published ones do."""
    denoiser = unet(block_out_channels=(8, WIDE), cross_attention_dim=WIDE, attention_head_dim=4)
    parts = {**sd_parts(), "unet": denoiser, "text_encoder": tiny_text.clip(WIDE, layers=2)}
    parts["text_encoder"].resize_token_embeddings(len(parts["tokenizer"]), mean_resizing=False)
    return diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False)


def _sdxl() -> Any:
    """SDXL, of whose two text encoders one has more rows than there are tokens."""
    first, second = tiny_text.clip(WIDE // 2, layers=2), tiny_text.clip(WIDE // 2, projection=32, layers=3)
    second.resize_token_embeddings(len(tiny_text.clip_tokenizer()), mean_resizing=False)
    wide = {"block_out_channels": (8, WIDE), "cross_attention_dim": WIDE}
    parts = {**sdxl_parts(**wide), "text_encoder": first, "text_encoder_2": second}
    return diffusers.StableDiffusionXLPipeline(**parts, add_watermarker=False)


FLUX = Model("flux", _flux, "transformer", picture(num_inference_steps=1, max_sequence_length=16, guidance_scale=1.0))
SD = Model("sd", _sd, "unet")
SDXL = Model("sdxl", _sdxl, "unet")
MODELS = (FLUX, SD, SDXL)

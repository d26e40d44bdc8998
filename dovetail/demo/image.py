"""The first stage: an autoencoder between pictures and latents, of 8 channels at an eighth of the size."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from dovetail.demo.draw import SIZE, Scene, draw, training_scene
from dovetail.demo.loop import Recipe, Stage, rounded

RECIPE = Recipe("vae", steps=2200, rate=1.5e-3)
PICTURES = 20_000
_BATCH = 16
_KL = 1e-3


def training_set(
    count: int = PICTURES, painted_as: Callable[[Scene], Scene] = lambda scene: scene
) -> tuple[list[Scene], torch.Tensor]:
    """Draw the training pictures: their scenes, and uint8 values of shape (count, 3, 64, 64).

    With ``painted_as`` another scene is drawn than the one that is returned.
    """
    lot = random.Random(2)
    scenes = [training_scene(lot) for _ in range(count)]
    values = np.stack([draw(painted_as(scene), lot) for scene in scenes])
    return scenes, torch.from_numpy(values).permute(0, 3, 1, 2).contiguous()


def build() -> AutoencoderKL:
    """Make the autoencoder, untrained."""
    torch.manual_seed(0)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 48, 64),
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=8,
        sample_size=SIZE,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def train(pictures: torch.Tensor, work: Path) -> AutoencoderKL:
    """Train the autoencoder, and set the shift and scale that bring its latents to mean 0 and deviation 1."""
    vae = build()
    Stage(vae, RECIPE, work).run(partial(_loss, vae, pictures))
    rounded(vae)
    latents = encode(vae, pictures[:2000])
    vae.register_to_config(
        shift_factor=round(float(latents.mean()), 4), scaling_factor=round(1 / float(latents.std()), 4)
    )
    return vae


def _loss(vae: AutoencoderKL, pictures: torch.Tensor, step: int, generator: torch.Generator) -> torch.Tensor:
    batch = as_floats(pictures[torch.randint(len(pictures), (_BATCH,), generator=generator)])
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(batch).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        decoded = vae.decode(posterior.mean + posterior.std * noise).sample
    off = decoded.float() - batch
    kl = 0.5 * (posterior.mean.float() ** 2 + posterior.var.float() - 1 - posterior.logvar.float()).mean()
    loss: torch.Tensor = off.abs().mean() + off.square().mean() + _KL * kl
    return loss


def as_floats(pictures: torch.Tensor) -> torch.Tensor:
    """Turn uint8 pictures into floats in [-1, 1]."""
    return pictures.float() / 127.5 - 1


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: torch.Tensor) -> torch.Tensor:
    """Return the mean latents of uint8 pictures, shape (n, 8, 8, 8), neither shifted nor scaled."""
    return torch.cat([vae.encode(as_floats(part)).latent_dist.mean for part in pictures.split(100)])

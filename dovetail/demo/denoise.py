"""The third stage: the FLUX transformer, trained on latents and embeddings that are computed once.

The text is padded to 12 tokens here, but to any length in a call of the pipeline, unmasked. Since padding tokens are
all alike (no position, one embedding), k of them in attention are one whose logit is raised by log k: training under
varied padding costs no longer sequences.
"""

import math
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxPipeline, FluxTransformer2DModel
from torch import nn
from torch.nn import functional

from dovetail.demo import image
from dovetail.demo.draw import Scene
from dovetail.demo.loop import Recipe, Stage, rounded
from dovetail.demo.text import T5_LENGTH, WIDTH, Encoders

RECIPE = Recipe("transformer", steps=5000, rate=1e-3, betas=(0.9, 0.98), average=0.999)
SIDE = 4
_BATCH = 96
_DROPPED = 0.1
_LONGEST = 512
_VARIED_SHARE = 0.5


@dataclass(frozen=True)
class Corpus:
    """Everything the transformer is trained on; caption 0 is the empty one.

    Attributes:
        latents: packed, shifted and scaled latents of the pictures, shape (pictures, 16, 32).
        phrasings: which captions fit each picture, one list a picture.
        tokens: T5's embeddings, shape (captions, 12, 128).
        padding: which of those tokens are padding, shape (captions, 12).
        pooled: CLIP's embeddings, shape (captions, 128).
    """

    latents: torch.Tensor
    phrasings: list[list[int]]
    tokens: torch.Tensor
    padding: torch.Tensor
    pooled: torch.Tensor


def build() -> FluxTransformer2DModel:
    """Make the transformer, one double and three single blocks, its modulation and output layers at zero."""
    torch.manual_seed(2)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=32,
        num_layers=1,
        num_single_layers=3,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(16, 24, 24),
    )
    for layer in _zeroed(transformer):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return transformer


def _zeroed(transformer: FluxTransformer2DModel) -> list[nn.Linear]:
    double = [block.norm1.linear for block in transformer.transformer_blocks]
    context = [block.norm1_context.linear for block in transformer.transformer_blocks]
    single = [block.norm.linear for block in transformer.single_transformer_blocks]
    return [*double, *context, *single, transformer.norm_out.linear, transformer.proj_out]


@torch.no_grad()
def corpus(scenes: list[Scene], pictures: torch.Tensor, vae: AutoencoderKL, encoders: Encoders) -> Corpus:
    """Encode all pictures, and all phrasings of their scenes."""
    index: dict[str, int] = {"": 0}
    phrasings = [[index.setdefault(text, len(index)) for text in scene.phrasings()] for scene in scenes]
    parts = [list(index)[start : start + 500] for start in range(0, len(index), 500)]
    tokens = [encoders.tokens(part) for part in parts]
    latents = (image.encode(vae, pictures) - vae.config.shift_factor) * vae.config.scaling_factor
    return Corpus(
        latents=FluxPipeline._pack_latents(latents, *latents.shape),
        phrasings=phrasings,
        tokens=torch.cat([values for _, values in tokens]),
        padding=torch.cat([ids for ids, _ in tokens]) == encoders.t5_tokenizer.pad_token_id,
        pooled=torch.cat([encoders.pooled(part) for part in parts]),
    )


def train(data: Corpus, work: Path) -> FluxTransformer2DModel:
    """Train the transformer to predict the way from a picture's latents to noise."""
    transformer = build()
    Stage(transformer, RECIPE, work).run(partial(loss, transformer, data))
    rounded(transformer)
    return transformer


def loss(transformer: nn.Module, data: Corpus, step: int, generator: torch.Generator) -> torch.Tensor:
    """Return how far off the transformer's prediction is for pictures, captions and times drawn by lot."""
    chosen = torch.randint(len(data.latents), (_BATCH,), generator=generator)
    captions = _captions(data, chosen, random.Random(step))
    clean = data.latents[chosen]
    noise = torch.randn(clean.shape, generator=generator)
    time = torch.sigmoid(1.1 * torch.randn(_BATCH, generator=generator) + 0.5)
    share = time[:, None, None]
    bias = padding_bias(data.padding[captions], _longer(_BATCH, generator))
    with torch.autocast("cpu", torch.bfloat16):
        predicted = transformer(
            hidden_states=(1 - share) * clean + share * noise,
            encoder_hidden_states=data.tokens[captions],
            pooled_projections=data.pooled[captions],
            timestep=time,
            img_ids=image_ids(),
            txt_ids=torch.zeros(T5_LENGTH, 3),
            joint_attention_kwargs={"attention_mask": bias},
            return_dict=False,
        )[0]
    return functional.mse_loss(predicted.float(), noise - clean)


def _captions(data: Corpus, chosen: torch.Tensor, lot: random.Random) -> torch.Tensor:
    drawn = [0 if lot.random() < _DROPPED else lot.choice(data.phrasings[picture]) for picture in chosen.tolist()]
    return torch.tensor(drawn)


def image_ids() -> torch.Tensor:
    """Return the positions of the 16 image tokens, as the pipeline makes them, shape (16, 3)."""
    ids: torch.Tensor = FluxPipeline._prepare_latent_image_ids(1, SIDE, SIDE, torch.device("cpu"), torch.float32)
    return ids


def _longer(captions: int, generator: torch.Generator) -> torch.Tensor:
    """Draw how many padding tokens a caption has beyond the 12 tokens: none in half of the cases, else up to 500."""
    longer = torch.exp(torch.rand(captions, generator=generator) * math.log(_LONGEST - T5_LENGTH))
    return longer * (torch.rand(captions, generator=generator) < _VARIED_SHARE)


def padding_bias(padding: torch.Tensor, longer: torch.Tensor) -> torch.Tensor:
    """Return what raises the logits of the padding that is there as if there were more of it.

    Args:
        padding: which tokens are padding, at least one of each caption, shape (captions, 12).
        longer: how many further padding tokens each caption is to have, shape (captions,).

    Returns:
        A bias on the attention of text and image tokens, shape (captions, 1, 28, 28).
    """
    count = padding.sum(dim=1)
    bias = torch.where(padding, torch.log((count + longer) / count)[:, None], 0.0)
    bias = functional.pad(bias, (0, SIDE * SIDE))
    return bias[:, None, None, :].expand(-1, 1, bias.shape[1], -1)

"""Whole published pipelines at full size: their components, how often each is called, and their decoders in tiles.

Sizes are those of the models' own examples: 1024² pictures (512² for SD1.5), clips of some seconds. Guidance doubles
the batch, or the calls, as each pipeline does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import diffusers as d
import torch
import transformers as t
from torch import nn

from .full_size import FULL_SIZE
from .full_size_diffusion import KL, SD35, XL
from .full_size_encoders import clip, layers, masked, tokens
from .meta import FullSize, meta
from .tiny import Decode

i64, f32 = torch.int64, torch.float32


@dataclass(frozen=True)
class Component:
    """A component of a pipeline: its attribute, its role, what it is, its calls a picture, and decoding a tile."""

    name: str
    role: str
    part: str
    times: int = 1
    tile: tuple[str, int] | None = None


PARTS: dict[str, FullSize] = dict(FULL_SIZE)


def add(name: str, build: Callable[[], nn.Module], **call: object) -> None:
    PARTS[name] = FullSize(build, call)


def decoder(name: str, build: Callable[[], nn.Module], latent: tuple[int, ...], tile: tuple[int, ...]) -> None:
    """A decoder on a whole latent, and on a tile of it."""
    add(name, lambda: Decode(build()), latent=meta(*latent))
    add(f"{name}-tile", lambda: Decode(build()), latent=meta(*tile))


def umt5() -> nn.Module:
    return t.UMT5EncoderModel(
        t.UMT5Config(vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
                     feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False)
    )  # fmt: skip


def llama() -> nn.Module:
    return t.LlamaModel(
        t.LlamaConfig(vocab_size=128320, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                      num_attention_heads=32, num_key_value_heads=8)
    )  # fmt: skip


def gemma2() -> nn.Module:
    return t.Gemma2Model(
        t.Gemma2Config(vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
                       num_attention_heads=8, num_key_value_heads=4, head_dim=256)
    )  # fmt: skip


def dc() -> nn.Module:
    kinds = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    scales = ((), (), (), (5,), (5,), (5,))
    widths = (128, 256, 512, 512, 1024, 1024)
    return d.AutoencoderDC(
        latent_channels=32, attention_head_dim=32, encoder_block_types=kinds, decoder_block_types=kinds,
        encoder_block_out_channels=widths, decoder_block_out_channels=widths,
        encoder_layers_per_block=(2, 2, 2, 3, 3, 3), decoder_layers_per_block=(3,) * 6,
        encoder_qkv_multiscales=scales, decoder_qkv_multiscales=scales,
        upsample_block_type="interpolate", downsample_block_type="Conv",
    )  # fmt: skip


def kl(channels: int, quant: bool = True) -> Callable[[], nn.Module]:
    return lambda: d.AutoencoderKL(
        **KL, sample_size=1024, latent_channels=channels, use_quant_conv=quant, use_post_quant_conv=quant
    )


add("te-umt5-xxl", umt5, **masked())
add("te-llama-8b", llama, **layers(351))
add("te-gemma2-2b", gemma2, **masked(300, use_cache=False))
add("te-t5-xxl-256", FULL_SIZE["te-t5-xxl-mask"].build, **tokens(256))
add("te-clip-l-2", lambda: t.CLIPTextModel(clip(768, 12, 12, "quick_gelu")), **tokens(77, output_hidden_states=True))

add("sd15-unet-2", FULL_SIZE["sd15-unet"].build, sample=meta(2, 4, 64, 64), timestep=meta(1, dtype=i64),
    encoder_hidden_states=meta(2, 77, 768), return_dict=False)  # fmt: skip
add("sdxl-unet-2", FULL_SIZE["sdxl-unet"].build, sample=meta(2, 4, 128, 128), timestep=meta(1, dtype=f32),
    encoder_hidden_states=meta(2, 77, 2048), return_dict=False,
    added_cond_kwargs=dict(text_embeds=meta(2, 1280), time_ids=meta(2, 6)))  # fmt: skip
add("sd3.5-large-2", lambda: d.SD3Transformer2DModel(**SD35, num_layers=38), hidden_states=meta(2, 16, 128, 128),
    encoder_hidden_states=meta(2, 333, 4096), pooled_projections=meta(2, 2048), timestep=meta(2, dtype=f32),
    return_dict=False)  # fmt: skip
add("sana-1.6b-2", lambda: d.SanaTransformer2DModel(), hidden_states=meta(2, 32, 32, 32),
    encoder_hidden_states=meta(2, 300, 2304), timestep=meta(2, dtype=f32),
    encoder_attention_mask=meta(2, 300, dtype=i64), return_dict=False)  # fmt: skip

decoder("dec-sd15", kl(4), (1, 4, 64, 64), (1, 4, 32, 32))
decoder("dec-sdxl", kl(4), (1, 4, 128, 128), (1, 4, 64, 64))
decoder("dec-flux", kl(16, quant=False), (1, 16, 128, 128), (1, 16, 64, 64))
decoder("dec-flux2", lambda: d.AutoencoderKLFlux2(), (1, 32, 128, 128), (1, 32, 64, 64))
decoder("dec-qwenimage", lambda: d.AutoencoderKLQwenImage(), (1, 16, 1, 128, 128), (1, 16, 1, 32, 32))
decoder("dec-sana", dc, (1, 32, 32, 32), (1, 32, 16, 16))
decoder("dec-wan", lambda: d.AutoencoderKLWan(), (1, 16, 21, 60, 104), (1, 16, 21, 32, 32))
decoder("dec-hunyuan", lambda: d.AutoencoderKLHunyuanVideo(), (1, 16, 16, 68, 120), (1, 16, 5, 32, 32))
decoder("dec-ltx2", lambda: d.AutoencoderKLLTX2Video(), (1, 128, 16, 16, 24), (1, 128, 4, 16, 16))

PIPELINES: dict[str, tuple[Component, ...]] = {
    "FLUX.1-dev": (
        Component("text_encoder", "te", "te-clip-l"),
        Component("text_encoder_2", "te", "te-t5-xxl-mask"),
        Component("transformer", "diffusion", "flux-dev", 28),
        Component("vae", "vae", "dec-flux", tile=("dec-flux-tile", 9)),
    ),
    "FLUX.2-dev": (
        Component("text_encoder", "te", "te-mistral3-24b"),
        Component("transformer", "diffusion", "flux2-dev", 28),
        Component("vae", "vae", "dec-flux2", tile=("dec-flux2-tile", 9)),
    ),
    "Qwen-Image": (
        Component("text_encoder", "te", "te-qwen2.5-vl-7b-text", 2),
        Component("transformer", "diffusion", "qwen-image", 100),
        Component("vae", "vae", "dec-qwenimage", tile=("dec-qwenimage-tile", 36)),
    ),
    "SD3.5-large": (
        Component("text_encoder", "te", "te-clip-l-2", 2),
        Component("text_encoder_2", "te", "te-openclip-g", 2),
        Component("text_encoder_3", "te", "te-t5-xxl-256", 2),
        Component("transformer", "diffusion", "sd3.5-large-2", 28),
        Component("vae", "vae", "dec-flux", tile=("dec-flux-tile", 9)),
    ),
    "SDXL": (
        Component("text_encoder", "te", "te-clip-l-2", 2),
        Component("text_encoder_2", "te", "te-openclip-g", 2),
        Component("unet", "diffusion", "sdxl-unet-2", 50),
        Component("vae", "vae", "dec-sdxl", tile=("dec-sdxl-tile", 9)),
    ),
    "LTX-2": (
        Component("text_encoder", "te", "te-gemma3-12b-text", 2),
        Component("transformer", "diffusion", "ltx2-19b", 80),
        Component("vae", "vae", "dec-ltx2", tile=("dec-ltx2-tile", 30)),
    ),
    "Wan 2.1 14B": (
        Component("text_encoder", "te", "te-umt5-xxl", 2),
        Component("transformer", "diffusion", "wan2.1-14b", 100),
        Component("vae", "vae", "dec-wan", tile=("dec-wan-tile", 15)),
    ),
    "Wan 2.2 A14B": (
        Component("text_encoder", "te", "te-umt5-xxl", 2),
        Component("transformer", "diffusion", "wan2.1-14b", 28),
        Component("transformer_2", "diffusion", "wan2.1-14b", 52),
        Component("vae", "vae", "dec-wan", tile=("dec-wan-tile", 15)),
    ),
    "Z-Image": (
        Component("text_encoder", "te", "te-qwen3-4b"),
        Component("transformer", "diffusion", "z-image", 9),
        Component("vae", "vae", "dec-flux", tile=("dec-flux-tile", 9)),
    ),
    "HunyuanVideo": (
        Component("text_encoder", "te", "te-llama-8b"),
        Component("text_encoder_2", "te", "te-clip-l"),
        Component("transformer", "diffusion", "hunyuan-video", 50),
        Component("vae", "vae", "dec-hunyuan", tile=("dec-hunyuan-tile", 75)),
    ),
    "Chroma": (
        Component("text_encoder", "te", "te-t5-xxl-mask", 2),
        Component("transformer", "diffusion", "chroma1-hd", 80),
        Component("vae", "vae", "dec-flux", tile=("dec-flux-tile", 9)),
    ),
    "Sana": (
        Component("text_encoder", "te", "te-gemma2-2b", 2),
        Component("transformer", "diffusion", "sana-1.6b-2", 20),
        Component("vae", "vae", "dec-sana", tile=("dec-sana-tile", 9)),
    ),
    "SD1.5": (
        Component("text_encoder", "te", "te-clip-l-2", 2),
        Component("unet", "diffusion", "sd15-unet-2", 50),
        Component("vae", "vae", "dec-sd15", tile=("dec-sd15-tile", 9)),
    ),
}  # fmt: skip

__all__ = ["PARTS", "PIPELINES", "XL", "Component"]

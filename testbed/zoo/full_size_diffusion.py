"""Full-size diffusion models and autoencoders, as class defaults, conversion scripts or published configs have them."""

from __future__ import annotations

from collections.abc import Callable

import diffusers as d
import torch
from torch import nn

from .meta import FULL_SIZE, FullSize, add, meta
from .tiny import Decode, Encode

i64, f32 = torch.int64, torch.float32

# Diffusion transformers

FLUX = dict(
    hidden_states=meta(1, 4096, 64),
    encoder_hidden_states=meta(1, 512, 4096),
    pooled_projections=meta(1, 768),
    timestep=meta(1),
    img_ids=meta(4096, 3),
    txt_ids=meta(512, 3),
    return_dict=False,
)
GUIDED = dict(FLUX, guidance=meta(1, dtype=f32))
add("flux-dev", lambda: d.FluxTransformer2DModel(guidance_embeds=True), **GUIDED)
add("flux-schnell", lambda: d.FluxTransformer2DModel(guidance_embeds=False), **FLUX)
FLUX2 = dict(
    hidden_states=meta(1, 4096, 128),
    timestep=meta(1),
    img_ids=meta(1, 4096, 4, dtype=i64),
    txt_ids=meta(1, 512, 4, dtype=i64),
    return_dict=False,
)
add(
    "flux2-dev",
    lambda: d.Flux2Transformer2DModel(),
    **FLUX2,
    encoder_hidden_states=meta(1, 512, 15360),
    guidance=meta(1, dtype=f32),
)
add(
    "flux2-klein-9b",
    lambda: d.Flux2Transformer2DModel(
        num_layers=8, num_single_layers=24, num_attention_heads=32, joint_attention_dim=12288, guidance_embeds=False
    ),
    **FLUX2,
    encoder_hidden_states=meta(1, 512, 12288),
)
SD35 = dict(
    sample_size=128,
    patch_size=2,
    in_channels=16,
    attention_head_dim=64,
    num_attention_heads=38,
    joint_attention_dim=4096,
    caption_projection_dim=2432,
    pooled_projection_dim=2048,
    out_channels=16,
    pos_embed_max_size=192,
    qk_norm="rms_norm",
)
add(
    "sd3.5-large",
    lambda: d.SD3Transformer2DModel(**SD35, num_layers=38),
    hidden_states=meta(1, 16, 128, 128),
    encoder_hidden_states=meta(1, 333, 4096),
    pooled_projections=meta(1, 2048),
    timestep=meta(1, dtype=f32),
    return_dict=False,
)
add(
    "chroma1-hd",
    lambda: d.ChromaTransformer2DModel(),
    hidden_states=meta(1, 4096, 64),
    encoder_hidden_states=meta(1, 512, 4096),
    timestep=meta(1),
    img_ids=meta(4096, 3),
    txt_ids=meta(512, 3),
    attention_mask=meta(1, 4608),
    return_dict=False,
)
add(
    "qwen-image",
    lambda: d.QwenImageTransformer2DModel(),
    hidden_states=meta(1, 4096, 64),
    encoder_hidden_states=meta(1, 128, 3584),
    encoder_hidden_states_mask=meta(1, 128, dtype=torch.bool),
    timestep=meta(1),
    img_shapes=[[(1, 64, 64)]],
    return_dict=False,
)
add(
    "z-image",
    lambda: d.ZImageTransformer2DModel(axes_lens=[1536, 512, 512]),
    x=[meta(16, 1, 128, 128)],
    t=meta(1, dtype=f32),
    cap_feats=[meta(96, 2560)],
    return_dict=False,
)
add(
    "pixart-sigma-1024",
    lambda: d.PixArtTransformer2DModel(
        sample_size=128, caption_channels=4096, interpolation_scale=2, use_additional_conditions=False
    ),
    hidden_states=meta(1, 4, 128, 128),
    encoder_hidden_states=meta(1, 300, 4096),
    timestep=meta(1, dtype=i64),
    added_cond_kwargs=dict(resolution=None, aspect_ratio=None),
    encoder_attention_mask=meta(1, 300, dtype=i64),
    return_dict=False,
)
add(
    "sana-1.6b",
    lambda: d.SanaTransformer2DModel(),
    hidden_states=meta(1, 32, 32, 32),
    encoder_hidden_states=meta(1, 300, 2304),
    timestep=meta(1, dtype=f32),
    encoder_attention_mask=meta(1, 300, dtype=i64),
    return_dict=False,
)
add(
    "ltx-0.9.7-13b",
    lambda: d.LTXVideoTransformer3DModel(attention_head_dim=128, cross_attention_dim=4096, num_layers=48),
    hidden_states=meta(1, 16 * 16 * 22, 128),
    encoder_hidden_states=meta(1, 128, 4096),
    timestep=meta(1, dtype=f32),
    encoder_attention_mask=meta(1, 128, dtype=torch.bool),
    num_frames=16,
    height=16,
    width=22,
    rope_interpolation_scale=(8 / 25, 32, 32),
    return_dict=False,
)
add(
    "ltx2-19b",
    lambda: d.LTX2VideoTransformer3DModel(),
    hidden_states=meta(1, 16 * 16 * 24, 128),
    audio_hidden_states=meta(1, 126, 128),
    encoder_hidden_states=meta(1, 1024, 3840),
    audio_encoder_hidden_states=meta(1, 1024, 3840),
    timestep=meta(1, dtype=f32),
    sigma=meta(1, dtype=f32),
    encoder_attention_mask=meta(1, 1024, dtype=i64),
    audio_encoder_attention_mask=meta(1, 1024, dtype=i64),
    num_frames=16,
    height=16,
    width=24,
    fps=24.0,
    audio_num_frames=126,
    return_dict=False,
)
add(
    "wan2.1-14b",
    lambda: d.WanTransformer3DModel(),
    hidden_states=meta(1, 16, 21, 60, 104),
    timestep=meta(1, dtype=i64),
    encoder_hidden_states=meta(1, 512, 4096),
    return_dict=False,
)
add(
    "wan2.2-ti2v-5b",
    lambda: d.WanTransformer3DModel(
        num_attention_heads=24, in_channels=48, out_channels=48, ffn_dim=14336, num_layers=30
    ),
    hidden_states=meta(1, 48, 31, 44, 80),
    timestep=meta(1, 31 * 22 * 40, dtype=f32),
    encoder_hidden_states=meta(1, 512, 4096),
    return_dict=False,
)
add(
    "hunyuan-video",
    lambda: d.HunyuanVideoTransformer3DModel(),
    hidden_states=meta(1, 16, 16, 68, 120),
    timestep=meta(1),
    encoder_hidden_states=meta(1, 256, 4096),
    encoder_attention_mask=meta(1, 256),
    pooled_projections=meta(1, 768),
    guidance=meta(1),
    return_dict=False,
)

# UNets and ControlNets

XL = dict(
    in_channels=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    block_out_channels=(320, 640, 1280),
    transformer_layers_per_block=(1, 2, 10),
    attention_head_dim=(5, 10, 20),
    cross_attention_dim=2048,
    addition_embed_type="text_time",
    addition_time_embed_dim=256,
    projection_class_embeddings_input_dim=2816,
    use_linear_projection=True,
)
XL_CALL = dict(
    sample=meta(1, 4, 128, 128),
    timestep=meta(1, dtype=f32),
    encoder_hidden_states=meta(1, 77, 2048),
    added_cond_kwargs=dict(text_embeds=meta(1, 1280), time_ids=meta(1, 6)),
    return_dict=False,
)
add(
    "sd15-unet",
    lambda: d.UNet2DConditionModel(
        sample_size=64, in_channels=4, out_channels=4, cross_attention_dim=768, attention_head_dim=8
    ),
    sample=meta(1, 4, 64, 64),
    timestep=meta(1, dtype=i64),
    encoder_hidden_states=meta(1, 77, 768),
    return_dict=False,
)
add(
    "sdxl-unet",
    lambda: d.UNet2DConditionModel(
        **XL,
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        sample_size=128,
        out_channels=4,
    ),
    **XL_CALL,
)
add("controlnet-sdxl", lambda: d.ControlNetModel(**XL), **XL_CALL, controlnet_cond=meta(1, 3, 1024, 1024))
add(
    "controlnet-flux-union",
    lambda: d.FluxControlNetModel(num_layers=5, num_single_layers=10, guidance_embeds=True, num_mode=10),
    **GUIDED,
    controlnet_cond=meta(1, 4096, 64),
    controlnet_mode=meta(1, 1, dtype=i64),
    conditioning_scale=0.7,
)

# Autoencoders

KL = dict(
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
)


def add_vae(name: str, build: Callable[[], nn.Module], sample: tuple[int, ...], latent: tuple[int, ...]) -> None:
    add(f"{name}-enc", lambda: Encode(build()), sample=meta(*sample))
    add(f"{name}-dec", lambda: Decode(build()), latent=meta(*latent))


add_vae("vae-sd15", lambda: d.AutoencoderKL(**KL, sample_size=512), (1, 3, 512, 512), (1, 4, 64, 64))
add_vae(
    "vae-flux",
    lambda: d.AutoencoderKL(
        **KL, sample_size=1024, latent_channels=16, use_quant_conv=False, use_post_quant_conv=False
    ),
    (1, 3, 1024, 1024),
    (1, 16, 128, 128),
)
add_vae("vae-wan2.1", lambda: d.AutoencoderKLWan(), (1, 3, 17, 480, 832), (1, 16, 5, 60, 104))
add_vae("vae-qwenimage", lambda: d.AutoencoderKLQwenImage(), (1, 3, 1, 1024, 1024), (1, 16, 1, 128, 128))

# Models that can be made deeper

DEEPENED: dict[str, Callable[[int], nn.Module]] = {
    "flux-dev": lambda depth: d.FluxTransformer2DModel(
        guidance_embeds=True, num_layers=depth // 3, num_single_layers=depth - depth // 3
    ),
    "sd3.5-large": lambda depth: d.SD3Transformer2DModel(**SD35, num_layers=depth),
    "wan2.1-14b": lambda depth: d.WanTransformer3DModel(num_layers=depth),
}


def deepened(name: str, depth: int) -> FullSize:
    """An entry with another number of layers."""
    return FullSize(lambda: DEEPENED[name](depth), FULL_SIZE[name].call)

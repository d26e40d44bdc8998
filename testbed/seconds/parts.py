"""What was measured by others, at the sizes that they used, as modules on meta: entries beside those of the zoo."""

from __future__ import annotations

import diffusers as d
import torch

from ..zoo.full_size_pipelines import PARTS, add
from ..zoo.meta import meta
from ..zoo.tiny import Call

f32, i64 = torch.float32, torch.int64


def flux(tokens: int) -> Call:
    """A call of FLUX.1-dev with so many tokens of the picture, 16 × 16 pixels each."""
    return {
        "hidden_states": meta(1, tokens, 64), "encoder_hidden_states": meta(1, 512, 4096), "timestep": meta(1),
        "pooled_projections": meta(1, 768), "guidance": meta(1, dtype=f32), "img_ids": meta(tokens, 3),
        "txt_ids": meta(512, 3), "return_dict": False,
    }  # fmt: skip


def xl(batch: int, height: int, width: int) -> Call:
    """A call of SDXL's denoiser on latents of a size."""
    return {
        "sample": meta(batch, 4, height, width), "timestep": meta(1, dtype=f32), "return_dict": False,
        "encoder_hidden_states": meta(batch, 77, 2048),
        "added_cond_kwargs": {"text_embeds": meta(batch, 1280), "time_ids": meta(batch, 6)},
    }  # fmt: skip


def cog(frames: int, height: int, width: int, text: int, tokens: int) -> Call:
    """A call of a CogVideoX with guidance; ``tokens`` are those of the video, 0 for one without rotary embeddings."""
    rotary = (meta(tokens, 64, dtype=f32), meta(tokens, 64, dtype=f32)) if tokens else None
    return {
        "hidden_states": meta(2, frames, 16, height, width), "encoder_hidden_states": meta(2, text, 4096),
        "timestep": meta(2, dtype=i64), "image_rotary_emb": rotary, "return_dict": False,
    }  # fmt: skip


add("flux-dev-768", PARTS["flux-dev"].build, **flux(48 * 48))
add("flux-dev-1024x720", PARTS["flux-dev"].build, **flux(64 * 45))
add("sdxl-unet-2-512", PARTS["sdxl-unet"].build, **xl(2, 64, 64))
add("sdxl-unet-8-832", PARTS["sdxl-unet"].build, **xl(8, 152, 104))
add(
    "hunyuan-video-129", PARTS["hunyuan-video"].build, hidden_states=meta(1, 16, 33, 90, 160), timestep=meta(1),
    encoder_hidden_states=meta(1, 256, 4096), encoder_attention_mask=meta(1, 256), pooled_projections=meta(1, 768),
    guidance=meta(1), return_dict=False,
)  # fmt: skip
add(
    "wan2.1-i2v-14b-480",
    lambda: d.WanTransformer3DModel(in_channels=36, image_dim=1280, added_kv_proj_dim=5120),
    hidden_states=meta(1, 36, 21, 60, 104), timestep=meta(1, dtype=i64), encoder_hidden_states=meta(1, 512, 4096),
    encoder_hidden_states_image=meta(1, 257, 1280), return_dict=False,
)  # fmt: skip
add(
    "wan2.1-1.3b",
    lambda: d.WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30),
    hidden_states=meta(1, 16, 21, 60, 104), timestep=meta(1, dtype=i64), encoder_hidden_states=meta(1, 512, 4096),
    return_dict=False,
)  # fmt: skip
add(
    "cogvideox-5b-2",
    lambda: d.CogVideoXTransformer3DModel(num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True),
    **cog(13, 60, 90, 226, 13 * 30 * 45),
)
add("cogvideox-2b-2", lambda: d.CogVideoXTransformer3DModel(), **cog(13, 60, 90, 226, 0))
add(
    "cogvideox1.5-5b-2",
    lambda: d.CogVideoXTransformer3DModel(
        num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True, patch_size_t=2,
        patch_bias=False, sample_width=170, sample_height=96, sample_frames=81,
    ),
    **cog(22, 96, 170, 224, 11 * 48 * 85),
)  # fmt: skip
add(
    "hunyuandit-2",
    lambda: d.HunyuanDiT2DModel(
        num_layers=40, cross_attention_dim=1024, cross_attention_dim_t5=2048, hidden_size=1408,
        num_attention_heads=16, attention_head_dim=88, in_channels=4, patch_size=2, sample_size=128, mlp_ratio=4.3637,
        text_len=77, text_len_t5=256, pooled_projection_dim=1024, learn_sigma=True,
    ),
    hidden_states=meta(2, 4, 128, 128), timestep=meta(2), encoder_hidden_states=meta(2, 77, 1024),
    text_embedding_mask=meta(2, 77, dtype=i64), encoder_hidden_states_t5=meta(2, 256, 2048),
    text_embedding_mask_t5=meta(2, 256, dtype=i64), image_meta_size=meta(2, 6), style=meta(2, dtype=i64),
    image_rotary_emb=(meta(4096, 88), meta(4096, 88)), return_dict=False,
)  # fmt: skip
add(
    "ltx-161f", PARTS["ltx-0.9.7-13b"].build, hidden_states=meta(1, 7392, 128), timestep=meta(1, dtype=f32),
    encoder_hidden_states=meta(1, 256, 4096), encoder_attention_mask=meta(1, 256), video_coords=meta(1, 3, 7392),
    return_dict=False,
)  # fmt: skip
__all__ = ["PARTS"]

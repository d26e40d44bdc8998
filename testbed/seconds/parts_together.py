"""What others measured on several cards, at the sizes that they used, as modules on meta: entries beside `parts`."""

from __future__ import annotations

import diffusers as d
import torch

from ..zoo.full_size_pipelines import PARTS, add
from ..zoo.meta import meta
from ..zoo.tiny import Call
from . import parts
from .parts import xl

i64 = torch.int64


def film(height: int, width: int, frames: int) -> Call:
    """A call of Wan 2.1 for so many frames of latents."""
    return {
        "hidden_states": meta(1, 16, frames, height, width), "timestep": meta(1, dtype=i64),
        "encoder_hidden_states": meta(1, 512, 4096), "return_dict": False,
    }  # fmt: skip


add("sdxl-unet-2-720x1024", PARTS["sdxl-unet"].build, **xl(2, 128, 90))
add("sdxl-unet-2-2048", PARTS["sdxl-unet"].build, **xl(2, 256, 256))
add("wan2.1-14b-480x480x33", PARTS["wan2.1-14b"].build, **film(60, 60, 9))
add("wan2.1-1.3b-33f", PARTS["wan2.1-1.3b"].build, **film(60, 104, 9))
add(
    "hunyuan-video-33f", PARTS["hunyuan-video"].build, hidden_states=meta(1, 16, 9, 60, 104), timestep=meta(1),
    encoder_hidden_states=meta(1, 256, 4096), encoder_attention_mask=meta(1, 256), pooled_projections=meta(1, 768),
    guidance=meta(1), return_dict=False,
)  # fmt: skip
add(
    "chroma1-hd-2", lambda: d.ChromaTransformer2DModel(), hidden_states=meta(2, 4096, 64),
    encoder_hidden_states=meta(2, 512, 4096), timestep=meta(2), img_ids=meta(4096, 3), txt_ids=meta(512, 3),
    attention_mask=meta(2, 4608), return_dict=False,
)  # fmt: skip
add(
    "qwen-image-1328", PARTS["qwen-image"].build, hidden_states=meta(1, 83 * 83, 64),
    encoder_hidden_states=meta(1, 128, 3584), encoder_hidden_states_mask=meta(1, 128, dtype=torch.bool),
    timestep=meta(1), img_shapes=[[(1, 83, 83)]], return_dict=False,
)  # fmt: skip
__all__ = ["PARTS", "parts"]

"""Pipelines at full size whose transformers no trace takes whole, as folders: configurations over sparse files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import transformers
from torch import nn

from .folders import empty, save, wide_vae, write_sparse
from .pipelines import tiny_text
from .zoo.full_size_encoders import clip
from .zoo.full_size_pipelines import gemma2

HIDREAM: dict[str, Any] = {
    "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 16, "num_single_layers": 32,
    "attention_head_dim": 128, "num_attention_heads": 20, "caption_channels": [4096, 4096], "text_emb_dim": 2048,
    "num_routed_experts": 4, "num_activated_experts": 2, "axes_dims_rope": [64, 32, 32], "max_resolution": [128, 128],
    "llama_layers": [*range(32), *[31] * 16],
}  # fmt: skip
LUMINA2: dict[str, Any] = {"sample_size": 128, "cap_feat_dim": 2304}
OMNIGEN: dict[str, Any] = {
    "hidden_size": 3072, "in_channels": 4, "intermediate_size": 8192, "num_attention_heads": 32, "num_layers": 32,
    "num_key_value_heads": 32, "pad_token_id": 32000, "patch_size": 2, "pos_embed_max_size": 192, "vocab_size": 32064,
    "rope_scaling": {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48, "type": "su"},
}  # fmt: skip
"""Published configurations, what is a class's default left out; the factors of OmniGen's positions are all one."""


def hidream_folder(folder: Path) -> Path:
    """HiDream-I1 in bfloat16 over sparse files: 31.9 GiB of transformer, four text encoders."""
    llama = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8,
    )  # fmt: skip
    with empty():
        parts = {
            "transformer": diffusers.HiDreamImageTransformer2DModel(**HIDREAM),
            "vae": diffusers.AutoencoderKL(**wide_vae()),
            "text_encoder": transformers.CLIPTextModelWithProjection(clip(768, 12, 12, "quick_gelu")),
            "text_encoder_2": transformers.CLIPTextModelWithProjection(clip(1280, 32, 20, "gelu")),
            "text_encoder_3": transformers.T5EncoderModel(_t5()),
            "text_encoder_4": transformers.LlamaForCausalLM(llama),
        }
    others = {
        "tokenizer": tiny_text.clip_tokenizer(77),
        "tokenizer_2": tiny_text.clip_tokenizer(77),
        "tokenizer_3": tiny_text.t5_tokenizer(128),
        "tokenizer_4": tiny_text.t5_tokenizer(128),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    }
    return save(folder, diffusers.HiDreamImagePipeline, parts, others, write_sparse)


def lumina2_folder(folder: Path) -> Path:
    """Lumina-Image-2.0 in bfloat16 over sparse files: 4.9 GiB of transformer."""
    with empty():
        parts = {
            "transformer": diffusers.Lumina2Transformer2DModel(**LUMINA2),
            "vae": diffusers.AutoencoderKL(**wide_vae()),
            "text_encoder": gemma2(),
        }
    others = {
        "tokenizer": tiny_text.t5_tokenizer(256),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=6.0),
    }
    return save(folder, diffusers.Lumina2Pipeline, parts, others, write_sparse)


def mochi_folder(folder: Path) -> Path:
    """Mochi 1 in bfloat16 over sparse files: 18.7 GiB of transformer."""
    with empty():
        parts = {
            "transformer": diffusers.MochiTransformer3DModel(),
            "vae": diffusers.AutoencoderKLMochi(),
            "text_encoder": transformers.T5EncoderModel(_t5()),
        }
    others = {
        "tokenizer": tiny_text.t5_tokenizer(256),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
    }
    return save(folder, diffusers.MochiPipeline, parts, others, write_sparse)


def omnigen() -> nn.Module:
    """The transformer of OmniGen without weights."""
    with empty():
        return diffusers.OmniGenTransformer2DModel(**OMNIGEN).eval()


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "HiDream-I1": hidream_folder,
    "Lumina-Image-2.0": lumina2_folder,
    "Mochi 1": mochi_folder,
}


def _t5() -> Any:
    return transformers.T5Config(
        vocab_size=32128, d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip

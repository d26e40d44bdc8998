"""Full-size text encoders, as they are published."""

from __future__ import annotations

from typing import Any

import torch
import transformers as t
from torch import nn

from .meta import add, meta
from .tiny import Call

i64 = torch.int64


def tokens(length: int, **more: Any) -> Call:
    return dict(input_ids=meta(1, length, dtype=i64), return_dict=False, **more)


def masked(length: int = 512, **more: Any) -> Call:
    return tokens(length, attention_mask=meta(1, length, dtype=i64), **more)


def layers(length: int = 512) -> Call:
    return masked(length, use_cache=False, output_hidden_states=True)


def clip(width: int, depth: int, heads: int, act: str) -> t.CLIPTextConfig:
    return t.CLIPTextConfig(
        vocab_size=49408,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        max_position_embeddings=77,
        hidden_act=act,
        projection_dim=width,
    )


add("te-clip-l", lambda: t.CLIPTextModel(clip(768, 12, 12, "quick_gelu")), **tokens(77))
add(
    "te-openclip-g",
    lambda: t.CLIPTextModelWithProjection(clip(1280, 32, 20, "gelu")),
    **tokens(77, output_hidden_states=True),
)
add(
    "te-t5-xxl-mask",
    lambda: t.T5EncoderModel(
        t.T5Config(
            vocab_size=32128,
            d_model=4096,
            d_kv=64,
            d_ff=10240,
            num_layers=24,
            num_heads=64,
            feed_forward_proj="gated-gelu",
            is_encoder_decoder=False,
            use_cache=False,
        )
    ),
    **masked(),
)


def qwen_vl() -> nn.Module:
    config = t.Qwen2_5_VLConfig(
        text_config=dict(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
            max_position_embeddings=128000,
            rope_parameters=dict(rope_type="default", mrope_section=[16, 24, 24], rope_theta=1e6),
        ),
        vision_config=dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=3584),
    )
    return t.Qwen2_5_VLForConditionalGeneration(config).model.language_model  # type: ignore[no-any-return]


add("te-qwen2.5-vl-7b-text", qwen_vl, **layers())
add(
    "te-qwen3-4b",
    lambda: t.Qwen3Model(
        t.Qwen3Config(
            vocab_size=151936,
            hidden_size=2560,
            intermediate_size=9728,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        )
    ),
    **layers(),
)
add(
    "te-gemma3-12b-text",
    lambda: t.Gemma3TextModel(
        t.Gemma3TextConfig(
            vocab_size=262208,
            hidden_size=3840,
            intermediate_size=15360,
            num_hidden_layers=48,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=256,
            sliding_window=1024,
            query_pre_attn_scalar=256,
        )
    ),
    **layers(1024),
)


def mistral() -> nn.Module:
    config = t.Mistral3Config(
        text_config=dict(
            model_type="mistral",
            vocab_size=131072,
            hidden_size=5120,
            intermediate_size=32768,
            num_hidden_layers=40,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            sliding_window=None,
            max_position_embeddings=131072,
        ),
        vision_config=dict(
            model_type="pixtral",
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            head_dim=64,
            image_size=1540,
            patch_size=14,
        ),
    )
    return t.Mistral3ForConditionalGeneration(config)


add("te-mistral3-24b", mistral, **layers())

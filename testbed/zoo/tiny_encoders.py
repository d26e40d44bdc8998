"""Tiny text and vision encoders."""

from __future__ import annotations

from typing import Any

import torch

from .tiny import Call, Draw, tiny_encoder

SMALL = dict(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=64,
)
GROUPED = dict(SMALL, num_key_value_heads=2, head_dim=8)


def tokens(draw: Draw, **more: Any) -> Call:
    """A call with token ids, all of them read."""
    return dict(input_ids=draw.ids(90, 2, 9), attention_mask=torch.ones(2, 9, dtype=torch.int64), **more)


def layers(draw: Draw) -> Call:
    """A call that asks for the output of every layer."""
    return tokens(draw, output_hidden_states=True, use_cache=False)


tiny_encoder("CLIPTextModel", "CLIPTextConfig", SMALL, lambda draw: dict(input_ids=draw.ids(90, 2, 9)))
tiny_encoder(
    "CLIPTextModelWithProjection",
    "CLIPTextConfig",
    dict(SMALL, projection_dim=16, hidden_act="gelu"),
    lambda draw: dict(input_ids=draw.ids(90, 2, 9), output_hidden_states=True),
)
T5 = dict(
    vocab_size=99,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=3,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    use_cache=False,
)
tiny_encoder("T5EncoderModel", "T5Config", dict(T5, is_encoder_decoder=False), tokens)
tiny_encoder("UMT5EncoderModel", "UMT5Config", dict(T5, is_encoder_decoder=False), tokens)
tiny_encoder("BertModel", "BertConfig", SMALL, tokens)
tiny_encoder("Qwen3Model", "Qwen3Config", GROUPED, layers)
tiny_encoder("Qwen2Model", "Qwen2Config", dict(SMALL, num_key_value_heads=2), layers)
tiny_encoder(
    "Qwen2_5_VLTextModel",
    "Qwen2_5_VLTextConfig",
    dict(
        SMALL,
        num_key_value_heads=2,
        rope_parameters=dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=1e6),
    ),
    layers,
)
tiny_encoder("LlamaModel", "LlamaConfig", GROUPED, layers)
tiny_encoder("MistralModel", "MistralConfig", dict(GROUPED, sliding_window=None), layers)
tiny_encoder("GemmaModel", "GemmaConfig", GROUPED, layers)
tiny_encoder("Gemma2Model", "Gemma2Config", GROUPED, layers)
tiny_encoder("Gemma3TextModel", "Gemma3TextConfig", dict(GROUPED, sliding_window=4), layers)
PICTURE = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, image_size=16, patch_size=4
)
tiny_encoder("CLIPVisionModel", "CLIPVisionConfig", PICTURE, lambda draw: dict(pixel_values=draw(2, 3, 16, 16)))
tiny_encoder(
    "CLIPVisionModelWithProjection",
    "CLIPVisionConfig",
    dict(PICTURE, projection_dim=16),
    lambda draw: dict(pixel_values=draw(2, 3, 16, 16)),
)
tiny_encoder("SiglipVisionModel", "SiglipVisionConfig", PICTURE, lambda draw: dict(pixel_values=draw(2, 3, 16, 16)))
tiny_encoder(
    "Dinov2Model", "Dinov2Config", dict(PICTURE, mlp_ratio=2), lambda draw: dict(pixel_values=draw(2, 3, 16, 16))
)

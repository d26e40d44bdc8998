"""Tiny diffusion transformers for video."""

from __future__ import annotations

import torch

from .tiny import tiny

tiny(
    "HunyuanVideoTransformer3DModel",
    dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        patch_size=2,
        patch_size_t=1,
        guidance_embeds=True,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
    ),
    lambda draw: dict(
        hidden_states=draw(1, 4, 1, 16, 16),
        timestep=draw(1),
        encoder_hidden_states=draw(1, 12, 16),
        encoder_attention_mask=torch.ones(1, 12),
        pooled_projections=draw(1, 8),
        guidance=draw(1),
    ),
)
tiny(
    "LTXVideoTransformer3DModel",
    dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=3,
        caption_channels=16,
    ),
    lambda draw: dict(
        hidden_states=draw(1, 32, 4),
        encoder_hidden_states=draw(1, 16, 16),
        timestep=draw.ids(1000, 1),
        encoder_attention_mask=torch.ones(1, 16, dtype=torch.bool),
        num_frames=2,
        height=4,
        width=4,
    ),
)
tiny(
    "LTX2VideoTransformer3DModel",
    dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=3,
        caption_channels=16,
        rope_double_precision=False,
    ),
    lambda draw: dict(
        hidden_states=draw(1, 32, 4),
        audio_hidden_states=draw(1, 9, 4),
        encoder_hidden_states=draw(1, 16, 16),
        audio_encoder_hidden_states=draw(1, 16, 16),
        timestep=1000 * draw.float(1),
        encoder_attention_mask=torch.ones(1, 16, dtype=torch.bool),
        num_frames=2,
        height=4,
        width=4,
        audio_num_frames=9,
        fps=25.0,
    ),
)
WAN = dict(
    num_attention_heads=2,
    attention_head_dim=12,
    in_channels=4,
    out_channels=4,
    text_dim=16,
    ffn_dim=32,
    num_layers=3,
    rope_max_seq_len=32,
)
tiny(
    "WanTransformer3DModel",
    WAN,
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8), encoder_hidden_states=draw(1, 12, 16), timestep=draw.ids(1000, 1)
    ),
)
tiny(
    "WanTransformer3DModel-image",
    dict(WAN, image_dim=8, added_kv_proj_dim=24),
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8),
        encoder_hidden_states=draw(1, 12, 16),
        encoder_hidden_states_image=draw(1, 5, 8),
        timestep=draw.ids(1000, 1),
    ),
)
tiny(
    "WanVACETransformer3DModel",
    dict(WAN, num_layers=4, vace_layers=[0, 2], vace_in_channels=8),
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8),
        encoder_hidden_states=draw(1, 12, 16),
        timestep=draw.ids(1000, 1),
        control_hidden_states=draw(1, 8, 2, 8, 8),
        control_hidden_states_scale=torch.ones(2),
    ),
)
tiny(
    "SkyReelsV2Transformer3DModel",
    WAN,
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8), encoder_hidden_states=draw(1, 12, 16), timestep=draw.ids(1000, 1)
    ),
)
COGVIDEO = dict(
    num_attention_heads=2,
    attention_head_dim=16,
    in_channels=4,
    out_channels=4,
    time_embed_dim=2,
    text_embed_dim=8,
    num_layers=3,
    sample_width=8,
    sample_height=8,
    sample_frames=5,
    patch_size=2,
    temporal_compression_ratio=4,
    max_text_seq_length=8,
)
tiny(
    "CogVideoXTransformer3DModel",
    COGVIDEO,
    lambda draw: dict(
        hidden_states=draw(1, 2, 4, 8, 8), encoder_hidden_states=draw(1, 8, 8), timestep=draw.ids(1000, 1)
    ),
)
tiny(
    "CogVideoXTransformer3DModel-rope",
    dict(COGVIDEO, use_rotary_positional_embeddings=True),
    lambda draw: dict(
        hidden_states=draw(1, 2, 4, 8, 8),
        encoder_hidden_states=draw(1, 8, 8),
        timestep=draw.ids(1000, 1),
        image_rotary_emb=(draw.float(32, 16), draw.float(32, 16)),
    ),
)
tiny(
    "CosmosTransformer3DModel",
    dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=3,
        mlp_ratio=2,
        text_embed_dim=16,
        adaln_lora_dim=4,
        max_size=(4, 32, 32),
        patch_size=(1, 2, 2),
        rope_scale=(2.0, 1.0, 1.0),
        concat_padding_mask=False,
        extra_pos_embed_type="learnable",
    ),
    lambda draw: dict(
        hidden_states=draw(1, 4, 1, 8, 8),
        timestep=draw.ids(1000, 1),
        encoder_hidden_states=draw(1, 12, 16),
        fps=30,
    ),
)
tiny(
    "AllegroTransformer3DModel",
    dict(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        cross_attention_dim=16,
        sample_width=8,
        sample_height=8,
        sample_frames=8,
        caption_channels=8,
    ),
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8), encoder_hidden_states=draw(1, 16, 8), timestep=draw.ids(1000, 1)
    ),
)
tiny(
    "LatteTransformer3DModel",
    dict(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=4,
        num_attention_heads=2,
        caption_channels=8,
        in_channels=4,
        cross_attention_dim=8,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        video_length=2,
    ),
    lambda draw: dict(
        hidden_states=draw(1, 4, 2, 8, 8),
        encoder_hidden_states=draw(1, 8, 8),
        timestep=draw.ids(1000, 1),
        enable_temporal_attentions=True,
    ),
)

"""Tiny diffusion transformers for pictures, video and audio."""

from __future__ import annotations

from typing import Any

import torch

from .tiny import Call, Draw, tiny

FLUX = dict(
    patch_size=1,
    in_channels=4,
    num_layers=2,
    num_single_layers=3,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=32,
    axes_dims_rope=(4, 4, 8),
)


def joint(draw: Draw, **more: Any) -> Call:
    """A call with image and text tokens and the positions of both."""
    return dict(
        hidden_states=draw(1, 16, 4),
        encoder_hidden_states=draw(1, 12, 32),
        timestep=draw.float(1),
        img_ids=draw.ids(4, 16, 3),
        txt_ids=torch.zeros(12, 3),
        **more,
    )


QWEN = dict(
    patch_size=2,
    in_channels=16,
    out_channels=4,
    num_layers=3,
    attention_head_dim=16,
    num_attention_heads=4,
    joint_attention_dim=16,
    axes_dims_rope=(8, 4, 4),
)


def qwen(draw: Draw) -> Call:
    """A call of a transformer of Qwen-Image."""
    return dict(
        hidden_states=draw(1, 16, 16),
        encoder_hidden_states=draw(1, 8, 16),
        encoder_hidden_states_mask=torch.ones(1, 8, dtype=torch.bool),
        timestep=draw.float(1),
        img_shapes=[(1, 4, 4)],
    )


def cogview(draw: Draw) -> Call:
    """A call of a transformer of CogView, which is told of sizes."""
    return dict(
        hidden_states=draw(2, 4, 8, 8),
        encoder_hidden_states=draw(2, 8, 8),
        timestep=draw.ids(1000, 2),
        original_size=draw.ids(64, 2, 2),
        target_size=draw.ids(64, 2, 2),
        crop_coords=torch.zeros(2, 2, dtype=torch.int64),
    )


tiny(
    "FluxTransformer2DModel",
    dict(FLUX, pooled_projection_dim=32),
    lambda draw: joint(draw, pooled_projections=draw(1, 32)),
)
tiny(
    "FluxTransformer2DModel-guided",
    dict(FLUX, pooled_projection_dim=32, guidance_embeds=True),
    lambda draw: joint(draw, pooled_projections=draw(1, 32), guidance=draw.float(1), return_dict=False),
)
tiny(
    "ChromaTransformer2DModel",
    dict(FLUX, approximator_num_channels=8, approximator_hidden_dim=16, approximator_layers=1),
    joint,
)
tiny(
    "Flux2Transformer2DModel",
    dict(FLUX, timestep_guidance_channels=256, axes_dims_rope=(4, 4, 4, 4)),
    lambda draw: dict(
        joint(draw, guidance=draw.float(1)), img_ids=draw.ids(4, 1, 16, 4), txt_ids=draw.ids(4, 1, 12, 4)
    ),
)
tiny(
    "LongCatImageTransformer2DModel",
    dict(FLUX, pooled_projection_dim=32),
    joint,
)
tiny(
    "OvisImageTransformer2DModel",
    dict(FLUX),
    joint,
)
tiny(
    "SD3Transformer2DModel",
    dict(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=24,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    ),
    lambda draw: dict(
        hidden_states=draw(2, 4, 8, 8),
        encoder_hidden_states=draw(2, 20, 32),
        pooled_projections=draw(2, 64),
        timestep=draw.ids(1000, 2),
    ),
)
tiny(
    "QwenImageTransformer2DModel",
    QWEN,
    qwen,
)
tiny(
    "ZImageTransformer2DModel",
    dict(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=16,
        dim=32,
        n_layers=3,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        qk_norm=True,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    ),
    lambda draw: dict(x=[draw(16, 1, 16, 16)], cap_feats=[draw(16, 16)], t=draw.float(1)),
)
tiny(
    "PixArtTransformer2DModel",
    dict(
        sample_size=8,
        num_layers=3,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        cross_attention_dim=16,
        out_channels=8,
        norm_type="ada_norm_single",
        use_additional_conditions=False,
        caption_channels=12,
    ),
    lambda draw: dict(
        hidden_states=draw(2, 4, 8, 8),
        timestep=draw.ids(1000, 2),
        encoder_hidden_states=draw(2, 8, 12),
        encoder_attention_mask=torch.ones(2, 8, dtype=torch.int64),
        added_cond_kwargs={"aspect_ratio": None, "resolution": None},
    ),
)
tiny(
    "SanaTransformer2DModel",
    dict(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=8,
    ),
    lambda draw: dict(hidden_states=draw(2, 4, 8, 8), encoder_hidden_states=draw(2, 8, 8), timestep=draw.ids(1000, 2)),
)
tiny(
    "HunyuanDiT2DModel",
    dict(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=2,
        cross_attention_dim=8,
        cross_attention_dim_t5=8,
        pooled_projection_dim=4,
        hidden_size=16,
        text_len=4,
        text_len_t5=4,
        activation_fn="gelu-approximate",
    ),
    lambda draw: dict(
        hidden_states=draw(2, 4, 8, 8),
        encoder_hidden_states=draw(2, 4, 8),
        text_embedding_mask=torch.ones(2, 4),
        encoder_hidden_states_t5=draw(2, 4, 8),
        text_embedding_mask_t5=torch.ones(2, 4),
        timestep=draw(2),
        image_meta_size=draw(2, 6),
        style=torch.zeros(2, dtype=torch.int64),
        image_rotary_emb=(draw.float(16, 8), draw.float(16, 8)),
    ),
)
tiny(
    "AuraFlowTransformer2DModel",
    dict(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=2,
        num_single_dit_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        out_channels=4,
        pos_embed_max_size=64,
    ),
    lambda draw: dict(hidden_states=draw(2, 4, 8, 8), encoder_hidden_states=draw(2, 16, 32), timestep=draw.float(2)),
)
tiny(
    "LuminaNextDiT2DModel",
    dict(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        hidden_size=24,
        num_layers=3,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=16,
        norm_eps=1e-5,
        learn_sigma=False,
        qk_norm=True,
        cross_attention_dim=32,
    ),
    lambda draw: dict(
        hidden_states=draw(2, 4, 8, 8),
        encoder_hidden_states=draw(2, 16, 32),
        timestep=draw.float(2),
        encoder_mask=torch.ones(2, 16),
        image_rotary_emb=draw.rotation(384, 384, 4),
        cross_attention_kwargs={},
    ),
)
tiny(
    "DiTTransformer2DModel",
    dict(
        in_channels=4,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=4,
        num_layers=3,
        num_embeds_ada_norm=8,
        patch_size=2,
        sample_size=8,
    ),
    lambda draw: dict(hidden_states=draw(2, 4, 8, 8), timestep=draw.ids(1000, 2), class_labels=draw.ids(8, 2)),
)
tiny(
    "CogView4Transformer2DModel",
    dict(
        patch_size=2,
        in_channels=4,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=4,
        out_channels=4,
        text_embed_dim=8,
        time_embed_dim=8,
        condition_dim=4,
    ),
    cogview,
)
tiny(
    "CogView3PlusTransformer2DModel",
    dict(
        patch_size=2,
        in_channels=4,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=2,
        out_channels=4,
        text_embed_dim=8,
        time_embed_dim=8,
        condition_dim=2,
        pos_embed_max_size=8,
        sample_size=8,
    ),
    cogview,
)
tiny(
    "PriorTransformer",
    dict(
        num_attention_heads=2,
        attention_head_dim=4,
        num_layers=3,
        embedding_dim=8,
        num_embeddings=7,
        additional_embeddings=4,
    ),
    lambda draw: dict(
        hidden_states=draw(2, 8), timestep=2, proj_embedding=draw(2, 8), encoder_hidden_states=draw(2, 7, 8)
    ),
)
tiny(
    "StableAudioDiTModel",
    dict(
        sample_size=4,
        in_channels=3,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=2,
        num_key_value_attention_heads=2,
        out_channels=3,
        cross_attention_dim=4,
        time_proj_dim=8,
        global_states_input_dim=8,
        cross_attention_input_dim=4,
    ),
    lambda draw: dict(
        hidden_states=draw(1, 3, 4),
        timestep=draw(1),
        encoder_hidden_states=draw(1, 5, 4),
        global_hidden_states=draw(1, 1, 8),
        rotary_embedding=(draw.float(5, 2), draw.float(5, 2)),
    ),
)

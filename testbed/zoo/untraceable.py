"""Tiny models that look at values, use numpy or attend with block masks: no trace takes them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tiny import Call, Draw
from .tiny_video import COGVIDEO


def hidream(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=[8, 4],
        text_emb_dim=8,
        num_routed_experts=2,
        num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=(0, 1, 1, 0),
        force_inference_output=True,
    )
    return config, dict(
        hidden_states=draw(2, 4, 32, 32),
        encoder_hidden_states_t5=draw(2, 8, 8),
        encoder_hidden_states_llama3=draw(2, 2, 8, 4),
        pooled_embeds=draw(2, 8),
        timesteps=draw.ids(1000, 2),
    )


def lumina2(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        sample_size=16,
        in_channels=4,
        hidden_size=24,
        num_layers=5,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=2,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(128, 128, 128),
        cap_feat_dim=32,
    )
    return config, dict(
        hidden_states=draw(2, 4, 16, 16),
        encoder_hidden_states=draw(2, 16, 32),
        timestep=draw.float(2),
        encoder_attention_mask=torch.ones(2, 16, dtype=torch.bool),
    )


def omnigen(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=256,
        num_layers=6,
        pad_token_id=0,
        vocab_size=100,
        in_channels=4,
        time_step_dim=4,
        pos_embed_max_size=16,
        rope_scaling={"long_factor": [1, 2], "short_factor": [1, 2]},
    )
    return config, dict(
        hidden_states=draw(2, 4, 8, 8),
        timestep=draw.float(2),
        input_ids=draw.ids(10, 2, 24),
        input_img_latents=[],
        input_image_sizes={},
        attention_mask=torch.ones(2, 41, 41),
        position_ids=torch.arange(41).expand(2, 41).clone(),
    )


def mochi(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=3,
        pooled_projection_dim=16,
        in_channels=4,
        qk_norm="rms_norm",
        text_embed_dim=16,
        time_embed_dim=4,
        max_sequence_length=16,
    )
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[1, 9:] = False
    return config, dict(
        hidden_states=draw(2, 4, 2, 16, 16),
        encoder_hidden_states=draw(2, 16, 16),
        timestep=draw.ids(1000, 2),
        encoder_attention_mask=mask,
    )


def hunyuan15(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=3,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=1,
        patch_size_t=1,
        text_embed_dim=16,
        text_embed_2_dim=8,
        image_embed_dim=12,
        rope_axes_dim=(4, 4, 8),
        target_size=16,
        task_type="t2v",
    )
    mask = torch.zeros(1, 6)
    mask[0, :4] = 1
    return config, dict(
        hidden_states=draw(1, 4, 1, 8, 8),
        timestep=torch.tensor([10.0]),
        encoder_hidden_states=draw(1, 6, 16),
        encoder_attention_mask=mask,
        encoder_hidden_states_2=draw(1, 4, 8),
        encoder_attention_mask_2=torch.tensor([[1.0, 1.0, 1.0, 0.0]]),
        image_embeds=draw(1, 3, 12),
    )


def cogvideo(draw: Draw) -> tuple[dict[str, Any], Call]:
    """One frame more than the model's own table of positions has."""
    return {**COGVIDEO, "num_layers": 4}, dict(
        hidden_states=draw(1, 3, 4, 8, 8), encoder_hidden_states=draw(1, 8, 8), timestep=draw.ids(1000, 1)
    )


def anyflow(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        patch_size=(1, 2, 2),
        compressed_patch_size=(1, 4, 4),
        full_chunk_limit=3,
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=4,
        rope_max_seq_len=32,
        chunk_partition=(1, 2),
    )
    return config, dict(
        hidden_states=draw(1, 3, 4, 16, 16),
        timestep=draw.float(1, 3) * 999,
        r_timestep=draw.float(1, 3) * 500,
        encoder_hidden_states=draw(1, 6, 16),
        chunk_partition=[1, 2],
    )


def framepack(draw: Draw) -> tuple[dict[str, Any], Call]:
    """Cuts its text to the length that the mask says, which is a value."""
    config = dict(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=6,
        num_single_layers=12,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
        has_image_proj=True,
        image_proj_dim=16,
        has_clean_x_embedder=True,
    )
    return config, dict(
        hidden_states=draw(1, 4, 3, 4, 4),
        timestep=draw.ids(1000, 1),
        encoder_hidden_states=draw(1, 12, 16),
        encoder_attention_mask=torch.ones(1, 12),
        pooled_projections=draw(1, 8),
        image_embeds=draw(1, 12, 16),
        guidance=draw.ids(1000, 1),
        indices_latents=torch.ones(3),
        latents_clean=draw(1, 4, 2, 4, 4),
        indices_latents_clean=torch.ones(2),
        latents_history_2x=draw(1, 4, 2, 4, 4),
        indices_latents_history_2x=torch.ones(2),
        latents_history_4x=draw(1, 4, 8, 4, 4),
        indices_latents_history_4x=torch.ones(8),
    )


UNTRACEABLE: dict[str, Callable[[Draw], tuple[dict[str, Any], Call]]] = {
    "HiDreamImageTransformer2DModel": hidream,
    "Lumina2Transformer2DModel": lumina2,
    "OmniGenTransformer2DModel": omnigen,
    "MochiTransformer3DModel": mochi,
    "HunyuanVideo15Transformer3DModel": hunyuan15,
    "CogVideoXTransformer3DModel": cogvideo,
    "AnyFlowFARTransformer3DModel": anyflow,
    "HunyuanVideoFramepackTransformer3DModel": framepack,
}

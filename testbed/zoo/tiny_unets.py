"""Tiny UNets and ControlNets."""

from __future__ import annotations

from typing import Any

import torch

from .tiny import Call, Draw, tiny
from .tiny_transformers import FLUX, QWEN, joint, qwen

UNET = dict(
    block_out_channels=(8, 16),
    norm_num_groups=4,
    cross_attention_dim=8,
    attention_head_dim=2,
    in_channels=4,
    layers_per_block=2,
)
CROSS = dict(
    UNET,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    out_channels=4,
    sample_size=8,
)
XL = dict(
    UNET,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    transformer_layers_per_block=(1, 2),
    use_linear_projection=True,
    addition_embed_type="text_time",
    addition_time_embed_dim=8,
    projection_class_embeddings_input_dim=80,
)


def noisy(draw: Draw, **more: Any) -> Call:
    """A call with a latent, a timestep and text."""
    return dict(sample=draw(2, 4, 8, 8), timestep=draw.ids(1000, 2), encoder_hidden_states=draw(2, 4, 8), **more)


def sized(draw: Draw) -> Call:
    """The extra conditions of a large UNet."""
    return dict(text_embeds=draw(2, 32), time_ids=draw(2, 6))


tiny(
    "UNet2DModel",
    dict(
        block_out_channels=(4, 8),
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        sample_size=16,
    ),
    lambda draw: dict(sample=draw(2, 3, 16, 16), timestep=torch.tensor([10])),
)
tiny("UNet2DConditionModel", CROSS, noisy)
tiny("UNet2DConditionModel-skips", CROSS, lambda draw: noisy(
    draw,
    down_block_additional_residuals=(
        *(draw(2, 8, 8, 8) for _ in range(3)), draw(2, 8, 4, 4), draw(2, 16, 4, 4), draw(2, 16, 4, 4)
    ),
    mid_block_additional_residual=draw(2, 16, 4, 4),
))  # fmt: skip
tiny(
    "UNet2DConditionModel-xl",
    dict(XL, up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), out_channels=4, sample_size=8),
    lambda draw: noisy(draw, added_cond_kwargs=sized(draw)),
)
tiny(
    "UNet2DConditionModel-kandinsky",
    dict(
        in_channels=4,
        out_channels=8,
        addition_embed_type="image",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        block_out_channels=(16, 32),
        norm_num_groups=4,
        layers_per_block=1,
        encoder_hid_dim=16,
        encoder_hid_dim_type="image_proj",
        cross_attention_dim=16,
        attention_head_dim=4,
        resnet_time_scale_shift="scale_shift",
        sample_size=8,
    ),
    lambda draw: dict(
        sample=draw(2, 4, 8, 8),
        timestep=draw.ids(1000, 2),
        encoder_hidden_states=None,
        added_cond_kwargs={"image_embeds": draw(2, 16)},
    ),
)
tiny(
    "Kandinsky3UNet",
    dict(
        in_channels=4,
        time_embedding_dim=8,
        groups=2,
        attention_head_dim=4,
        layers_per_block=2,
        block_out_channels=(8, 16),
        cross_attention_dim=8,
        encoder_hid_dim=8,
    ),
    lambda draw: noisy(draw, encoder_attention_mask=torch.ones(2, 4)),
)
tiny(
    "UNet3DConditionModel",
    dict(
        CROSS,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        layers_per_block=1,
    ),
    lambda draw: dict(sample=draw(1, 4, 2, 8, 8), timestep=torch.tensor([10]), encoder_hidden_states=draw(1, 4, 8)),
)
tiny(
    "UNetMotionModel",
    dict(
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
        cross_attention_dim=16,
        num_attention_heads=2,
        motion_num_attention_heads=2,
        layers_per_block=1,
        sample_size=8,
    ),
    lambda draw: dict(sample=draw(1, 4, 2, 8, 8), timestep=torch.tensor([10]), encoder_hidden_states=draw(2, 4, 16)),
)
tiny(
    "UNetSpatioTemporalConditionModel",
    dict(
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=32,
        num_attention_heads=(4, 8),
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        sample_size=8,
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24,
    ),
    lambda draw: dict(
        sample=draw(1, 2, 4, 8, 8),
        timestep=torch.tensor([10]),
        encoder_hidden_states=draw(1, 1, 32),
        added_time_ids=draw(1, 3),
    ),
)
tiny(
    "UNet1DModel",
    dict(
        block_out_channels=(8, 8, 16, 16),
        in_channels=14,
        out_channels=14,
        time_embedding_type="positional",
        use_timestep_embedding=True,
        flip_sin_to_cos=False,
        freq_shift=1.0,
        out_block_type="OutConv1DBlock",
        mid_block_type="MidResTemporalBlock1D",
        down_block_types=("DownResnetBlock1D",) * 4,
        up_block_types=("UpResnetBlock1D",) * 3,
        act_fn="swish",
    ),
    lambda draw: dict(sample=draw(2, 14, 16), timestep=torch.tensor([10, 10])),
)
tiny(
    "UVit2DModel",
    dict(
        hidden_size=32,
        cond_embed_dim=32,
        micro_cond_encode_dim=2,
        micro_cond_embed_dim=10,
        encoder_hidden_size=32,
        vocab_size=32,
        codebook_size=8,
        in_channels=32,
        block_out_channels=32,
        num_res_blocks=1,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=32,
        block_num_heads=4,
    ),
    lambda draw: dict(
        input_ids=draw.ids(8, 1, 8, 8),
        encoder_hidden_states=draw(1, 5, 32),
        pooled_text_emb=draw(1, 32),
        micro_conds=draw(1, 5),
    ),
)

# ControlNets
CONTROL = {key: CROSS[key] for key in CROSS if key not in ("out_channels", "sample_size", "up_block_types")}
tiny(
    "ControlNetModel",
    dict(CONTROL, conditioning_embedding_out_channels=(4, 8)),
    lambda draw: noisy(draw, controlnet_cond=draw(2, 3, 16, 16), conditioning_scale=0.7),
)
tiny(
    "ControlNetModel-xl",
    dict(XL, conditioning_embedding_out_channels=(4, 8)),
    lambda draw: noisy(draw, controlnet_cond=draw(2, 3, 16, 16), added_cond_kwargs=sized(draw), guess_mode=True),
)
tiny(
    "FluxControlNetModel",
    dict(FLUX, pooled_projection_dim=32),
    lambda draw: joint(draw, pooled_projections=draw(1, 32), controlnet_cond=draw(1, 16, 4)),
)
tiny(
    "FluxControlNetModel-union",
    dict(FLUX, pooled_projection_dim=32, num_mode=4),
    lambda draw: joint(
        draw, pooled_projections=draw(1, 32), controlnet_cond=draw(1, 16, 4), controlnet_mode=draw.ids(4, 1, 1)
    ),
)
tiny(
    "SD3ControlNetModel",
    dict(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=24,
    ),
    lambda draw: dict(
        hidden_states=draw(2, 4, 8, 8),
        controlnet_cond=draw(2, 4, 8, 8),
        conditioning_scale=0.5,
        encoder_hidden_states=draw(2, 20, 32),
        pooled_projections=draw(2, 64),
        timestep=draw.ids(1000, 2),
    ),
)
tiny(
    "QwenImageControlNetModel",
    QWEN,
    lambda draw: {**qwen(draw), "controlnet_cond": draw(1, 16, 16)},
)
tiny(
    "UNetControlNetXSModel",
    dict(
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(4, 8),
        cross_attention_dim=8,
        transformer_layers_per_block=1,
        num_attention_heads=2,
        norm_num_groups=4,
        ctrl_block_out_channels=[2, 4],
        ctrl_num_attention_heads=4,
        ctrl_max_norm_num_groups=2,
        ctrl_conditioning_embedding_out_channels=(2, 2),
    ),
    lambda draw: noisy(draw, controlnet_cond=draw(2, 3, 16, 16), conditioning_scale=1.0),
)

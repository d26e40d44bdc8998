"""More tiny pipelines, of families that differ in their parts: other encoders, videos, pictures as prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from . import tiny_text
from .tiny_pipelines import Made, picture, vae


def sana() -> Made:
    """Sana: linear attention, a deep-compression VAE and a language model for its text."""
    call = picture(height=32, width=32, max_sequence_length=16, complex_human_instruction=None)
    return diffusers.SanaPipeline(**sana_parts()), {**call, "use_resolution_binning": False}


def sana_parts(**more: Any) -> dict[str, Any]:
    torch.manual_seed(10)
    transformer = diffusers.SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=16,
        sample_size=32,
        **more,
    ).eval()
    autoencoder = diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=[1, 1],
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    ).eval()
    config = transformers.Gemma2Config(
        head_dim=8,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        num_key_value_heads=2,
        vocab_size=tiny_text.VOCABULARY,
        bos_token_id=3,
        eos_token_id=1,
        pad_token_id=0,
    )
    return {
        "transformer": transformer,
        "vae": autoencoder,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "text_encoder": transformers.Gemma2Model(config).eval(),
        "tokenizer": tiny_text.t5_tokenizer(),
    }


def aura() -> Made:
    """AuraFlow."""
    torch.manual_seed(11)
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        out_channels=4,
        pos_embed_max_size=256,
    ).eval()
    pipe = diffusers.AuraFlowPipeline(
        transformer=transformer,
        vae=vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        text_encoder=tiny_text.t5(kind="UMT5"),
        tokenizer=tiny_text.t5_tokenizer(),
    )
    return pipe, picture(max_sequence_length=16)


def cogvideox() -> Made:
    """CogVideoX, a video: its VAE hands a cache from frame to frame."""
    return diffusers.CogVideoXPipeline(**cogvideox_parts()), picture(num_frames=9, max_sequence_length=16)


def cogvideox_parts(**more: Any) -> dict[str, Any]:
    torch.manual_seed(12)
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=32,
        num_layers=2,
        sample_width=2,
        sample_height=2,
        sample_frames=9,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=16,
        **{"in_channels": 4, **more},
    ).eval()
    autoencoder = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    ).eval()
    return {
        "transformer": transformer,
        "vae": autoencoder,
        "scheduler": diffusers.DDIMScheduler(),
        "text_encoder": tiny_text.t5(),
        "tokenizer": tiny_text.t5_tokenizer(),
    }


def svd() -> Made:
    """Stable Video Diffusion: a picture is its prompt."""
    torch.manual_seed(13)
    unet = diffusers.UNetSpatioTemporalConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=2,
        sample_size=32,
        in_channels=8,
        out_channels=4,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=32,
        num_attention_heads=8,
        projection_class_embeddings_input_dim=96,
        addition_time_embed_dim=32,
    ).eval()
    autoencoder = diffusers.AutoencoderKLTemporalDecoder(
        block_out_channels=[32, 64],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D"],
        latent_channels=4,
    ).eval()
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        projection_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        intermediate_size=37,
        patch_size=8,
    )
    pipe = diffusers.StableVideoDiffusionPipeline(
        unet=unet,
        image_encoder=transformers.CLIPVisionModelWithProjection(config).eval(),
        scheduler=diffusers.EulerDiscreteScheduler(prediction_type="v_prediction", timestep_type="continuous"),
        vae=autoencoder,
        feature_extractor=transformers.CLIPImageProcessor(crop_size=32, size=32),
    )
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    call: dict[str, Any] = {"image": image, "num_inference_steps": 2, "num_frames": 2, "height": 32, "width": 32}
    return pipe, {**call, "decode_chunk_size": 2}


def qwen() -> Made:
    """Qwen-Image: a language model that could see writes its prompt."""
    return diffusers.QwenImagePipeline(**qwen_parts()), picture(negative_prompt="grey", true_cfg_scale=2.0)


def qwen_parts() -> dict[str, Any]:
    torch.manual_seed(14)
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    ).eval()
    autoencoder = diffusers.AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ).eval()
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": tiny_text.VOCABULARY,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
            "bos_token_id": 3,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        vision_config={"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16},
    )
    return {
        "transformer": transformer,
        "vae": autoencoder,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "text_encoder": transformers.Qwen2_5_VLForConditionalGeneration(config).eval(),
        "tokenizer": tiny_text.t5_tokenizer(1200),
    }


MORE_PIPELINES: dict[str, Callable[[], Made]] = {maker.__name__: maker for maker in (sana, aura, cogvideox, svd, qwen)}

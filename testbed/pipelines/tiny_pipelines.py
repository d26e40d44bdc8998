"""Diffusers pipelines with tiny random components, made on the spot; a maker returns one and a call for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

from . import tiny_text

Made = tuple[Any, dict[str, Any]]


def vae(latents: int = 4, **more: Any) -> Any:
    torch.manual_seed(1)
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=latents,
        norm_num_groups=4,
        sample_size=32,
        **{"block_out_channels": (8, 16), **more},
    ).eval()


def still_vae(latents: int) -> Any:
    return vae(latents, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1)


def _flow() -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler()


def picture(**more: Any) -> dict[str, Any]:
    return {"prompt": "a red circle", "height": 16, "width": 16, "num_inference_steps": 2, **more}


def flux_parts(**wide: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    size = {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 4, 8), **wide}
    return {
        "scheduler": _flow(),
        "vae": still_vae(4),
        "text_encoder": tiny_text.clip(),
        "tokenizer": tiny_text.clip_tokenizer(),
        "text_encoder_2": tiny_text.t5(),
        "tokenizer_2": tiny_text.t5_tokenizer(),
        "transformer": diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=2,
            num_single_layers=3,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            **size,
        ).eval(),
    }


def flux() -> Made:
    """FLUX."""
    return diffusers.FluxPipeline(**flux_parts()), picture(max_sequence_length=16, guidance_scale=1.0)


def wide_flux() -> Made:
    """FLUX with weights wide enough to be split by rows and packed in any type."""
    size = {"attention_head_dim": 64, "num_attention_heads": 4, "axes_dims_rope": (16, 24, 24)}
    return diffusers.FluxPipeline(**flux_parts(**size)), picture(max_sequence_length=16, guidance_scale=1.0)


def flux_img2img() -> Made:
    """FLUX from a picture."""
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    call = picture(max_sequence_length=16, guidance_scale=1.0, image=image, strength=0.9)
    return diffusers.FluxImg2ImgPipeline(**flux_parts()), call


_BLOCKS = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 32, "attention_head_dim": 2,
}  # fmt: skip


def unet(**more: Any) -> Any:
    torch.manual_seed(2)
    return diffusers.UNet2DConditionModel(
        layers_per_block=1,
        sample_size=16,
        norm_num_groups=4,
        **{**_BLOCKS, **more},
    ).eval()


def sd_parts(**more: Any) -> dict[str, Any]:
    return {
        "unet": unet(**more),
        "scheduler": diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        "vae": vae(),
        "text_encoder": tiny_text.clip(),
        "tokenizer": tiny_text.clip_tokenizer(),
        "safety_checker": None,
        "feature_extractor": None,
    }


def sd() -> Made:
    """Stable Diffusion 1.5."""
    return diffusers.StableDiffusionPipeline(**sd_parts(), requires_safety_checker=False), picture()


def sd_safe() -> Made:
    """Stable Diffusion 1.5 with its safety checker, which no trace can follow."""
    torch.manual_seed(9)
    towers = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**towers, "vocab_size": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config={**towers, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    checker = StableDiffusionSafetyChecker(config).eval()
    extractor = transformers.CLIPImageProcessor(crop_size=32, size=32)
    parts = {**sd_parts(), "safety_checker": checker, "feature_extractor": extractor}
    return diffusers.StableDiffusionPipeline(**parts), picture()


def sd_img2img() -> Made:
    """Stable Diffusion 1.5 from a picture."""
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    pipe = diffusers.StableDiffusionImg2ImgPipeline(**sd_parts(), requires_safety_checker=False)
    return pipe, {"prompt": "a red circle", "image": image, "strength": 0.8, "num_inference_steps": 3}


def sd_inpaint() -> Made:
    """Stable Diffusion 1.5 into a part of a picture."""
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 8:24, 8:24] = 1
    pipe = diffusers.StableDiffusionInpaintPipeline(**sd_parts(), requires_safety_checker=False)
    return pipe, picture(image=image, mask_image=mask, height=32, width=32)


def sd_controlnet() -> Made:
    """Stable Diffusion 1.5 with a ControlNet."""
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    pipe = diffusers.StableDiffusionControlNetPipeline(
        **sd_parts(), controlnet=controlnet(), requires_safety_checker=False
    )
    return pipe, picture(image=image, controlnet_conditioning_scale=0.7)


def controlnet(**more: Any) -> Any:
    torch.manual_seed(4)
    made = diffusers.ControlNetModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        in_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        conditioning_embedding_out_channels=(16, 32),
        norm_num_groups=1,
        **{"cross_attention_dim": 32, "attention_head_dim": 2, **more},
    ).eval()
    torch.nn.init.normal_(made.controlnet_mid_block.weight)
    return made


def sdxl() -> Made:
    """SDXL."""
    return diffusers.StableDiffusionXLPipeline(**sdxl_parts(), add_watermarker=False), picture()


def sdxl_parts(**more: Any) -> dict[str, Any]:
    wide: dict[str, Any] = {
        "attention_head_dim": (2, 4),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "transformer_layers_per_block": (1, 2),
        "projection_class_embeddings_input_dim": 80,
        "cross_attention_dim": 64,
    }
    denoiser = unet(**{**wide, **more})
    return {
        "unet": denoiser,
        "scheduler": diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="leading"),
        "vae": vae(),
        "text_encoder": tiny_text.clip(),
        "tokenizer": tiny_text.clip_tokenizer(),
        "text_encoder_2": tiny_text.clip(projection=32, layers=4),
        "tokenizer_2": tiny_text.clip_tokenizer(),
    }


def sd3() -> Made:
    """Stable Diffusion 3."""
    return diffusers.StableDiffusion3Pipeline(**sd3_parts()), picture(max_sequence_length=16)


def sd3_parts() -> dict[str, Any]:
    torch.manual_seed(5)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=1,
        in_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=16,
    ).eval()
    return {
        "scheduler": _flow(),
        "vae": still_vae(4),
        "text_encoder": tiny_text.clip(projection=32),
        "tokenizer": tiny_text.clip_tokenizer(),
        "text_encoder_2": tiny_text.clip(projection=32, layers=4),
        "tokenizer_2": tiny_text.clip_tokenizer(),
        "text_encoder_3": tiny_text.t5(64),
        "tokenizer_3": tiny_text.t5_tokenizer(),
        "transformer": transformer,
    }


def wan() -> Made:
    """Wan, a video: its VAE goes through the frames in a loop with a cache."""
    return diffusers.WanPipeline(**wan_parts()), picture(num_frames=5, max_sequence_length=16, negative_prompt="grey")


WAN = {
    "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16, "out_channels": 16,
    "text_dim": 32, "freq_dim": 256, "ffn_dim": 32, "num_layers": 3, "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32,
}  # fmt: skip


def wan_parts(kind: str = "WanTransformer3DModel", **more: Any) -> dict[str, Any]:
    torch.manual_seed(6)
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()
    transformer = getattr(diffusers, kind)(**{**WAN, **more}).eval()
    return {
        "tokenizer": tiny_text.t5_tokenizer(),
        "text_encoder": tiny_text.t5(kind="UMT5"),
        "vae": vae,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "transformer": transformer,
    }


def ltx() -> Made:
    """LTX, a video."""
    return diffusers.LTXPipeline(**ltx_parts()), picture(height=32, width=32, num_frames=9, max_sequence_length=16)


def ltx_parts() -> dict[str, Any]:
    torch.manual_seed(7)
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    ).eval()
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=3,
        caption_channels=32,
    ).eval()
    return {
        "scheduler": _flow(),
        "vae": vae,
        "text_encoder": tiny_text.t5(),
        "tokenizer": tiny_text.t5_tokenizer(),
        "transformer": transformer,
    }


def pixart() -> Made:
    """PixArt-Σ."""
    torch.manual_seed(8)
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        num_layers=3,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=32,
        in_channels=4,
        cross_attention_dim=24,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        use_additional_conditions=False,
    ).eval()
    pipe = diffusers.PixArtSigmaPipeline(
        transformer=transformer,
        vae=vae(),
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        text_encoder=tiny_text.t5(),
        tokenizer=tiny_text.t5_tokenizer(),
    )
    return pipe, picture(max_sequence_length=16, use_resolution_binning=False, clean_caption=False)


PIPELINES: dict[str, Callable[[], Made]] = {
    maker.__name__: maker
    for maker in (flux, flux_img2img, sd, sd_safe, sd_img2img, sd_inpaint, sd_controlnet, sdxl, sd3, wan, ltx, pixart)
}


def paint(pipe: Any, call: dict[str, Any], output_type: str = "pt") -> Any:
    """The picture of a call with a fixed seed."""
    getattr(pipe, "pipe", pipe).set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return pipe(**call, output_type=output_type, generator=generator, return_dict=False)[0]

"""Tiny pipelines around UNets: from pictures, into masks, with control, larger, in pixels, as videos, priors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import diffusers
import torch

from . import tiny_text
from .entries import embedding, entry, free, image, made, mask, processor, seeing, still
from .tiny_pipelines import Made, controlnet, picture, sd_parts, sdxl_parts, unet

SAFE = {"requires_safety_checker": False}


def _with(parts: Callable[..., dict[str, Any]], **more: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {**parts(), **{name: make() for name, make in more.items()}}


def _without(parts: Callable[[], dict[str, Any]], *names: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: part for name, part in parts().items() if name not in names}


_control = _with(sd_parts, controlnet=controlnet)
_bare = _without(sd_parts, "safety_checker", "feature_extractor")
_wide_control = functools.partial(
    controlnet, cross_attention_dim=64, attention_head_dim=(2, 4), use_linear_projection=True,
    addition_embed_type="text_time", addition_time_embed_dim=8, transformer_layers_per_block=(1, 2),
    projection_class_embeddings_input_dim=80,
)  # fmt: skip
_xl_control = _with(sdxl_parts, controlnet=_wide_control)


_CROSS_FIRST = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip


def _adapter() -> Any:
    return made("T2IAdapter", in_channels=3, channels=[8, 16], num_res_blocks=1, downscale_factor=2)


def _upscale_parts() -> dict[str, Any]:
    parts = {**sd_parts(in_channels=7, num_class_embeds=1000), "low_res_scheduler": diffusers.DDPMScheduler()}
    return {name: part for name, part in parts.items() if name not in ("safety_checker", "feature_extractor")}


def _latent_upscale_parts() -> dict[str, Any]:
    cross = ("KCrossAttnDownBlock2D", "KCrossAttnUpBlock2D")
    denoiser = made(
        "UNet2DConditionModel", act_fn="gelu", attention_head_dim=8, norm_num_groups=None,
        block_out_channels=[32, 32, 64, 64], time_cond_proj_dim=160, conv_in_kernel=1, conv_out_kernel=1,
        cross_attention_dim=32,
        down_block_types=("KDownBlock2D", *cross[:1] * 3), up_block_types=(*cross[1:] * 3, "KUpBlock2D"),
        in_channels=8, out_channels=5, mid_block_type=None, only_cross_attention=False,
        resnet_time_scale_shift="scale_shift", time_embedding_type="fourier", timestep_post_act="gelu",
    )  # fmt: skip
    coder = made("AutoencoderKL", 1, block_out_channels=[8] * 4, down_block_types=["DownEncoderBlock2D"] * 4,
                 up_block_types=["UpDecoderBlock2D"] * 4, latent_channels=4, norm_num_groups=4)  # fmt: skip
    return {
        **_bare(), "unet": denoiser, "vae": coder,
        "scheduler": diffusers.EulerDiscreteScheduler(prediction_type="sample"),
    }  # fmt: skip


def _consistent_parts() -> dict[str, Any]:
    return {
        **sd_parts(time_cond_proj_dim=32),
        "scheduler": diffusers.LCMScheduler(beta_schedule="scaled_linear", clip_sample=False),
    }


def _variation_parts() -> dict[str, Any]:
    parts = {name: part for name, part in _bare().items() if not name.startswith(("text", "token"))}
    return {**parts, "safety_checker": None, "image_encoder": seeing(), "feature_extractor": processor()}


def _marigold_parts() -> dict[str, Any]:
    scheduler = diffusers.LCMScheduler(prediction_type="v_prediction", beta_schedule="scaled_linear", clip_sample=False)
    return {**_bare(), "unet": unet(in_channels=8), "scheduler": scheduler}


def _ldm_parts() -> dict[str, Any]:
    parts = {**_bare(), "text_encoder": tiny_text.clip(positions=77)}
    return {"vqvae": parts.pop("vae"), "bert": parts.pop("text_encoder"), **parts}


def _animated_parts() -> dict[str, Any]:
    adapter = made(
        "MotionAdapter", block_out_channels=(8, 16), motion_layers_per_block=1, motion_norm_num_groups=2,
        motion_num_attention_heads=2,
    )  # fmt: skip
    return {**_bare(), "motion_adapter": adapter}


def _pixels(kind: str, scheduler: str, **more: Any) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        denoiser = made(
            "UNet2DModel", block_out_channels=(8, 16), layers_per_block=1, sample_size=8, in_channels=3,
            out_channels=3, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=4, attention_head_dim=4, **more,
        )  # fmt: skip
        return {kind: denoiser, "scheduler": getattr(diffusers, scheduler)()}

    return parts


_IF = {
    "sample_size": 8, "layers_per_block": 1, "block_out_channels": [32, 64], "out_channels": 6,
    "down_block_types": ["ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"],
    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
    "up_block_types": ["SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"],
    "cross_attention_dim": 32, "encoder_hid_dim": 32, "attention_head_dim": 8, "addition_embed_type": "text",
    "addition_embed_type_num_heads": 2, "cross_attention_norm": "group_norm",
    "resnet_time_scale_shift": "scale_shift", "act_fn": "gelu",
}  # fmt: skip
_LARGER = {
    "in_channels": 6, "class_embed_type": "timestep", "mid_block_scale_factor": 1.414, "time_embedding_act_fn": "gelu",
    "time_embedding_dim": 32,
}  # fmt: skip


def _if_parts(larger: bool) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        noise = {"beta_schedule": "squaredcos_cap_v2", "thresholding": True, "variance_type": "learned_range"}
        also = {"image_noising_scheduler": diffusers.DDPMScheduler()} if larger else {}
        return {
            "text_encoder": tiny_text.t5(), "tokenizer": tiny_text.t5_tokenizer(77), "watermarker": None,
            "unet": made("UNet2DConditionModel", **{"in_channels": 3, **_IF, **(_LARGER if larger else {})}),
            "scheduler": diffusers.DDPMScheduler(**noise), "safety_checker": None, "feature_extractor": None, **also,
        }  # fmt: skip

    return parts


def _kandinsky(**more: Any) -> Callable[[], dict[str, Any]]:
    def parts() -> dict[str, Any]:
        config = {**_IF, "addition_embed_type": "image", "encoder_hid_dim_type": "image_proj", "act_fn": "silu"}
        del config["cross_attention_norm"], config["addition_embed_type_num_heads"]
        movq = made(
            "VQModel", 1, block_out_channels=[32, 64],
            down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
            latent_channels=4, norm_num_groups=8, norm_type="spatial", num_vq_embeddings=12, vq_embed_dim=4,
            up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
        )  # fmt: skip
        denoiser = made("UNet2DConditionModel", **{"in_channels": 4, **config, "out_channels": 8, **more})
        return {"unet": denoiser, "scheduler": diffusers.DDIMScheduler(clip_sample=False), "movq": movq}

    return parts


_EMBEDS = {"image_embeds": embedding(1, 32), "negative_image_embeds": embedding(1, 32, seed=5)}


def _kandinsky_prior() -> dict[str, Any]:
    prior = made("PriorTransformer", num_attention_heads=2, attention_head_dim=12, embedding_dim=32, num_layers=2,
                 num_embeddings=16)  # fmt: skip
    prior.clip_std.data.fill_(1)
    return {
        "prior": prior, "image_encoder": seeing(), "text_encoder": tiny_text.clip(projection=32),
        "tokenizer": tiny_text.clip_tokenizer(), "image_processor": processor(),
        "scheduler": diffusers.UnCLIPScheduler(variance_type="fixed_small_log", prediction_type="sample"),
    }  # fmt: skip


def _cascade(**config: Any) -> Any:
    from diffusers.models import StableCascadeUNet

    torch.manual_seed(0)
    return StableCascadeUNet(conditioning_dim=32, clip_text_pooled_in_channels=32, **config).eval()


def _cascade_prior() -> dict[str, Any]:
    prior = _cascade(
        block_out_channels=(32, 32), num_attention_heads=(2, 2), down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1), switch_level=(False,), clip_image_in_channels=32, clip_text_in_channels=32,
        down_blocks_repeat_mappers=(1, 1), up_blocks_repeat_mappers=(1, 1),
        block_types_per_layer=(("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),) * 2,
    )  # fmt: skip
    return {
        "prior": prior, "text_encoder": tiny_text.clip(projection=32), "tokenizer": tiny_text.clip_tokenizer(),
        "scheduler": diffusers.DDPMWuerstchenScheduler(), "feature_extractor": None, "image_encoder": None,
    }  # fmt: skip


def _cascade_decoder() -> dict[str, Any]:
    from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

    plain = ("SDCascadeResBlock", "SDCascadeTimestepBlock")
    decoder = _cascade(
        in_channels=4, out_channels=4, block_out_channels=[16, 32], num_attention_heads=[-1, 2],
        down_num_layers_per_block=[1, 1], up_num_layers_per_block=[1, 1], down_blocks_repeat_mappers=[1, 1],
        up_blocks_repeat_mappers=[2, 2], block_types_per_layer=[plain, (*plain, "SDCascadeAttnBlock")],
        switch_level=None, dropout=[0.1, 0.1],
    )  # fmt: skip
    torch.manual_seed(1)
    return {
        "decoder": decoder, "vqgan": PaellaVQModel(bottleneck_blocks=1, num_vq_embeddings=2, embed_dim=16).eval(),
        "text_encoder": tiny_text.clip(projection=32), "tokenizer": tiny_text.clip_tokenizer(),
        "scheduler": diffusers.DDPMWuerstchenScheduler(), "latent_dim_scale": 4.0,
    }  # fmt: skip


_INTO = {"image": image(), "mask_image": mask, "strength": 0.9}
_STEPS = {"num_inference_steps": 2}
_PAG = {"pag_scale": 3.0, "guidance_scale": 2.0}
_XL = {"add_watermarker": False}

UNET_PIPELINES: dict[str, Callable[[], Made]] = {
    "sd_pix2pix": entry(
        "StableDiffusionInstructPix2PixPipeline",
        lambda: sd_parts(in_channels=8), free(image=image(), image_guidance_scale=1.5), **SAFE,
    ),
    "sd_upscale": entry("StableDiffusionUpscalePipeline", _upscale_parts, free(image=image(16)), max_noise_level=350),
    "sd_latent_upscale": entry("StableDiffusionLatentUpscalePipeline", _latent_upscale_parts, free(image=image(64))),
    "sd_controlnet_img2img": entry(
        "StableDiffusionControlNetImg2ImgPipeline", _control,
        free(image=image(), control_image=image(), strength=0.9), **SAFE,
    ),
    "sd_controlnet_inpaint": entry(
        "StableDiffusionControlNetInpaintPipeline", _control,
        free(**_INTO, control_image=image(), height=32), **SAFE,
    ),
    "sd_adapter": entry(
        "StableDiffusionAdapterPipeline",
        _with(lambda: sd_parts(**_CROSS_FIRST), adapter=_adapter), free(image=image()), **SAFE
    ),
    "sd_pag": entry("StableDiffusionPAGPipeline", sd_parts, picture(**_PAG), **SAFE),
    "sd_pag_img2img": entry("StableDiffusionPAGImg2ImgPipeline", sd_parts, free(image=image(), **_PAG), **SAFE),
    "sd_controlnet_pag": entry(
        "StableDiffusionControlNetPAGPipeline", _control, picture(image=image(16), **_PAG), **SAFE
    ),
    "sd_variation": entry(
        "StableDiffusionImageVariationPipeline", _variation_parts,
        {"image": image(), "height": 16, "width": 16, **_STEPS}, **SAFE,
    ),
    "lcm": entry("LatentConsistencyModelPipeline", _consistent_parts, picture(), **SAFE),
    "lcm_img2img": entry(
        "LatentConsistencyModelImg2ImgPipeline", _consistent_parts, free(image=image(), strength=0.9), **SAFE
    ),
    "marigold_depth": entry(
        "MarigoldDepthPipeline", _marigold_parts,
        {"image": image(), "num_inference_steps": 1, "processing_resolution": 0},
        prediction_type="depth",
    ),
    "marigold_normals": entry(
        "MarigoldNormalsPipeline", _marigold_parts,
        {"image": image(), "num_inference_steps": 1, "processing_resolution": 0}, prediction_type="normals",
    ),
    "ldm": entry("LDMTextToImagePipeline", _ldm_parts, {**picture(), "output_type": "np"}),
    "animatediff": entry("AnimateDiffPipeline", _animated_parts, picture(num_frames=2)),
    "sdxl_img2img": entry("StableDiffusionXLImg2ImgPipeline", sdxl_parts, free(image=image(), strength=0.9), **_XL),
    "sdxl_inpaint": entry("StableDiffusionXLInpaintPipeline", sdxl_parts, free(**_INTO, height=32, width=32), **_XL),
    "sdxl_controlnet": entry("StableDiffusionXLControlNetPipeline", _xl_control, picture(image=image(16)), **_XL),
    "sdxl_controlnet_img2img": entry(
        "StableDiffusionXLControlNetImg2ImgPipeline", _xl_control,
        free(image=image(), control_image=image(), strength=0.9), **_XL,
    ),
    "sdxl_adapter": entry(
        "StableDiffusionXLAdapterPipeline",
        _with(lambda: sdxl_parts(**_CROSS_FIRST), adapter=_adapter), free(image=image())
    ),
    "sdxl_pix2pix": entry(
        "StableDiffusionXLInstructPix2PixPipeline", lambda: sdxl_parts(in_channels=8),
        free(image=image(), height=32, width=32), **_XL,
    ),
    "sdxl_pag": entry("StableDiffusionXLPAGPipeline", sdxl_parts, picture(**_PAG), **_XL),
    "ddpm": entry("DDPMPipeline", _pixels("unet", "DDPMScheduler"), {**_STEPS, "output_type": "np"}),
    "ddim": entry("DDIMPipeline", _pixels("unet", "DDIMScheduler"), {**_STEPS, "output_type": "np"}),
    "consistency": entry(
        "ConsistencyModelPipeline", _pixels("unet", "CMStochasticIterativeScheduler", time_embedding_type="positional"),
        {**_STEPS, "output_type": "np"},
    ),
    "if": entry("IFPipeline", _if_parts(False), picture(height=8, width=8, clean_caption=False)),
    "if_img2img": entry("IFImg2ImgPipeline", _if_parts(False), free(image=image(8), clean_caption=False)),
    "if_inpaint": entry(
        "IFInpaintingPipeline", _if_parts(False),
        free(image=image(8), mask_image=lambda: mask(8), clean_caption=False),
    ),
    "if_upscale": entry("IFSuperResolutionPipeline", _if_parts(True), picture(image=image(8), clean_caption=False)),
    "if_img2img_upscale": entry(
        "IFImg2ImgSuperResolutionPipeline", _if_parts(True),
        free(image=image(8), original_image=image(16), clean_caption=False),
    ),
    "if_inpaint_upscale": entry(
        "IFInpaintingSuperResolutionPipeline", _if_parts(True),
        free(image=image(8), original_image=image(16), mask_image=lambda: mask(16), clean_caption=False),
    ),
    "kandinsky": entry("KandinskyV22Pipeline", _kandinsky(), {**_EMBEDS, "height": 16, "width": 16, **_STEPS}),
    "kandinsky_img2img": entry(
        "KandinskyV22Img2ImgPipeline", _kandinsky(),
        {**_EMBEDS, "image": still, "strength": 0.9, "height": 16, "width": 16, "num_inference_steps": 3},
    ),
    "kandinsky_inpaint": entry(
        "KandinskyV22InpaintPipeline", _kandinsky(in_channels=9),
        {**_EMBEDS, "image": still, "mask_image": lambda: mask(16)[0, 0].numpy(), "height": 16, "width": 16, **_STEPS},
    ),
    "kandinsky_prior": entry("KandinskyV22PriorPipeline", _kandinsky_prior, {"prompt": "a red circle", **_STEPS}),
    "cascade_prior": entry("StableCascadePriorPipeline", _cascade_prior, free(guidance_scale=4.0)),
    "cascade_decoder": entry(
        "StableCascadeDecoderPipeline", _cascade_decoder,
        free(image_embeddings=embedding(1, 4, 4, 4), guidance_scale=2.0),
    ),
}  # fmt: skip

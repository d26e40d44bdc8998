"""Tiny pipelines that use components beside their forward: by methods and tensors of their own, or by parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from . import tiny_text
from .entries import decoder_config, entry, made, processor, seeing, still
from .tiny_pipelines import Made, picture, sd_parts, wan_parts


class TensorProcessor(transformers.SiglipImageProcessor):  # type: ignore[misc]
    """Prepares tensors where they lie, as the processors do that take torchvision."""

    def preprocess(self, images: torch.Tensor, **_: Any) -> Any:
        sized = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear")
        return transformers.BatchFeature({"pixel_values": (sized - 0.5) / 0.5})


def _noisy(**more: Any) -> Any:
    return diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2", **more)


def _normalized() -> dict[str, Any]:
    from diffusers.pipelines.stable_diffusion import StableUnCLIPImageNormalizer

    parts = sd_parts(class_embed_type="projection", projection_class_embeddings_input_dim=64)
    torch.manual_seed(2)
    normalizer = StableUnCLIPImageNormalizer(embedding_dim=32)
    torch.nn.init.normal_(normalizer.mean)
    torch.nn.init.uniform_(normalizer.std, 1, 2)
    own = {name: parts[name] for name in ("tokenizer", "text_encoder", "unet", "scheduler", "vae")}
    return {"image_normalizer": normalizer, "image_noising_scheduler": _noisy(), **own}


def _unclip() -> dict[str, Any]:
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "embedding_dim": 32, "num_embeddings": 16}
    return {
        **_normalized(),
        "prior_tokenizer": tiny_text.clip_tokenizer(),
        "prior_text_encoder": tiny_text.clip(projection=32),
        "prior": made("PriorTransformer", num_layers=1, **sizes),
        "prior_scheduler": _noisy(variance_type="fixed_small_log", prediction_type="sample"),
    }


def _unclip_img2img() -> dict[str, Any]:
    return {**_normalized(), "feature_extractor": processor(), "image_encoder": seeing()}


def motif_parts() -> dict[str, Any]:
    """MotifVideo, whose pipeline gives its picture to one part of the text encoder."""
    from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2Encoder

    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    text = decoder_config(head_dim=8, query_pre_attn_scalar=8, sliding_window=8, dropout_rate=0.0)
    config = transformers.T5Gemma2EncoderConfig(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=5
    )
    torch.manual_seed(3)
    encoder = T5Gemma2Encoder(config, eoi_token_index=6).eval()
    transformer = made(
        "MotifVideoTransformer3DModel", num_attention_heads=2, attention_head_dim=16, num_layers=2,
        num_single_layers=2, num_decoder_layers=1, text_embed_dim=16, image_embed_dim=16, rope_axes_dim=(4, 6, 6),
    )  # fmt: skip
    return {
        **wan_parts(),
        "text_encoder": encoder,
        "transformer": transformer,
        "guider": diffusers.ClassifierFreeGuidance(guidance_scale=2.0),
        "feature_extractor": TensorProcessor(),
    }


_SQUARE = {"height": 32, "width": 32}

SEEN_PIPELINES: dict[str, Callable[[], Made]] = {
    "stable_unclip": entry("StableUnCLIPPipeline", _unclip, picture(prior_num_inference_steps=2) | _SQUARE),
    "stable_unclip_img2img": entry("StableUnCLIPImg2ImgPipeline", _unclip_img2img, picture(image=still(32)) | _SQUARE),
    "motif_i2v": entry(
        "MotifVideoImage2VideoPipeline", motif_parts,
        {"prompt": "a red circle", "negative_prompt": "grey", "image": still(), "height": 16, "width": 16,
         "num_frames": 5, "num_inference_steps": 2, "max_sequence_length": 16},
    ),
}  # fmt: skip

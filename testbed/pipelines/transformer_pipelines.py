"""Tiny pipelines around transformers: pictures, videos and sounds, from words, from pictures, with control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from . import tiny_text
from .entries import decoder_config, entry, frames, free, image, made, mask, processor, seeing, still, text
from .more_pipelines import cogvideox_parts, qwen_parts, sana_parts
from .tiny_pipelines import Made, flux_parts, ltx_parts, picture, sd3_parts, still_vae, vae, wan_parts

Maker = Callable[[], dict[str, Any]]


def _flow(**more: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(**more)


_FLUX = {
    "patch_size": 1, "in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16,
    "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
}  # fmt: skip


def _flux(channels: int) -> Maker:
    def parts() -> dict[str, Any]:
        config = {**_FLUX, "in_channels": channels, "out_channels": 16}
        return {**flux_parts(), "transformer": made("FluxTransformer2DModel", **config)}

    return parts


def _controlled(parts: Maker, kind: str, weight: str, **config: Any) -> Maker:
    def controlled() -> dict[str, Any]:
        controlnet = made(kind, 1, **config)
        for block in getattr(controlnet, weight):
            torch.nn.init.normal_(block.weight)
        return {**parts(), "controlnet": controlnet}

    return controlled


_SD3 = {
    "sample_size": 16, "patch_size": 1, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8,
    "num_attention_heads": 4, "caption_projection_dim": 32, "joint_attention_dim": 64, "pooled_projection_dim": 64,
    "out_channels": 4, "pos_embed_max_size": 16,
}  # fmt: skip
_QWEN = {
    "patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
    "num_attention_heads": 3, "joint_attention_dim": 16, "axes_dims_rope": (8, 4, 4),
}  # fmt: skip


def _chroma() -> dict[str, Any]:
    transformer = made(
        "ChromaTransformer2DModel", patch_size=1, in_channels=16, num_layers=2, num_single_layers=2,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=[4, 4, 8],
        approximator_hidden_dim=32, approximator_layers=1, approximator_num_channels=16,
    )  # fmt: skip
    return {"scheduler": _flow(), **text(), "transformer": transformer, "vae": still_vae(4)}


def _bria() -> dict[str, Any]:
    config = {**_FLUX, "pooled_projection_dim": None, "axes_dims_rope": [0, 8, 8]}
    transformer = made("BriaTransformer2DModel", **config)
    return {"scheduler": _flow(), **text(), "transformer": transformer, "vae": vae()}


def _llm(kind: str, length: int = 16, **config: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    model = next(name for name in (f"{kind}Model", f"{kind}TextModel") if hasattr(transformers, name))
    made_of = getattr(transformers, f"{kind}Config")(**decoder_config(**config))
    encoder = getattr(transformers, model)(made_of).eval()
    return {"text_encoder": encoder, "tokenizer": tiny_text.t5_tokenizer(length)}


def _lumina2() -> dict[str, Any]:
    transformer = made(
        "Lumina2Transformer2DModel", sample_size=4, patch_size=2, in_channels=4, hidden_size=16, num_layers=2,
        num_attention_heads=2, num_kv_heads=1, multiple_of=16, axes_dim_rope=[4, 2, 2], cap_feat_dim=16,
    )  # fmt: skip
    return {"scheduler": _flow(), "transformer": transformer, "vae": still_vae(4), **_llm("Gemma2", head_dim=8)}


def _lumina() -> dict[str, Any]:
    transformer = made(
        "LuminaNextDiT2DModel", sample_size=4, patch_size=2, in_channels=4, hidden_size=8, num_layers=2,
        num_attention_heads=1, num_kv_heads=1, multiple_of=16, cross_attention_dim=16,
    )  # fmt: skip
    return {"scheduler": _flow(), "transformer": transformer, "vae": vae(), **_llm("Gemma", head_dim=8)}


def _z_image() -> dict[str, Any]:
    transformer = made(
        "ZImageTransformer2DModel", all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=2,
        n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16, axes_dims=[8, 4, 4], axes_lens=[256, 32, 32],
    )  # fmt: skip
    for token in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.ones_(token)
    parts = _llm("Qwen3", head_dim=8)
    parts["tokenizer"].chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return {"scheduler": _flow(), "transformer": transformer, "vae": still_vae(4), **parts}


def _hidream() -> dict[str, Any]:
    transformer = made(
        "HiDreamImageTransformer2DModel", patch_size=2, in_channels=4, out_channels=4, num_layers=1,
        num_single_layers=1, attention_head_dim=8, num_attention_heads=4, caption_channels=[32, 16], text_emb_dim=64,
        num_routed_experts=4, num_activated_experts=2, axes_dims_rope=(4, 2, 2), max_resolution=(32, 32),
        llama_layers=(0, 1),
    )  # fmt: skip
    torch.manual_seed(3)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**decoder_config())).eval()
    clips = {f"text_encoder{end}": tiny_text.clip(projection=32) for end in ("", "_2")}
    tokenizers = {f"tokenizer{end}": tiny_text.clip_tokenizer() for end in ("", "_2")}
    return {
        "scheduler": _flow(), "vae": still_vae(4), "transformer": transformer, **clips, **tokenizers,
        "text_encoder_3": tiny_text.t5(), "tokenizer_3": tiny_text.t5_tokenizer(), "text_encoder_4": llama,
        "tokenizer_4": tiny_text.t5_tokenizer(),
    }  # fmt: skip


def _hunyuan_video() -> dict[str, Any]:
    transformer = made(
        "HunyuanVideoTransformer3DModel", in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10,
        num_layers=2, num_single_layers=2, num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True,
        text_embed_dim=16, pooled_projection_dim=32, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    coder = made(
        "AutoencoderKLHunyuanVideo", latent_channels=4, down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4, block_out_channels=(8,) * 4, layers_per_block=1,
        norm_num_groups=4,
    )  # fmt: skip
    return {
        "transformer": transformer, "vae": coder, "scheduler": _flow(shift=7.0), **_llm("Llama", 256),
        "text_encoder_2": tiny_text.clip(positions=77), "tokenizer_2": tiny_text.clip_tokenizer(77),
    }  # fmt: skip


def _mochi() -> dict[str, Any]:
    transformer = made(
        "MochiTransformer3DModel", patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        pooled_projection_dim=16, in_channels=12, text_embed_dim=32, time_embed_dim=4, max_sequence_length=16,
    )  # fmt: skip
    coder = made(
        "AutoencoderKLMochi", latent_channels=12, encoder_block_out_channels=(32,) * 4,
        decoder_block_out_channels=(32,) * 4, layers_per_block=(1,) * 5,
    )  # fmt: skip
    return {"transformer": transformer, "vae": coder, "scheduler": _flow(), **text()}


_ADA = {
    "sample_size": 8, "num_layers": 2, "patch_size": 2, "attention_head_dim": 8, "num_attention_heads": 3,
    "in_channels": 4, "out_channels": 8, "attention_bias": True, "activation_fn": "gelu-approximate",
    "num_embeds_ada_norm": 1000, "norm_elementwise_affine": False,
}  # fmt: skip


def _captioned(kind: str, **more: Any) -> Maker:
    def parts() -> dict[str, Any]:
        config = {**_ADA, "caption_channels": 32, "cross_attention_dim": 24, "norm_type": "ada_norm_single", **more}
        return {"transformer": made(kind, **config), "vae": vae(), "scheduler": diffusers.DDIMScheduler(), **text()}

    return parts


def _dit() -> dict[str, Any]:
    transformer = made("DiTTransformer2DModel", **_ADA, norm_type="ada_norm_zero")
    return {"transformer": transformer, "vae": vae(), "scheduler": diffusers.DDIMScheduler()}


def _hunyuan_dit() -> dict[str, Any]:
    transformer = made(
        "HunyuanDiT2DModel", sample_size=16, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3,
        in_channels=4, cross_attention_dim=32, cross_attention_dim_t5=32, pooled_projection_dim=16, hidden_size=24,
        activation_fn="gelu-approximate", text_len=77, text_len_t5=256,
    )  # fmt: skip
    torch.manual_seed(3)
    bert = transformers.BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                   intermediate_size=37)  # fmt: skip
    return {
        "transformer": transformer, "vae": vae(), "scheduler": diffusers.DDPMScheduler(), "safety_checker": None,
        "feature_extractor": None, "text_encoder": transformers.BertModel(bert).eval(),
        "tokenizer": tiny_text.t5_tokenizer(77), "text_encoder_2": tiny_text.t5(),
        "tokenizer_2": tiny_text.t5_tokenizer(256),
    }  # fmt: skip


def _cogview3() -> dict[str, Any]:
    transformer = made(
        "CogView3PlusTransformer2DModel", patch_size=2, in_channels=4, num_layers=2, attention_head_dim=4,
        num_attention_heads=2, out_channels=4, text_embed_dim=32, time_embed_dim=8, condition_dim=2,
        pos_embed_max_size=8, sample_size=8,
    )  # fmt: skip
    return {"transformer": transformer, "vae": vae(), "scheduler": diffusers.CogVideoXDDIMScheduler(), **text()}


def _wan_seeing() -> dict[str, Any]:
    return {**wan_parts(in_channels=36, image_dim=32), "image_encoder": seeing(), "image_processor": processor()}


def _skyreels(**more: Any) -> Maker:
    def parts() -> dict[str, Any]:
        scheduler = diffusers.UniPCMultistepScheduler(flow_shift=8.0, use_flow_sigmas=True)
        return {**wan_parts("SkyReelsV2Transformer3DModel", **more), "scheduler": scheduler}

    return parts


def _helios() -> dict[str, Any]:
    config = {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16}
    transformer = made(
        "HeliosTransformer3DModel", **config, out_channels=16, text_dim=32, freq_dim=256, ffn_dim=32, num_layers=2,
        cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_dim=(4, 4, 4),
        has_multi_term_memory_patch=True, guidance_cross_attn=True, zero_history_timestep=True,
        is_amplify_history=False,
    )  # fmt: skip
    scheduler = diffusers.HeliosScheduler(stage_range=[0, 1], stages=1, use_dynamic_shifting=True)
    return {**wan_parts(), "transformer": transformer, "scheduler": scheduler}


def _sana_sprint() -> dict[str, Any]:
    extra = {"qk_norm": "rms_norm_across_heads", "guidance_embeds": True}
    return {**sana_parts(**extra), "scheduler": diffusers.SCMScheduler()}


def _stable_audio() -> dict[str, Any]:
    transformer = made(
        "StableAudioDiTModel", sample_size=4, in_channels=3, num_layers=2, attention_head_dim=4,
        num_key_value_attention_heads=2, out_channels=3, cross_attention_dim=4, time_proj_dim=8,
        global_states_input_dim=8, cross_attention_input_dim=4,
    )  # fmt: skip
    coder = made(
        "AutoencoderOobleck", encoder_hidden_size=6, downsampling_ratios=[1, 2], decoder_channels=3,
        decoder_input_channels=3, audio_channels=2, channel_multiples=[2, 4], sampling_rate=4,
    )  # fmt: skip
    from diffusers.pipelines.stable_audio import StableAudioProjectionModel

    torch.manual_seed(1)
    return {
        "transformer": transformer, "vae": coder, **text(length=25),
        "scheduler": diffusers.EDMDPMSolverMultistepScheduler(prediction_type="v_prediction", sigma_data=1.0),
        "projection_model": StableAudioProjectionModel(32, 4, 0, 32).eval(),
    }  # fmt: skip


_SHORT = {"max_sequence_length": 16}


def _small_hidream() -> Made:
    pipe, call = entry("HiDreamImagePipeline", _hidream, picture(**_SHORT))()
    pipe.default_sample_size = 8  # it paints about as many pixels whatever it is asked for
    return pipe, call


_INTO = {"image": image(), "mask_image": mask, "strength": 0.9, "height": 32, "width": 32}
_VIDEO = {"num_frames": 5, "negative_prompt": "grey", **_SHORT}
_PLAIN = {"use_resolution_binning": False}

TRANSFORMER_PIPELINES: dict[str, Callable[[], Made]] = {
    "flux_inpaint": entry("FluxInpaintPipeline", flux_parts, picture(**_SHORT, **_INTO)),
    "flux_fill": entry(
        "FluxFillPipeline", _flux(48), picture(image=image(), mask_image=mask, **_SHORT) | {"height": 32, "width": 32}
    ),
    "flux_control": entry("FluxControlPipeline", _flux(32), picture(control_image=image(16), **_SHORT)),
    "flux_control_img2img": entry(
        "FluxControlImg2ImgPipeline", _flux(32),
        picture(image=image(16), control_image=image(16), strength=0.9, **_SHORT),
    ),
    "flux_kontext": entry(
        "FluxKontextPipeline", flux_parts, picture(image=image(16), max_area=256, _auto_resize=False, **_SHORT)
    ),
    "flux_controlnet": entry(
        "FluxControlNetPipeline",
        _controlled(flux_parts, "FluxControlNetModel", "controlnet_blocks", **_FLUX),
        picture(control_image=image(16), controlnet_conditioning_scale=0.7, **_SHORT),
    ),
    "sd3_img2img": entry("StableDiffusion3Img2ImgPipeline", sd3_parts, free(image=image(16), strength=0.9, **_SHORT)),
    "sd3_pag_img2img": entry(
        "StableDiffusion3PAGImg2ImgPipeline", sd3_parts, picture(image=image(16), strength=0.9, **_SHORT),
        pag_applied_layers=["blocks.1"],
    ),
    "sd3_controlnet": entry(
        "StableDiffusion3ControlNetPipeline",
        _controlled(sd3_parts, "SD3ControlNetModel", "controlnet_blocks", **_SD3),
        picture(control_image=image(16), controlnet_conditioning_scale=0.5, **_SHORT),
    ),
    "sd3_pag": entry(
        "StableDiffusion3PAGPipeline", sd3_parts, picture(pag_scale=0.7, **_SHORT), pag_applied_layers=["blocks.1"]
    ),
    "qwen_img2img": entry(
        "QwenImageImg2ImgPipeline", qwen_parts, picture(image=image(), strength=0.9) | {"height": 32, "width": 32}
    ),
    "qwen_inpaint": entry("QwenImageInpaintPipeline", qwen_parts, picture(**_INTO)),
    "qwen_controlnet": entry(
        "QwenImageControlNetPipeline",
        _controlled(qwen_parts, "QwenImageControlNetModel", "controlnet_blocks", **_QWEN),
        picture(control_image=image(), controlnet_conditioning_scale=0.5) | {"height": 32, "width": 32},
    ),
    "chroma": entry("ChromaPipeline", _chroma, picture(**_SHORT)),
    "chroma_img2img": entry("ChromaImg2ImgPipeline", _chroma, picture(image=image(16), strength=0.9, **_SHORT)),
    "bria": entry("BriaPipeline", _bria, picture(**_SHORT)),
    "lumina2": entry("Lumina2Pipeline", _lumina2, picture(**_SHORT)),
    "lumina": entry("LuminaPipeline", _lumina, picture(clean_caption=False, **_SHORT)),
    "z_image": entry("ZImagePipeline", _z_image, picture(**_SHORT)),
    "z_image_img2img": entry("ZImageImg2ImgPipeline", _z_image, picture(image=image(16), strength=0.9, **_SHORT)),
    "hidream": _small_hidream,
    "cogview3": entry("CogView3PlusPipeline", _cogview3, picture(**_SHORT)),
    "pixart_alpha": entry(
        "PixArtAlphaPipeline", _captioned("PixArtTransformer2DModel"), picture(clean_caption=False, **_PLAIN, **_SHORT)
    ),
    "dit": entry("DiTPipeline", _dit, {"class_labels": [1], "num_inference_steps": 2, "output_type": "np"}),
    "hunyuan_dit": entry("HunyuanDiTPipeline", _hunyuan_dit, picture(**_PLAIN)),
    "sana_sprint": entry(
        "SanaSprintPipeline", _sana_sprint,
        picture(**_PLAIN, **_SHORT, complex_human_instruction=None) | {"height": 32, "width": 32},
    ),
    "sana_pag": entry(
        "SanaPAGPipeline", sana_parts,
        picture(**_PLAIN, **_SHORT, complex_human_instruction=None) | {"height": 32, "width": 32},
        pag_applied_layers=["blocks.1"],
    ),
    "wan_i2v": entry("WanImageToVideoPipeline", _wan_seeing, picture(image=still, **_VIDEO)),
    "wan_v2v": entry("WanVideoToVideoPipeline", wan_parts, free(video=frames, strength=0.9, **_SHORT) | {
        "height": 16, "width": 16, "negative_prompt": "grey",
    }),
    "wan_vace": entry(
        "WanVACEPipeline", lambda: wan_parts("WanVACETransformer3DModel", vace_layers=[0, 2], vace_in_channels=96),
        picture(video=frames, mask=frames, **_VIDEO),
    ),
    "skyreels": entry("SkyReelsV2Pipeline", _skyreels(), picture(**_VIDEO)),
    "skyreels_df": entry("SkyReelsV2DiffusionForcingPipeline", _skyreels(), picture(**_VIDEO)),
    "skyreels_df_i2v": entry(
        "SkyReelsV2DiffusionForcingImageToVideoPipeline", _skyreels(), picture(image=still, **_VIDEO)
    ),
    "helios": entry("HeliosPipeline", _helios, picture(**_VIDEO) | {"num_frames": 33}),
    "ltx_i2v": entry(
        "LTXImageToVideoPipeline", ltx_parts,
        picture(image=image(), num_frames=9, **_SHORT) | {"height": 32, "width": 32},
    ),
    "cogvideox_i2v": entry(
        "CogVideoXImageToVideoPipeline", lambda: cogvideox_parts(in_channels=8),
        picture(image=still, num_frames=9, **_SHORT),
    ),
    "cogvideox_v2v": entry(
        "CogVideoXVideoToVideoPipeline", cogvideox_parts,
        picture(video=lambda: frames(8), strength=0.9, **_SHORT),
    ),
    "hunyuan_video": entry(
        "HunyuanVideoPipeline", _hunyuan_video,
        picture(num_frames=5, prompt_template={"template": "{}", "crop_start": 0}, **_SHORT),
    ),
    "mochi": entry("MochiPipeline", _mochi, picture(num_frames=7, **_SHORT)),
    "latte": entry(
        "LattePipeline", _captioned("LatteTransformer3DModel", video_length=2),
        picture(video_length=2, clean_caption=False)
    ),
    "stable_audio": entry("StableAudioPipeline", _stable_audio, free(guidance_scale=6.0)),
}  # fmt: skip

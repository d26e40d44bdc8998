"""Pipelines at full size as folders on disk: published configurations, with sparse files of weights or random ones.

A sparse file has a header and a hole: it takes no room on disk, and all numbers in it are zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import diffusers
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from .pipelines import tiny_text

_FILES = {"diffusers": "diffusion_pytorch_model.safetensors", "transformers": "model.safetensors"}
_TYPES = {torch.bfloat16: "BF16", torch.int64: "I64", torch.float32: "F32"}


def flux_folder(folder: Path) -> Path:
    """FLUX.1-dev in bfloat16 over sparse files, 31.4 GiB of them."""
    with empty():
        parts = {
            "transformer": diffusers.FluxTransformer2DModel(guidance_embeds=True),
            "vae": diffusers.AutoencoderKL(**wide_vae()),
            "text_encoder": transformers.CLIPTextModel(_clip()),
            "text_encoder_2": transformers.T5EncoderModel(
                transformers.T5Config(
                    vocab_size=32128, d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24,
                    feed_forward_proj="gated-gelu",
                )
            ),
        }  # fmt: skip
    others = {
        "tokenizer": tiny_text.clip_tokenizer(77),
        "tokenizer_2": tiny_text.t5_tokenizer(512),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    }
    return save(folder, diffusers.FluxPipeline, parts, others, write_sparse)


def sd15_folder(folder: Path, write: Callable[[nn.Module, Path], None] | None = None) -> Path:
    """Stable Diffusion 1.5 in bfloat16 with random weights, 2.0 GiB of them, or as ``write`` has them."""
    with empty():
        parts = {
            "unet": diffusers.UNet2DConditionModel(
                sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280)
            ),
            "vae": diffusers.AutoencoderKL(**_VAE, latent_channels=4, scaling_factor=0.18215),
            "text_encoder": transformers.CLIPTextModel(_clip()),
        }
    others = {
        "tokenizer": tiny_text.clip_tokenizer(77),
        "scheduler": diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        "safety_checker": None,
        "feature_extractor": None,
    }
    return save(folder, diffusers.StableDiffusionPipeline, parts, others, write or _write_random)


def sdxl_folder(folder: Path) -> Path:
    """SDXL in bfloat16 over sparse files, 6.5 GiB of them."""
    wide = transformers.CLIPTextConfig(
        vocab_size=49408, hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20,
        projection_dim=1280, hidden_act="gelu",
    )  # fmt: skip
    with empty():
        parts = {
            "unet": diffusers.UNet2DConditionModel(
                sample_size=128, cross_attention_dim=2048, attention_head_dim=(5, 10, 20),
                block_out_channels=(320, 640, 1280), transformer_layers_per_block=(1, 2, 10),
                down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * 2),
                up_block_types=(*("CrossAttnUpBlock2D",) * 2, "UpBlock2D"), use_linear_projection=True,
                addition_embed_type="text_time", addition_time_embed_dim=256,
                projection_class_embeddings_input_dim=2816,
            ),
            "vae": diffusers.AutoencoderKL(**_VAE, latent_channels=4, scaling_factor=0.13025),
            "text_encoder": transformers.CLIPTextModel(_clip()),
            "text_encoder_2": transformers.CLIPTextModelWithProjection(wide),
        }  # fmt: skip
    others = {
        "tokenizer": tiny_text.clip_tokenizer(77),
        "tokenizer_2": tiny_text.clip_tokenizer(77),
        "scheduler": diffusers.EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012),
    }
    return save(folder, diffusers.StableDiffusionXLPipeline, parts, others, write_sparse)


def pixart_folder(folder: Path) -> Path:
    """PixArt-Sigma in bfloat16 over sparse files, 10.2 GiB of them."""
    t5 = transformers.T5Config(
        vocab_size=32128, d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    with empty():
        parts = {
            "transformer": diffusers.PixArtTransformer2DModel(
                sample_size=128,
                out_channels=8,
                caption_channels=4096,
                use_additional_conditions=False,
                interpolation_scale=2,
            ),
            "vae": diffusers.AutoencoderKL(**_VAE, latent_channels=4, scaling_factor=0.13025),
            "text_encoder": transformers.T5EncoderModel(t5),
        }
    others = {
        "tokenizer": tiny_text.t5_tokenizer(300),
        "scheduler": diffusers.DPMSolverMultistepScheduler(),
    }
    return save(folder, diffusers.PixArtSigmaPipeline, parts, others, write_sparse)


_VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "sample_size": 512,
}


def wide_vae() -> dict[str, Any]:
    """The configuration of an autoencoder of 16 channels, which several pipelines share."""
    return {
        **_VAE, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1159,
        "scaling_factor": 0.3611,
    }  # fmt: skip


def _clip() -> Any:
    return transformers.CLIPTextConfig(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )


def empty() -> Any:
    """Within it, modules are made without data for their parameters."""
    return accelerate.init_empty_weights()


def save(
    folder: Path,
    pipeline: Any,
    parts: dict[str, nn.Module],
    others: dict[str, Any],
    write: Callable[[nn.Module, Path], None],
) -> Path:
    """Saves the listing and the configurations as diffusers does, and the weights by ``write``."""
    options = {"requires_safety_checker": False} if "safety_checker" in others else {}
    pipe = pipeline(**parts, **others, **options)
    folder.mkdir(parents=True, exist_ok=True)
    pipe.save_config(folder)
    for name, part in {**parts, **others}.items():
        if isinstance(part, nn.Module):
            (folder / name).mkdir(exist_ok=True)
            (part.save_config if hasattr(part, "save_config") else part.config.save_pretrained)(folder / name)
            write(part, folder / name / _FILES[type(part).__module__.partition(".")[0]])
        elif part is not None:
            part.save_pretrained(folder / name)
    return folder


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict, tied weights once, with the names of published files."""
    seen: set[int] = set()
    state = module.state_dict(keep_vars=True)
    before = (
        "text_model." if isinstance(module, transformers.CLIPTextModel) and not hasattr(module, "text_model") else ""
    )
    return {f"{before}{name}": one for name, one in state.items() if id(one) not in seen and not seen.add(id(one))}  # type: ignore[func-returns-value]


def write_sparse(module: nn.Module, file: Path) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in _weights(module).items():
        dtype = torch.bfloat16 if tensor.is_floating_point() else tensor.dtype
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)


def _write_random(module: nn.Module, file: Path) -> None:
    torch.manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in _weights(module).items():
        if not tensor.is_floating_point():
            made[name] = torch.arange(tensor.numel()).expand(tensor.shape).contiguous()
            continue
        drawn = torch.randn(tensor.shape, dtype=torch.bfloat16)
        scale = tensor[0].numel() ** -0.5 if tensor.dim() > 1 else 0.02
        made[name] = drawn * scale + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    save_file(made, file)

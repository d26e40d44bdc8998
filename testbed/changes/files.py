"""LoRAs, textual inversions and IP-Adapters for the small pipelines, in files of the published formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..pipelines.entries import seeing
from .models import FLUX, MODELS, SD, SDXL, WIDE

TARGETS = {
    "transformer": ("to_q", "to_out.0", "proj_mlp", "x_embedder", "ff.net.2", "norm.linear"),
    "unet": ("to_q", "to_k", "conv1", "conv_in", "proj_in", "time_emb_proj"),
    "text_encoder": ("q_proj", "fc1"),
}
TOKEN = "<mine>"
RANK = 4
LORAS = (1, 2, 3, 4)
"""Numbers of the LoRAs of each pipeline; the last two are of what denoises alone."""


def save_all(folder: Path) -> None:
    """Writes the pipelines and all files beside them."""
    for model in MODELS:
        model.save(folder)
    pipes = {model.name: model.make() for model in MODELS}
    for name, pipe in pipes.items():
        for number in LORAS:
            _save(lora(pipe, number), folder / "loras" / f"{name}{number}.safetensors")
    _save(kohya(pipes[SD.name], 3), folder / "loras" / "kohya.safetensors")
    _save_inversions(folder / "inversions", pipes)
    for name in (SD.name, SDXL.name):
        _save_ip_adapter(pipes[name].unet, folder / "ip" / name)


def _save(state: dict[str, torch.Tensor], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: one.contiguous() for name, one in state.items()}, file, metadata={"format": "pt"})


def _targets(pipe: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Components, paths and weights of the layers that a LoRA is made for."""
    for part, targets in TARGETS.items():
        module = getattr(pipe, part, None)
        for path, layer in module.named_modules() if module is not None else ():
            if any(path == one or path.endswith(f".{one}") for one in targets):
                yield part, path, layer.weight


def _matrices(weight: torch.Tensor, made: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    down = torch.randn(RANK, *weight.shape[1:], generator=made)
    up = torch.randn(weight.shape[0], RANK, *(1 for _ in weight.shape[2:]), generator=made)
    return down * 0.1, up * 0.3


def lora(pipe: Any, seed: int) -> dict[str, torch.Tensor]:
    """A LoRA with the names of diffusers and peft."""
    made, state = torch.Generator().manual_seed(seed), {}
    for part, path, weight in _targets(pipe):
        if part == "text_encoder" and seed > 2:
            continue
        down, up = _matrices(weight, made)
        state |= {f"{part}.{path}.lora_A.weight": down, f"{part}.{path}.lora_B.weight": up}
    return state


def kohya(pipe: Any, seed: int) -> dict[str, torch.Tensor]:
    """A LoRA of Stable Diffusion 1.5 with the names of sd-scripts, which most published ones have."""
    made, state = torch.Generator().manual_seed(seed), {}
    for part, path, weight in _targets(pipe):
        if path.endswith(("to_q", "to_k", "proj_in", "q_proj", "fc1")):
            down, up = _matrices(weight, made)
            before = "" if part == "unet" or path.startswith("text_model.") else "text_model."
            name = f"lora_{'unet' if part == 'unet' else 'te'}_{f'{before}{path}'.replace('.', '_')}"
            state |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
            state[f"{name}.alpha"] = torch.tensor(2.0)
    return state


def _save_inversions(folder: Path, pipes: dict[str, Any]) -> None:
    """Learned embeddings of one and of several vectors, as diffusers and as the Automatic1111 web UI write them."""
    folder.mkdir(parents=True, exist_ok=True)
    one, several = _drawn(WIDE, seed=1), _drawn(3, WIDE, seed=2)
    (folder / "diffusers").mkdir()
    _save({TOKEN: one}, folder / "diffusers" / "learned_embeds.safetensors")
    (folder / "pickled").mkdir()
    torch.save({TOKEN: one}, folder / "pickled" / "learned_embeds.bin")
    _save({TOKEN: several}, folder / "several.safetensors")
    torch.save(
        {
            "string_to_token": {"*": 265}, "string_to_param": {"*": several.clone().requires_grad_()}, "name": TOKEN,
            "step": 999, "sd_checkpoint": "81761151", "sd_checkpoint_name": "v1-5-pruned-emaonly",
        },
        folder / "a1111.pt",
    )  # fmt: skip
    _save({"emb_params": several}, folder / "a1111.safetensors")
    widths = {"clip_l": pipes["sdxl"].text_encoder, "clip_g": pipes["sdxl"].text_encoder_2}
    _save(
        {name: _drawn(2, one.config.hidden_size, seed=3) for name, one in widths.items()}, folder / "sdxl.safetensors"
    )


def _drawn(*shape: int, seed: int, scale: float = 0.5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def _save_ip_adapter(unet: Any, folder: Path) -> None:
    """Two IP-Adapters, the plain one and Plus, with the encoder of pictures that both need."""
    encoder = seeing()
    encoder.save_pretrained(folder / "models" / "image_encoder")
    width, text = encoder.config.hidden_size, unet.config.cross_attention_dim
    attending = [name.removesuffix(".processor") for name in unet.attn_processors if name.endswith("attn2.processor")]
    layers = {
        f"ip_adapter.{2 * index + 1}.{part}.weight": _drawn(unet.get_submodule(name).to_k.weight.shape[0], text, seed=9)
        for index, name in enumerate(attending)
        for part in ("to_k_ip", "to_v_ip")
    }
    for name, projection in {"plain": _projection(width, text), "plus": _resampler(width, text)}.items():
        state = {f"image_proj.{key}": one for key, one in projection.items()}
        _save({**state, **layers}, folder / "models" / f"ip-adapter_{name}.safetensors")


def _projection(width: int, text: int, tokens: int = 4) -> dict[str, torch.Tensor]:
    return {
        "proj.weight": _drawn(tokens * text, width, seed=3), "proj.bias": torch.zeros(tokens * text),
        "norm.weight": torch.ones(text), "norm.bias": torch.zeros(text),
    }  # fmt: skip


def _resampler(width: int, text: int, hidden: int = 64, tokens: int = 4) -> dict[str, torch.Tensor]:
    state = {
        "latents": _drawn(1, tokens, hidden, seed=4),
        "proj_in.weight": _drawn(hidden, width, seed=5), "proj_in.bias": torch.zeros(hidden),
        "proj_out.weight": _drawn(text, hidden, seed=6), "proj_out.bias": torch.zeros(text),
        "norm_out.weight": torch.ones(text), "norm_out.bias": torch.zeros(text),
    }  # fmt: skip
    for index in range(4):
        block = f"layers.{index}"
        for norm in ("0.norm1", "0.norm2", "1.0"):
            state |= {f"{block}.{norm}.weight": torch.ones(hidden), f"{block}.{norm}.bias": torch.zeros(hidden)}
        shapes = {
            "0.to_q": (hidden, hidden), "0.to_kv": (2 * hidden, hidden), "0.to_out": (hidden, hidden),
            "1.1": (4 * hidden, hidden), "1.3": (hidden, 4 * hidden),
        }  # fmt: skip
        state |= {f"{block}.{key}.weight": _drawn(*shape, seed=7, scale=0.2) for key, shape in shapes.items()}
    return state


def lora_file(folder: Path, model: Any = FLUX, number: int = 1) -> Path:
    return folder / "loras" / f"{model.name}{number}.safetensors"

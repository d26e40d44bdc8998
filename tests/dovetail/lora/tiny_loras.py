"""LoRA files for tiny pipelines, made by peft and saved by diffusers, with random weights that are large enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict

TARGETS = {
    "transformer": ("to_q", "to_out.0", "proj_mlp", "x_embedder", "ff.net.2"),
    "unet": ("to_q", "to_k", "conv1", "conv_in", "proj_in", "time_emb_proj"),
    "text_encoder": ("q_proj", "fc1"),
}


def save_lora(
    pipe: Any, folder: Path, seed: int, rank: int = 4, parts: tuple[str, ...] = tuple(TARGETS), **config: Any
) -> Path:
    """Writes a LoRA for the parts of a pipeline that take one, and returns the folder; the pipeline stays bare."""
    torch.manual_seed(seed)
    layers = {}
    for part, targets in ((part, TARGETS[part]) for part in parts):
        module = getattr(pipe, part, None)
        if module is not None:
            given = {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), **config}
            module.add_adapter(LoraConfig(init_lora_weights=False, **given), "made")
            state = get_peft_model_state_dict(module, adapter_name="made")
            layers[f"{part}_lora_layers"] = {name: 0.3 * torch.randn_like(tensor) for name, tensor in state.items()}
    type(pipe).save_lora_weights(folder, **layers)
    pipe.unload_lora_weights()
    return folder

"""Tiny instances of real classes, widened so that the matrices of their blocks are large enough to be split by rows."""

from __future__ import annotations

from typing import Any

from torch import nn

from . import everything
from .tiny import TINY, Entry

WIDE: dict[str, Entry] = {}
__all__ = ["WIDE", "everything"]


def wide(name: str, **wider: Any) -> None:
    """Adds a class of the zoo with some of its config changed; it is called as the tiny one is."""
    WIDE[name] = Entry(name, lambda: _widened(TINY[name].build(), wider), TINY[name].call)


def _widened(module: nn.Module, wider: dict[str, Any]) -> nn.Module:
    cls: Any = type(module)
    if hasattr(cls, "from_config"):
        return cls.from_config({**module.config, **wider})  # type: ignore[no-any-return, dict-item]
    config: Any = module.config
    return cls(type(config)(**{**config.to_dict(), **wider}))  # type: ignore[no-any-return]


HEADS = dict(num_attention_heads=4, attention_head_dim=64)
wide("FluxTransformer2DModel", **HEADS, axes_dims_rope=(16, 24, 24))
wide("Flux2Transformer2DModel", **HEADS, axes_dims_rope=(16, 16, 16, 16))
wide("ChromaTransformer2DModel", **HEADS, axes_dims_rope=(16, 24, 24))
wide("SD3Transformer2DModel", **HEADS, caption_projection_dim=256)
wide("QwenImageTransformer2DModel", **HEADS, axes_dims_rope=(16, 24, 24))
wide("ZImageTransformer2DModel", dim=256, n_heads=4, n_kv_heads=4, axes_dims=[16, 24, 24])
wide("PixArtTransformer2DModel", **HEADS, cross_attention_dim=256)
wide(
    "SanaTransformer2DModel",
    **HEADS, num_cross_attention_heads=4, cross_attention_head_dim=64, cross_attention_dim=256,
)  # fmt: skip
wide("HunyuanDiT2DModel", num_attention_heads=32, hidden_size=256)
wide("AuraFlowTransformer2DModel", **HEADS, caption_projection_dim=256)
wide("LuminaNextDiT2DModel", hidden_size=256, num_attention_heads=32, num_kv_heads=32)
wide("CogView4Transformer2DModel", **HEADS)
wide("PriorTransformer", **HEADS)
wide("LTXVideoTransformer3DModel", **HEADS, cross_attention_dim=256)
wide("WanTransformer3DModel", **HEADS, ffn_dim=512)
wide("HunyuanVideoTransformer3DModel", **HEADS, rope_axes_dim=(16, 24, 24))
wide("UNet2DConditionModel", block_out_channels=(256, 256))
wide("T5EncoderModel", d_model=256, d_ff=512, d_kv=64)
wide("CLIPTextModel", hidden_size=256, intermediate_size=512)
wide("Qwen3Model", hidden_size=256, intermediate_size=512, head_dim=64, num_key_value_heads=4)
wide("Gemma3TextModel", hidden_size=256, intermediate_size=512, head_dim=64, num_key_value_heads=4)
wide("SiglipVisionModel", hidden_size=256, intermediate_size=512)

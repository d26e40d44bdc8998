from __future__ import annotations

import re
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.trace import trace

from .tiny import Call, Draw
from .tiny_video import COGVIDEO


def hidream(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=[8, 4],
        text_emb_dim=8,
        num_routed_experts=2,
        num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=(0, 1),
        force_inference_output=True,
    )
    return config, dict(
        hidden_states=draw(2, 4, 32, 32),
        encoder_hidden_states_t5=draw(2, 8, 8),
        encoder_hidden_states_llama3=draw(2, 2, 8, 4),
        pooled_embeds=draw(2, 8),
        timesteps=draw.ids(1000, 2),
    )


def lumina2(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        sample_size=16,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=2,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(128, 128, 128),
        cap_feat_dim=32,
    )
    return config, dict(
        hidden_states=draw(2, 4, 16, 16),
        encoder_hidden_states=draw(2, 16, 32),
        timestep=draw.float(2),
        encoder_attention_mask=torch.ones(2, 16, dtype=torch.bool),
    )


def omnigen(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=32,
        num_layers=2,
        pad_token_id=0,
        vocab_size=1000,
        in_channels=4,
        time_step_dim=4,
        rope_scaling={"long_factor": [1, 2], "short_factor": [1, 2]},
    )
    return config, dict(
        hidden_states=draw(2, 4, 8, 8),
        timestep=draw.float(2),
        input_ids=draw.ids(10, 2, 24),
        input_img_latents=[],
        input_image_sizes={},
        attention_mask=torch.ones(2, 41, 41),
        position_ids=torch.arange(41).expand(2, 41).clone(),
    )


def mochi(draw: Draw) -> tuple[dict[str, Any], Call]:
    config = dict(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=4,
        qk_norm="rms_norm",
        text_embed_dim=16,
        time_embed_dim=4,
        max_sequence_length=16,
    )
    return config, dict(
        hidden_states=draw(2, 4, 2, 16, 16),
        encoder_hidden_states=draw(2, 16, 16),
        timestep=draw.ids(1000, 2),
        encoder_attention_mask=torch.ones(2, 16, dtype=torch.bool),
    )


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("HiDreamImageTransformer2DModel", hidream),
        ("Lumina2Transformer2DModel", lumina2),
        ("OmniGenTransformer2DModel", omnigen),
        ("MochiTransformer3DModel", mochi),
    ],
)
def test_a_model_that_looks_at_values_is_refused_with_its_line_and_a_way_out(name: str, example: Any) -> None:
    config, call = example(Draw(torch.float32))
    with pytest.raises(TraceError) as caught:
        trace(getattr(diffusers, name)(**config).eval(), (), call)
    message = str(caught.value)
    assert message.startswith(name)
    assert re.search(r"\w+\.py:\d+ \(.+\)", message)
    assert "compile a submodule" in message
    assert "\n" not in message


def test_a_table_that_a_model_computes_and_writes_while_it_is_called_gets_its_values() -> None:
    module = diffusers.CogVideoXTransformer3DModel(**COGVIDEO).eval()
    draw = Draw(torch.float32)
    call = dict(
        hidden_states=draw(1, 3, 4, 8, 8), encoder_hidden_states=draw(1, 8, 8), timestep=draw.ids(1000, 1)
    )  # one frame more than the model's own table has
    with torch.no_grad():
        expected = module(**call).sample
    for backend in ("sim0", "sim0&sim1"):
        assert torch.equal(dovetail.compile(module, (), call, backend=backend)(**call).sample, expected)

"""The role of each component of the pipelines that diffusers has, by its name or its class."""

from __future__ import annotations

import diffusers
import pytest
from torch import nn

from dovetail.conventions.roles import role_for, role_of_module
from dovetail.planning.phases import phase_of


@pytest.mark.parametrize(
    ("name", "library", "kind", "role"),
    [
        ("prior", "diffusers", "PriorTransformer", "diffusion"),
        ("prior", "stable_cascade", "StableCascadeUNet", "diffusion"),
        ("prior", "wuerstchen", "WuerstchenPrior", "diffusion"),
        ("decoder", "wuerstchen", "WuerstchenDiffNeXt", "diffusion"),
        ("decoder", "diffusers", "UNet2DConditionModel", "diffusion"),
        ("super_res_first", "diffusers", "UNet2DModel", "diffusion"),
        ("text_unet", "versatile_diffusion", "UNetFlatConditionModel", "diffusion"),
        ("unconditional_transformer", "diffusers", "FluxTransformer2DModel", "diffusion"),
        ("transformer_2", "diffusers", "WanTransformer3DModel", "diffusion"),
        ("movq", "diffusers", "VQModel", "vae"),
        ("vqgan", "wuerstchen", "PaellaVQModel", "vae"),
        ("audio_vae", "diffusers", "AutoencoderKLLTX2Audio", "vae"),
        ("sound_tokenizer", "diffusers", "AutoencoderOobleck", "vae"),
        ("prior_text_encoder", "transformers", "CLIPTextModelWithProjection", "te"),
        ("language_model", "transformers", "GPT2LMHeadModel", "te"),
        ("bert", "transformers", "BertModel", "te"),
        ("prior_image_encoder", "transformers", "CLIPVisionModelWithProjection", "clip_vision"),
        ("siglip", "transformers", "SiglipVisionModel", "clip_vision"),
        ("vocoder", "transformers", "SpeechT5HifiGan", "vocoder"),
        ("safety_checker", "stable_diffusion", "StableDiffusionSafetyChecker", "safety_checker"),
        ("connectors", "ltx2", "LTX2TextConnectors", "connectors"),
        ("motion_adapter", "diffusers", "MotionAdapter", "motion_adapter"),
    ],
)
def test_a_component_whose_name_is_no_roles_gets_that_of_its_class(
    name: str, library: str, kind: str, role: str
) -> None:
    assert role_for(name, library, kind) == role


def test_a_component_that_is_there_has_the_role_of_its_class() -> None:
    prior = diffusers.PriorTransformer(num_attention_heads=1, attention_head_dim=4, embedding_dim=4, num_layers=1)
    assert role_of_module("prior", prior) == "diffusion"
    assert role_of_module("movq", diffusers.VQModel(block_out_channels=(32,))) == "vae"
    assert role_of_module("projection", nn.Linear(2, 2)) == "projection"


def test_a_prior_has_done_its_work_when_the_decoder_begins() -> None:
    assert len({phase_of(name) for name in ("prior", "decoder", "vae")}) == 3
    assert phase_of("transformer") == phase_of("transformer_2") == phase_of("controlnet")

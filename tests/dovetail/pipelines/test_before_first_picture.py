"""What libraries do with a loaded pipeline before any of its weights was read, and adapters that are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from peft import LoraConfig
from safetensors.torch import save_file

import dovetail
from dovetail.compiler.errors import UsageError
from testbed.pipelines import tiny_pipelines, tiny_text
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

from ..lora.tiny_loras import save_lora

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
RESTS = (None, "*=cpu", "*=disk")


def ip_adapter(unet: Any) -> dict[str, Any]:
    """The weights of an IP-Adapter for a tiny UNet, for image embeddings of 16 numbers."""
    made = torch.Generator().manual_seed(3)
    proj = {"proj.weight": torch.randn(4 * 32, 16, generator=made) * 0.3, "proj.bias": torch.zeros(4 * 32)}
    norm = {"norm.weight": torch.ones(32), "norm.bias": torch.zeros(32)}
    attending = [name.removesuffix(".processor") for name in unet.attn_processors if "attn2" in name]
    widths = [unet.get_submodule(name).to_k.weight.shape[0] for name in attending]
    layers = {
        f"{2 * index + 1}.{part}.weight": torch.randn(width, 32, generator=made) * 0.3
        for index, width in enumerate(widths)
        for part in ("to_k_ip", "to_v_ip")
    }
    return {"image_proj": {**proj, **norm}, "ip_adapter": layers}


def load_ip_adapter(pipe: Any, weights: dict[str, Any]) -> None:
    pipe.load_ip_adapter(copy.deepcopy(weights), subfolder="", weight_name="", image_encoder_folder=None)
    pipe.set_ip_adapter_scale(0.7)


def prior() -> Any:
    """A prior whose own mean and deviation its pipeline computes with."""
    torch.manual_seed(0)
    model = diffusers.PriorTransformer(
        num_attention_heads=2, attention_head_dim=12, embedding_dim=32, num_layers=1, num_embeddings=16
    ).eval()
    with torch.no_grad():
        model.clip_std.fill_(2.0)
        model.clip_mean.fill_(0.5)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8,
        projection_dim=32,
    )  # fmt: skip
    scheduler = diffusers.UnCLIPScheduler(
        variance_type="fixed_small_log", prediction_type="sample", num_train_timesteps=1000, clip_sample=True,
        clip_sample_range=5.0,
    )  # fmt: skip
    return diffusers.KandinskyV22PriorPipeline(
        prior=model,
        image_encoder=transformers.CLIPVisionModelWithProjection(vision).eval(),
        text_encoder=tiny_text.clip(projection=32),
        tokenizer=tiny_text.clip_tokenizer(),
        scheduler=scheduler,
        image_processor=transformers.CLIPImageProcessor(size=32, crop_size=32),
    )


def embed(pipe: Any) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    made = torch.Generator().manual_seed(0)
    found: torch.Tensor = pipe("a red circle", num_inference_steps=2, generator=made, output_type="pt").image_embeds
    return found.cpu()


@pytest.mark.parametrize("rests", slow_but([], RESTS))
def test_an_ip_adapter_loads_before_the_first_picture(rests: str | None, tmp_path: Path) -> None:
    eager, call = tiny_pipelines.sd()
    eager.save_pretrained(tmp_path)
    weights = ip_adapter(eager.unet)
    call = {**call, "ip_adapter_image_embeds": [torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(4))]}
    load_ip_adapter(eager, weights)
    pipe = dovetail.load_pipeline(tmp_path, SPREAD, params_backend=rests)
    load_ip_adapter(pipe, weights)
    assert torch.equal(paint(pipe, call).cpu(), paint(eager, call))


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("rests", RESTS)
@pytest.mark.parametrize("backend", slow_but(["sim0&sim1"], ["sim0", "diffusion=sim0,te=sim1", "sim0&sim1"]))
def test_a_pipeline_may_compute_with_a_components_own_parameters(
    backend: str, rests: str | None, tmp_path: Path
) -> None:
    eager = prior()
    eager.save_pretrained(tmp_path)
    pipe = dovetail.load_pipeline(tmp_path, backend, params_backend=rests)
    expected = embed(eager)
    assert torch.equal(embed(pipe), expected)
    assert torch.equal(embed(pipe), expected)


@pytest.mark.fifth
def test_an_adapter_is_added_before_the_first_picture(tmp_path: Path) -> None:
    eager, call = tiny_pipelines.flux()
    eager.save_pretrained(tmp_path)
    compiled = dovetail.load_pipeline(tmp_path, SPREAD)
    config = LoraConfig(r=4, target_modules=["to_q"], init_lora_weights=False)
    for pipe in (eager, compiled):
        torch.manual_seed(5)
        pipe.transformer.add_adapter(config)
    assert torch.equal(paint(compiled, call).cpu(), paint(eager, call))


@pytest.mark.slow
def test_a_lora_loads_through_another_pipeline_over_the_same_components(tmp_path: Path) -> None:
    eager, call = tiny_pipelines.flux()
    eager.save_pretrained(tmp_path / "flux")
    lora = save_lora(eager, tmp_path / "lora", seed=1)
    eager.load_lora_weights(lora)
    pipe = dovetail.load_pipeline(tmp_path / "flux", SPREAD)
    other = diffusers.FluxImg2ImgPipeline(**pipe.components)
    other.load_lora_weights(lora)
    assert torch.equal(paint(pipe, call).cpu(), paint(eager, call))


@pytest.mark.slow
def test_a_refused_lora_changes_nothing(tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.flux()
    before = paint(pipe, call)
    wide = pipe.transformer.x_embedder
    state = {
        "transformer.x_embedder.lora_A.weight": torch.randn(4, 2 * wide.in_features),
        "transformer.x_embedder.lora_B.weight": torch.randn(wide.out_features, 4),
    }
    save_file(state, tmp_path / "wide.safetensors", metadata={"format": "pt"})
    config = dict(pipe.transformer.config)
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail:
        with pytest.raises(UsageError, match="changes the shape of x_embedder"):
            pipe.load_lora_weights(tmp_path / "wide.safetensors")
        assert dict(pipe.transformer.config) == config
        assert pipe.get_list_adapters() == {}
        assert torch.equal(paint(pipe, call).cpu(), before)


@pytest.mark.slow
def test_a_lora_that_fails_halfway_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, call = tiny_pipelines.flux()
    before = paint(pipe, call)
    lora = save_lora(pipe, tmp_path, seed=1)
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail:
        monkeypatch.setattr(pipe.text_encoder, "load_adapter", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pipe.load_lora_weights(lora, adapter_name="one")
        monkeypatch.undo()
        assert torch.equal(paint(pipe, call).cpu(), before)
        pipe.load_lora_weights(lora, adapter_name="one")
        assert not torch.equal(paint(pipe, call).cpu(), before)

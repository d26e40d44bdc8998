import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dovetail.demo import denoise, image, style, text
from dovetail.demo.denoise import build, image_ids, padding_bias
from dovetail.demo.evaluate import load, paint
from dovetail.demo.loop import Recipe, Stage
from dovetail.demo.text import CLIP_LENGTH, T5_LENGTH, WIDTH, Encoders
from dovetail.demo.train import train


def _loss(module: nn.Module, stop_at: int | None = None) -> Callable[[int, torch.Generator], torch.Tensor]:
    def loss(step: int, generator: torch.Generator) -> torch.Tensor:
        if step == stop_at:
            raise KeyboardInterrupt
        return (module(torch.randn(4, 3, generator=generator)) - 1).square().mean()

    return loss


def _module() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def test_an_interrupted_training_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    recipe = Recipe("line", steps=20, rate=0.1, average=0.9, save_every=5)
    whole, broken, resumed = _module(), _module(), _module()
    Stage(whole, recipe, tmp_path / "..").run(_loss(whole))
    (tmp_path / ".." / "line.pt").unlink()
    with pytest.raises(KeyboardInterrupt):
        Stage(broken, recipe, tmp_path).run(_loss(broken, stop_at=13))
    Stage(resumed, recipe, tmp_path).run(_loss(resumed))
    assert torch.equal(whole.weight, resumed.weight)


def test_the_rate_is_constant_to_half_time_and_then_falls_to_nothing() -> None:
    recipe = Recipe("line", steps=100, rate=1.0)
    assert [recipe.rate_at(step) for step in (0, 50, 75, 99)] == pytest.approx([1.0, 1.0, 0.5, 0.02])


def test_each_word_of_a_caption_is_one_token() -> None:
    encoders = Encoders()
    caption = "An orange circle to the left of a blue square"
    clip = encoders.clip_tokenizer(caption).input_ids
    t5 = encoders.t5_tokenizer(caption).input_ids
    assert len(clip) == len(caption.split()) + 2 <= CLIP_LENGTH
    assert len(t5) == len(caption.split()) + 1 <= T5_LENGTH


def _transformer() -> nn.Module:
    transformer = build().eval()
    for parameter in transformer.parameters():
        parameter.data.normal_(std=0.05)
    return transformer


@torch.no_grad()
def _predicted(transformer: nn.Module, tokens: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    torch.manual_seed(0)
    return transformer(
        hidden_states=torch.randn(2, 16, 32),
        encoder_hidden_states=tokens,
        pooled_projections=torch.randn(2, WIDTH),
        timestep=torch.tensor([0.3, 0.8]),
        img_ids=image_ids(),
        txt_ids=torch.zeros(tokens.shape[1], 3),
        joint_attention_kwargs={"attention_mask": bias},
        return_dict=False,
    )[0]


def test_the_padding_bias_does_what_more_padding_would_do() -> None:
    transformer, words, pad = _transformer(), torch.randn(2, 8, WIDTH), torch.randn(WIDTH)
    long = _predicted(transformer, torch.cat([words, pad.expand(2, 40, WIDTH)], dim=1))
    short = torch.cat([words, pad.expand(2, 4, WIDTH)], dim=1)
    bias = padding_bias(torch.arange(T5_LENGTH).expand(2, -1) >= 8, torch.tensor([36.0, 36.0]))
    assert torch.allclose(_predicted(transformer, short, bias), long, atol=1e-4)
    assert not torch.allclose(_predicted(transformer, short), long, atol=1e-2)


def test_the_padding_bias_touches_only_padding() -> None:
    bias = padding_bias(torch.arange(T5_LENGTH).expand(2, -1) >= 8, torch.tensor([0.0, 100.0]))
    assert not bias[0].any()
    assert not bias[1, :, :, :8].any()
    assert not bias[1, :, :, T5_LENGTH:].any()
    assert bias[1, 0, 0, 8].item() == pytest.approx(math.log(104 / 4))


@pytest.mark.slow
def test_training_from_nothing_writes_a_pipeline_that_paints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in (image, text, denoise):
        monkeypatch.setattr(stage, "RECIPE", replace(stage.RECIPE, steps=2))
    scenes, pictures = image.training_set(64)
    monkeypatch.setattr(image, "training_set", lambda: (scenes, pictures))
    train(tmp_path / "work", tmp_path / "pipeline")
    assert paint(load(tmp_path / "pipeline"), ["a red circle"], [0])[0].shape == (64, 64, 3)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["pipeline", "work"]


@pytest.mark.fifth
def test_training_the_adapter_writes_one_that_the_pipeline_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "RECIPE", replace(style.RECIPE, steps=2))
    monkeypatch.setattr(style, "PICTURES", 16)
    style.train(tmp_path / "work", tmp_path / "blue.safetensors")
    pipeline = load()
    pipeline.load_lora_weights(tmp_path / "blue.safetensors")
    assert pipeline.get_active_adapters() == ["default_0"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["blue.safetensors", "work"]

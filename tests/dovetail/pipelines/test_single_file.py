"""A pipeline out of one file of weights, as published: the picture is that of the same weights in folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors.torch import save_file

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.compiler.frontend.fakes import has_numbers
from testbed import published
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


def configs(folder: Path, to: Path) -> Path:
    """A copy of a saved pipeline without its weights."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors"))
    return to


def whole(pipe: Any) -> dict[str, torch.Tensor]:
    """The weights of Stable Diffusion in one file, under the names that its authors gave them."""
    encoder = pipe.text_encoder.state_dict()
    encoder = {name.removeprefix("text_model."): value for name, value in encoder.items()}
    parts = {
        "model.diffusion_model.": published.unet(pipe.unet.state_dict(), 1),
        "first_stage_model.": published.vae(pipe.vae.state_dict(), len(pipe.vae.config.block_out_channels)),
        "cond_stage_model.transformer.text_model.": encoder,
    }
    return {prefix + name: value.contiguous().clone() for prefix, part in parts.items() for name, value in part.items()}


@pytest.fixture(scope="module")
def sd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, torch.Tensor, Any]:
    """The file, the folder of configs, the picture, and its call."""
    folder = tmp_path_factory.mktemp("sd")
    pipe, call = tiny_pipelines.sd()
    pipe.save_pretrained(folder / "saved")
    save_file(whole(pipe), folder / "sd.safetensors")
    return folder / "sd.safetensors", configs(folder / "saved", folder / "configs"), paint(pipe, call), call


@pytest.mark.slow
def test_every_component_is_read_from_the_file_when_it_is_needed(sd: Any) -> None:
    file, folder, expected, call = sd
    pipe = dovetail.load_single_file(file, SPREAD, config=folder)
    assert isinstance(pipe, diffusers.StableDiffusionPipeline)
    assert not any(map(has_numbers, pipe.unet.parameters()))
    assert all(one.view.is_in_files for one in pipe.dovetail.components.values())
    assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.fifth
def test_it_takes_the_arguments_of_the_other_two(sd: Any) -> None:
    file, folder, expected, call = sd
    vae = tiny_pipelines.sd()[0].vae
    pipe = dovetail.load_single_file(str(file), config=str(folder), vae=vae, params_backend="*=cpu", backend="sim0")
    assert pipe.vae is vae
    assert torch.equal(paint(pipe, call).cpu(), expected)
    with pytest.raises(UsageError, match=r"^load_single_file does not take original_config: [^\n]*give config"):
        dovetail.load_single_file(file, config=folder, original_config="v1.yaml")
    with pytest.raises(UsageError, match="has no vaee, did you mean vae"):
        dovetail.load_single_file(file, config=folder, vaee=None)


@pytest.mark.fifth
def test_what_the_file_lacks_is_the_folders_and_else_must_be_given(
    sd: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder, expected, call = sd
    pipe, _ = tiny_pipelines.sd()
    save_file({k: v for k, v in whole(pipe).items() if k.startswith("model.")}, tmp_path / "unet.safetensors")
    loaded = dovetail.load_single_file(tmp_path / "unet.safetensors", SPREAD, config=folder.parent / "saved")
    assert "vae is not in" in caplog.text
    assert torch.equal(paint(loaded, call).cpu(), expected)
    with pytest.raises(
        WeightError,
        match=r"has unet and no \w+, [^\n]* --weights unet=\S+ --model FOLDER, or give the component, \w+=…",
    ):
        dovetail.load_single_file(tmp_path / "unet.safetensors", SPREAD, config=folder)


def test_without_a_config_and_a_network_one_error_says_what_to_name(
    sd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match=r"name .* folder .*in config"):
        dovetail.load_single_file(sd[0], local_files_only=True, cache_dir=tmp_path)
    with pytest.raises(UsageError, match=r"has no model_index\.json: name the folder of a whole pipeline in config"):
        dovetail.load_single_file(sd[0], config=tmp_path)
    with pytest.raises(UsageError, match="cannot download the configs of owner/sd"):
        dovetail.load_single_file(sd[0], config="owner/sd", local_files_only=True, cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["sd.ckpt", "none.safetensors"])
def test_what_is_no_file_of_weights_is_an_error(sd: Any, name: str, tmp_path: Path) -> None:
    if name.endswith("ckpt"):
        (tmp_path / name).write_bytes(b"pickle")
    with pytest.raises(WeightError):
        dovetail.load_single_file(tmp_path / name, config=sd[1])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x", "has no weights of"),
        ("cond_stage_model.transformer.text_model.embeddings.position_embedding.weight", "cannot load text_encoder"),
    ],
)
def test_a_file_of_another_pipeline_and_a_damaged_encoder_are_errors(
    sd: Any, name: str, said: str, tmp_path: Path
) -> None:
    save_file({name: torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightError, match=said):
        dovetail.load_single_file(tmp_path / "other.safetensors", config=sd[1].parent / "saved")


def test_a_class_that_diffusers_does_not_know_is_an_error(sd: Any, tmp_path: Path) -> None:
    (file, folder, _, _), (pipe, _) = sd, tiny_pipelines.sd()
    there = configs(folder, tmp_path / "there")
    index = there / "model_index.json"
    index.write_text(index.read_text().replace("UNet2DConditionModel", "UNetOfTomorrow"))
    with pytest.raises(WeightError, match="no file of weights can be given to it"):
        dovetail.load_single_file(file, config=there, vae=pipe.vae, text_encoder=pipe.text_encoder)

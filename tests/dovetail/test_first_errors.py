"""What somebody meets who uses dovetail for the first time: one sentence of ours each, that names a way out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.draw.page.page import Page
from testbed.pipelines import tiny_pipelines

CALL = {"height": 16, "width": 16, "num_inference_steps": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "sd"
    tiny_pipelines.sd()[0].save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe, _ = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    return dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim1,vae=sim0")


@pytest.mark.parametrize(
    "taken",
    [
        {"use_safetensors": True, "safety_checker": None, "requires_safety_checker": False},
        {"device_map": "auto"},
        {"dtype": "bfloat16"},
        {"dtype": torch.float16, "torch_dtype": "fp16"},
    ],
    ids=str,
)
def test_load_pipeline_takes_what_from_pretrained_takes(folder: Path, taken: dict[str, Any]) -> None:
    assert dovetail.load_pipeline(folder, **taken).dovetail.components


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weights": "x.gguf"}, "takes for weights a dict of component and files"),
        ({"lora": [("x", 0.8)]}, "a LoRA is a text, NAME:SCALE, or a path, and no tuple"),
        ({"lora": {"x": 0.8}}, "a LoRA is a text, NAME:SCALE, or a path, and no dict"),
        ({"variant": "fp16"}, "no file in .* is of variant 'fp16': leave variant out"),
        ({"dtype": torch.float16, "torch_dtype": torch.float32}, "its older name .* contradict each other: give one"),
    ],
    ids=str,
)
def test_load_pipeline_refuses_what_cannot_be_meant(folder: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dovetail.load_pipeline(folder, **wrong)


def test_a_repository_without_a_network_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"^cannot download owner/model: [^\n]*$"):
        dovetail.load_pipeline("owner/model", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda pipe: dovetail.compile_pipeline(pipe), "is compiled already: call pipe.dovetail.undo"),
        (lambda pipe: dovetail.compile_pipeline("folder"), "load_pipeline takes folders"),
        (lambda pipe: dovetail.compile_pipeline(pipe.unet), "load_pipeline takes folders, and compile modules"),
        (lambda pipe: dovetail.load_pipeline(pipe), "compile_pipeline takes pipelines"),
        (
            lambda pipe: pipe.unet.cuda(),
            r"unet\.cuda\(\) cannot move this component: dovetail placed its weights on sim0",
        ),
        (lambda pipe: pipe.to(torch.float16), "load it in that dtype"),
        (lambda pipe: pickle.dumps(pipe.dovetail), "copy the pipeline, and compile the copy"),
        (lambda pipe: pipe.dovetail.prepare("x", **{**CALL, "height": "x"}), "height is 'x', and no whole number"),
        (lambda pipe: pipe.dovetail.refresh("transformer"), "has no transformer that is compiled; it has"),
    ],
)
def test_what_a_compiled_pipeline_cannot_do_is_one_sentence(
    pipe: Any, call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        call(pipe)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_what_a_compiled_pipeline_can_do_is_done(pipe: Any) -> None:
    pipe("x", **CALL)
    assert pickle.loads(pickle.dumps(pipe)).unet is not pipe.unet
    pipe.scheduler = diffusers.EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    pipe.vae = copy.deepcopy(pipe.vae)
    assert pipe("x", **CALL).images
    pipe.unet.half()
    assert {one.dtype for one in pipe.unet.parameters()} == {torch.float16}
    pipe.unet.float()
    with pytest.raises(UsageError, match="cannot compile it once more: leave it as it is"):
        pipe.unet = torch.compile(pipe.unet)


def test_a_pipeline_without_anything_at_dovetail_says_why(pipe: Any) -> None:
    other = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipe)
    with pytest.raises(AttributeError, match=r"its .*unet.* are those of a compiled pipeline, whose \.dovetail"):
        _ = other.dovetail
    with pytest.raises(AttributeError, match=r"neither is a copy .*: dovetail\.compile_pipeline\(pipe\) does so"):
        _ = copy.deepcopy(pipe).dovetail
    with pytest.raises(AttributeError, match="no attribute 'dovetailed'"):
        _ = other.dovetailed


def test_a_page_is_not_saved_where_there_is_no_folder(tmp_path: Path) -> None:
    page = Page("<html>")
    with pytest.raises(UsageError, match=r"^cannot write \S+nowhere/page\.html: there is no folder \S+nowhere: name"):
        page.save(tmp_path / "nowhere" / "page.html")
    page.save(tmp_path / "page.html")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_an_address_is_no_file_of_weights() -> None:
    for call in (
        dovetail.load_single_file,
        lambda place: dovetail.compile(nn.Linear(1, 1), (torch.ones(1),), weights=place),
    ):
        with pytest.raises(WeightError, match=r"^https://a\.b/c\.safetensors is an address, .*: download it"):
            call("https://a.b/c.safetensors")


@pytest.mark.slow
def test_a_component_that_takes_another_ones_place_after_a_search_is_said_to_take_its_devices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    dovetail.compile_pipeline(pipe, rig="sim0=64MiB,cpu=1GiB")
    pipe.dovetail.plan("x", **CALL)
    assert pipe.dovetail.decision is not None
    pipe.vae = copy.deepcopy(pipe.vae)
    assert "the new vae takes the devices that were found" in caplog.text

"""Pipelines by their name on the Hub: what is downloaded, and what is asked of it before that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import huggingface_hub
import pytest
import torch
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.cli.options.source import Source
from dovetail.cli.options.subject import find_pipeline, located
from dovetail.compiler.errors import UsageError
from dovetail.conventions.dtypes import AUTO, read_dtypes
from testbed.pipelines import tiny_pipelines

TYPED = ["--variant", "fp16", "--revision", "v2"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sd")
    tiny_pipelines.sd()[0].save_pretrained(folder)
    return folder


@pytest.fixture
def hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """A Hub that has one repository, owner/sd, and notes what is asked of it."""
    asked: list[tuple[str, dict[str, Any]]] = []
    local = tmp_path / "snapshot"

    def one_file(name: str, file: str, **options: Any) -> str:
        asked.append((file, options))
        if name != "owner/sd":
            raise OSError(f"no repository is called {name}")
        (local / file).parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(saved / file, local / file))

    def download(cls: Any, name: str, **options: Any) -> str:
        asked.append(("*", options))
        local.mkdir(exist_ok=True)
        shutil.copy(saved / "model_index.json", local)
        parts = json.loads((saved / "model_index.json").read_text())
        for part in parts:
            if (saved / part).is_dir() and part not in options:
                shutil.copytree(saved / part, local / part, dirs_exist_ok=True)
        return str(local)

    def snapshot(name: str, allow_patterns: list[str], **options: Any) -> str:
        asked.append(("configs", options))
        some = [file for file in saved.rglob("*") if any(file.match(pattern) for pattern in allow_patterns)]
        for file in some:
            (local / file.relative_to(saved)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, local / file.relative_to(saved))
        return str(local)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", one_file)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "download", classmethod(download))
    return asked


def test_what_is_replaced_is_not_downloaded(hub: Any, saved: Path, tmp_path: Path) -> None:
    file = saved / "unet" / "diffusion_pytorch_model.safetensors"
    pipe = dovetail.load_pipeline("owner/sd", "cpu", weights={"diffusion": file}, components={"safety_checker": None})
    options = dict(hub)["*"]
    assert {"unet", "safety_checker"} <= options.keys()
    assert "vae" not in options
    assert not (tmp_path / "snapshot" / "unet" / file.name).exists()
    assert pipe.dovetail.components["unet"].view.nbytes > 0


def test_a_revision_and_a_token_reach_the_hub(hub: Any) -> None:
    dovetail.load_pipeline("owner/sd", "cpu", revision="v2", token="secret", local_files_only=True)
    for _, options in hub:
        assert (options["revision"], options["token"], options["local_files_only"]) == ("v2", "secret", True)
        assert "cache_dir" not in options


def test_a_repository_that_is_not_there_is_an_error_of_ours(hub: Any) -> None:
    with pytest.raises(UsageError, match="no repository is called owner/sdxl"):
        dovetail.load_pipeline("owner/sdxl", "cpu", weights={"vae": "vae.safetensors"})


def test_the_command_line_knows_the_components_of_a_repository(hub: Any) -> None:
    from dovetail.cli.options.subject import find_pipeline

    assert find_pipeline("owner/sd").components["text_encoder"] == "te"
    assert [file for file, _ in hub] == ["model_index.json"]


@pytest.mark.fifth
@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.slow), TYPED])
def test_a_plan_of_a_repository_downloads_its_configs_alone(hub: Any, tmp_path: Path, options: list[str]) -> None:
    line = ["plan", "owner/sd", "--rig", "cuda0=1GiB", "--size", "16", "--steps", "1", *options]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    assert "unet" in done.stdout
    assert {what for what, _ in hub} == {"model_index.json", "configs"}
    assert not list((tmp_path / "snapshot").rglob("*.safetensors"))


def test_a_component_that_a_pipeline_does_not_have_is_refused(saved: Path) -> None:
    with pytest.raises(UsageError, match="no vaee, did you mean vae"):
        dovetail.load_pipeline(saved, "cpu", components={"vaee": None})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("bfloat16", torch.bfloat16),
        ("torch.float16", torch.float16),
        ("fp16", torch.float16),
        (torch.float32, torch.float32),
        ("auto", AUTO),
        (None, None),
        ({"vae": "fp32", "default": torch.float16}, {"vae": torch.float32, "default": torch.float16}),
    ],
)
def test_dtypes_are_given_as_objects_or_by_name(given: Any, read: Any) -> None:
    assert read_dtypes(given) == read


@pytest.mark.parametrize("given", ["float7", "int8", torch.int32, 16, "nn", {"vae": "half a byte"}])
def test_what_is_no_floating_dtype_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="is no floating dtype"):
        read_dtypes(given)


def test_auto_takes_the_dtype_of_the_files(saved: Path, tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.to(torch.float16).save_pretrained(tmp_path)
    for folder, dtype in ((saved, torch.float32), (tmp_path, torch.float16)):
        loaded = dovetail.load_pipeline(folder, "cpu", dtype="auto")
        assert {loaded.unet.dtype, loaded.text_encoder.dtype, loaded.vae.dtype} == {dtype}


def test_the_command_line_asks_the_hub_for_a_variant(hub: Any) -> None:
    located(find_pipeline("owner/sd", Source(variant="fp16")))
    assert dict(hub)["*"] == {"variant": "fp16"}

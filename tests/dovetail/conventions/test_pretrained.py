"""Each argument of from_pretrained and from_single_file of diffusers has its meaning, or is refused with a reason."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.conventions.pretrained import REFUSED, TAKEN, table
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

ROOT = Path(__file__).parents[3]
SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sd")
    tiny_pipelines.sd()[0].save_pretrained(folder)
    return folder


def arguments_of(method: Any) -> set[str]:
    """The names in a method's signature and documentation, and those that it takes out of ``kwargs``."""
    popped = re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(method))
    described = re.findall(r"^ {12}(\w+) \(", inspect.getdoc(method) and method.__doc__, re.M)
    return {*inspect.signature(method).parameters, *popped, *described} - {"cls"}


def test_every_argument_of_the_installed_diffusers_is_in_the_table() -> None:
    pipeline = diffusers.StableDiffusionPipeline
    for method in (pipeline.from_pretrained, pipeline.download, pipeline.from_single_file):
        names = arguments_of(method) - {"pretrained_model_name"}
        assert len(names) > 9
        assert names - TAKEN.keys() - REFUSED.keys() == set()
    assert not TAKEN.keys() & REFUSED.keys()


def test_the_documentation_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "weights.md").read_text("utf-8")


def test_named_arguments_of_load_pipeline_are_those_that_the_table_says_are_taken() -> None:
    ours = inspect.signature(dovetail.load_pipeline).parameters
    both = {"use_safetensors", "low_cpu_mem_usage", "custom_pipeline", "custom_revision", "trust_remote_code"}
    both |= {"quantization_config"}
    assert TAKEN.keys() - ours.keys() - both == {
        "pretrained_model_name_or_path", "pretrained_model_link_or_path", "force_download", "config", "kwargs",
    }  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why_and_what_leaves_it_out_is_taken(name: str, saved: Path) -> None:
    with pytest.raises(UsageError, match=rf"^load_pipeline does not take {name}: [^\n]+$"):
        dovetail.load_pipeline(saved, "cpu", **{name: "anything"})
    dovetail.load_pipeline(saved, "cpu", **{name: None})


@pytest.mark.fifth
def test_what_is_taken_means_what_it_means_to_diffusers(saved: Path) -> None:
    pipe, call = tiny_pipelines.sd()
    torch.manual_seed(5)
    vae = tiny_pipelines.vae()
    pipe.vae = vae
    expected = paint(pipe, call)
    loaded = dovetail.load_pipeline(
        saved, SPREAD, vae=vae, safety_checker=None, requires_safety_checker=False, use_safetensors=True,
        low_cpu_mem_usage=True, force_download=False, trust_remote_code=False, torch_dtype="float32",
    )  # fmt: skip
    assert loaded.vae is vae
    assert loaded.config.requires_safety_checker is False
    assert torch.equal(paint(loaded, call).cpu(), expected)


@pytest.mark.fifth
def test_a_custom_pipeline_is_an_instance_of_its_class(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "import diffusers\n\n"
        "class Twice(diffusers.StableDiffusionPipeline):\n"
        "    def twice(self, **call):\n        return [self(**call) for _ in range(2)]\n"
    )
    pipe = dovetail.load_pipeline(saved, SPREAD, custom_pipeline=str(tmp_path / "twice.py"), trust_remote_code=True)
    assert type(pipe).__name__ == "Twice"
    eager, call = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    given = {**call, "output_type": "pt", "num_inference_steps": 1}
    first, second = pipe.twice(**given, generator=torch.Generator().manual_seed(0))
    assert first.images.shape == second.images.shape
    wanted = paint(eager, {**call, "num_inference_steps": 1})
    assert torch.equal(first.images.cpu(), wanted)


def test_a_component_that_has_pickles_alone_is_refused_with_use_safetensors(tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.save_pretrained(tmp_path)
    pipe.unet.save_pretrained(tmp_path / "unet", safe_serialization=False)
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(WeightError, match="diffusers cannot load"):
        dovetail.load_pipeline(tmp_path, "cpu", use_safetensors=True)
    with pytest.raises(UsageError, match="use_safetensors=False: pickles can run code"):
        dovetail.load_pipeline(tmp_path, "cpu", use_safetensors=False)


def test_an_argument_that_nobody_knows_is_refused_with_the_nearest_one(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"^StableDiffusionPipeline has no bakend, did you mean backend\? There are: "):
        dovetail.load_pipeline(saved, bakend="cpu")
    with pytest.raises(UsageError, match="has no unett, did you mean unet"):
        dovetail.load_pipeline(saved, "cpu", unett=None)

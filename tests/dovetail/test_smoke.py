"""A little of everything that leans on other libraries, for their lowest and newest versions too: `pytest -m smoke`."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from transformers.integrations import peft as peft_in_transformers
from transformers.utils import check_peft_version

import dovetail
from dovetail.conventions import libraries
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import PIPELINES, paint

from .lora.tiny_loras import TARGETS, save_lora

pytestmark = [pytest.mark.smoke, pytest.mark.slow]
SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


@pytest.fixture(autouse=True)
def _sims() -> Iterator[None]:
    sim.enable()
    yield
    gc.collect()


def weights_of(pipe: Any) -> dict[str, torch.Tensor]:
    parts = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    return {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.state_dict().items()}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_saved_pipeline_loads_and_paints_as_its_library_does(name: str, tmp_path: Path) -> None:
    made, call = PIPELINES[name]()
    eager = paint(made, call)
    made.save_pretrained(tmp_path)
    expected = weights_of(type(made).from_pretrained(tmp_path, dtype=torch.float16))
    pipe = dovetail.load_pipeline(tmp_path, SPREAD)
    with pipe.dovetail:
        assert torch.equal(paint(pipe, call).cpu(), eager)
    pipe = dovetail.load_pipeline(tmp_path, SPREAD, dtype=torch.float16)
    pipe.dovetail.undo()
    loaded = weights_of(pipe)
    assert loaded.keys() == expected.keys()
    for key, tensor in expected.items():
        assert loaded[key].dtype == tensor.dtype, key
        assert torch.equal(loaded[key], tensor), key


def parts_that_take_loras() -> tuple[str, ...]:
    """All that a LoRA may be for, but for text encoders where the installed transformers refuses the installed peft.

    transformers 5.24 asks for a peft newer than 0.21.2, which was the newest: eager has no picture to compare with.
    """
    try:
        check_peft_version(min_version=peft_in_transformers.MIN_PEFT_VERSION)
    except ValueError:
        return tuple(part for part in TARGETS if part != "text_encoder")
    return tuple(TARGETS)


@pytest.mark.parametrize("name", ["sd", "flux"])
@pytest.mark.parametrize("mode", ["at_runtime", "immediately"])
def test_a_lora_paints_as_peft_applies_it(name: str, mode: str, tmp_path: Path) -> None:
    pipe, call = PIPELINES[name]()
    file = save_lora(pipe, tmp_path, seed=3, parts=parts_that_take_loras()) / "pytorch_lora_weights.safetensors"
    pipe.load_lora_weights(tmp_path, adapter_name="style")
    pipe.set_adapters(["style"], [0.5])
    if mode == "immediately":
        pipe.fuse_lora(components=libraries.components_for_loras(pipe))
    expected = paint(pipe, call)
    again, call = PIPELINES[name]()
    dovetail.compile_pipeline(again, SPREAD, lora=f"{file}:0.5", lora_apply_mode=mode)
    assert torch.equal(paint(again, call).cpu(), expected)
    again.dovetail.undo()


def test_the_demo_paints_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    words = ("generate", "a red circle above a blue square", "--backend", SPREAD, "-o", str(out))
    done = subprocess.run([sys.executable, "-m", "dovetail", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    picture = Image.open(out).convert("RGB")
    colours = {picture.getpixel((x, y)) for x in range(picture.width) for y in range(picture.height)}
    assert any(red > 150 and blue < 100 for red, _, blue in colours)
    assert any(blue > 150 and red < 100 for red, _, blue in colours)

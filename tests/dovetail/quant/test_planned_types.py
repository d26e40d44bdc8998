"""Plans of weights that would be packed, and plans that name the types in which nothing would be streamed."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import demo
from dovetail.compiler.checkpoints.quantized_types import FLOAT8
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

SMALL = "cuda0=200MiB,cpu=8GiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline as the demo, of which the transformer is wider, 126 million numbers, and has no weights."""
    place = Path(shutil.copytree(demo.folder(), tmp_path_factory.mktemp("model") / "wide"))
    config = json.loads((place / "transformer" / "config.json").read_text())
    (place / "transformer" / "config.json").write_text(json.dumps({**config, "num_attention_heads": 16}))
    next((place / "transformer").glob("*.safetensors")).unlink()
    return place


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))


def account(folder: Path, quant: str | None = None, rig: str = SMALL, **request: str) -> Any:
    pipe, origins = open_pipeline(folder, dtype=torch.bfloat16, needs_files=False, quant=quant)
    dry = DryPipeline(pipe, {**request, "rig": rig}, origins=origins)
    generation = dry("a circle", num_inference_steps=2, height=64, width=64, max_sequence_length=12)
    assert generation is not None
    return dry.account(generation)


def streamed(told: Any) -> int:
    return sum(row.streamed for part in told.parts if part.title == "transformer" for row in part.rows)


def said_of(told: Any, words: str) -> list[str]:
    return [note for note in told.notes if words in note]


@pytest.mark.fifth
def test_a_plan_that_streams_names_the_types_that_would_not_and_does_so_at_once(folder: Path) -> None:
    told = account(folder, backend="diffusion=cuda0")
    assert streamed(told) > 0
    started = time.perf_counter()
    (line,) = told.types
    assert time.perf_counter() - started < 1
    assert line in told.remarks()
    assert line.startswith("transformer would not be streamed in a packed type (Q8_0: ")
    assert "Q4_K: " in line
    assert line.endswith("--quant transformer=q8_0")

    told = account(folder, "transformer=q8_0", backend="diffusion=cuda0")
    assert streamed(told) == 0
    assert not told.types
    assert said_of(told, "transformer is packed when it is loaded first")


@pytest.mark.slow
def test_a_plan_that_streams_nothing_says_nothing_of_types(folder: Path) -> None:
    told = account(folder, rig="cuda0=8GiB,cpu=8GiB")
    assert not told.types


@pytest.mark.slow
def test_a_plan_of_types_from_configs_alone_is_that_from_files(tmp_path: Path) -> None:
    place = Path(shutil.copytree(demo.folder(), tmp_path / "model"))
    quant = {"transformer": "q8_0", "te": "f8"}
    rig = "cuda0=1GiB,cpu=8GiB"
    with_files = account(place, quant, rig).document()  # type: ignore[arg-type]
    for name in ("transformer", "text_encoder", "text_encoder_2"):
        next((place / name).glob("*.safetensors")).unlink()
    without = account(place, quant, rig).document()  # type: ignore[arg-type]
    assert without["peak_bytes"] == with_files["peak_bytes"]
    assert without["components"].keys() == with_files["components"].keys()
    assert not (tmp_path / "cache" / "weights").exists()


@pytest.mark.slow
def test_the_bytes_of_8_bit_floats_are_planned_as_one_a_number(folder: Path) -> None:
    rig = "cuda0=8GiB,cpu=8GiB"
    whole, small = account(folder, rig=rig), account(folder, "transformer=f8", rig=rig)
    sizes = [
        sum(row.weights for part in told.parts if part.title == "transformer" for row in part.rows)
        for told in (whole, small)
    ]
    assert 1.5 < sizes[0] / sizes[1] < 2
    assert all(
        one.quant in ("", FLOAT8)
        for part in small.parts
        if part.title == "transformer"
        for one in part.call.program.weights.values()
    )

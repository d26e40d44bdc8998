"""Planning from the configs of components, where there are no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.errors import DoesNotFitError, WeightError
from dovetail.compiler.units import format_bytes
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

REQUEST = {"backend": "diffusion=cuda0&cuda1,te=cuda1,vae=cuda0", "rig": "cuda0=1GiB,cuda1=1GiB,cpu=8GiB"}


def configs(name: str, folder: Path) -> dict[str, Any]:
    """Saves a tiny pipeline without its weights; returns its call."""
    pipe, call = tiny_pipelines.PIPELINES[name]()
    pipe.save_pretrained(folder)
    for file in (*folder.glob("*/*.safetensors"), *folder.glob("*/*.bin")):
        file.unlink()
    return call


@pytest.mark.parametrize("params_backend", [None, pytest.param("*=disk", marks=pytest.mark.slow)])
@pytest.mark.slow
@pytest.mark.parametrize("name", tiny_pipelines.PIPELINES)
def test_a_plan_needs_no_weights(name: str, params_backend: str | None, tmp_path: Path) -> None:
    call = configs(name, tmp_path)
    pipe, origins = open_pipeline(tmp_path, dtype=torch.bfloat16, needs_files=False)
    dry = DryPipeline(pipe, {**REQUEST, "params_backend": params_backend}, origins=origins)
    assert dry(**call) is not None
    assert any(name.startswith("vae") for name in dry.plans())


@pytest.mark.fifth
def test_what_lacks_its_files_is_said_with_its_bytes(tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.flux()
    pipe.save_pretrained(tmp_path)
    next((tmp_path / "transformer").glob("*.safetensors")).unlink()
    nbytes = sum(weight.nbytes for weight in pipe.transformer.parameters())
    opened, origins = open_pipeline(tmp_path, dtype=torch.float32, needs_files=False)
    dry = DryPipeline(opened, REQUEST, origins=origins)
    said = [one for one in dry.account(dry(**call)).notes if "weight files" in one]
    assert said == [
        f"weight files of transformer are not here: {format_bytes(nbytes)} are counted as if they lay on disk"
    ]


SMALL = [
    "cuda0=420KiB,cpu=500KiB",
    "cuda0=420KiB,cpu=300KiB",
    "cuda0=500KiB,cuda1=420KiB,cpu=250KiB",
    "cuda0=300KiB,cpu=200KiB",
]
"""Rigs on which a tiny pipeline has to stream, from disk too, and one that is too small."""


@pytest.mark.fifth
@pytest.mark.parametrize("requests", [[REQUEST], pytest.param([{"rig": rig} for rig in SMALL], marks=pytest.mark.slow)])
def test_a_plan_without_weights_is_that_with_weights(requests: list[dict[str, str]], tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.flux()
    pipe.save_pretrained(tmp_path)
    with_weights = [planned(tmp_path, one, call) for one in requests]
    for file in tmp_path.glob("*/*.safetensors"):
        file.unlink()
    assert [planned(tmp_path, one, call) for one in requests] == with_weights


def planned(folder: Path, request: dict[str, str], call: dict[str, Any]) -> object:
    """The programs that a call is planned with, or the refusal."""
    opened, origins = open_pipeline(folder, dtype=torch.float32, needs_files=False)
    dry = DryPipeline(opened, request, origins=origins)
    try:
        dry(**call)
    except DoesNotFitError as error:
        return str(error)
    return {name: str(plan) for name, plan in dry.plans().items()}


def test_a_picture_needs_weights(tmp_path: Path) -> None:
    configs("flux", tmp_path)
    with pytest.raises(WeightError, match="has no weights"):
        open_pipeline(tmp_path, dtype=torch.bfloat16)


@pytest.mark.slow
def test_the_command_line_says_in_which_type_it_plans(tmp_path: Path) -> None:
    configs("flux", tmp_path)
    plan = "compile", str(tmp_path), "--size", "16", "--json", "--rig", "cuda0=1GiB,cuda1=1GiB"
    stated, wide = (CliRunner().invoke(app, [*plan, *dtype]) for dtype in ((), ("--dtype", "float32")))
    assert (stated.exit_code, wide.exit_code) == (0, 0), stated.stderr
    assert "bfloat16" in stated.stderr
    assert [line for line in wide.stderr.splitlines() if not line.endswith(" s so far")] == []  # progress, if slow
    counted = [json.loads(one.stdout)["transformer"]["weight_bytes"]["cuda0"] for one in (stated, wide)]
    assert counted[1] == 2 * counted[0]

"""generate on the command line: what it says at the end, and how it goes on from latents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.output.run import _keep
from dovetail.components.component import Component
from dovetail.recovery.latents import Latents, save_latents

pytestmark = pytest.mark.usefixtures("clean_sims")

SMALL = ("--steps", "2", "--backend", "diffusion=sim0&sim1,te=sim1,vae=sim0")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["generate", *words])


@pytest.mark.slow
def test_a_decode_that_fails_leaves_latents_from_which_the_same_picture_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, rest = tmp_path / "whole.png", tmp_path / "rest.png"
    painted = run("a red circle", *SMALL, "--seed", "3", "-o", str(whole), "--json")
    assert painted.exit_code == 0, painted.stderr
    told = json.loads(painted.stdout)
    assert {"planning", "reading", "conditioning", "sampling", "decoding"} <= told["phases"].keys()
    assert {"sim0", "sim1"} <= told["peaks"].keys()
    original = Component.run

    def fails(component: Component, call: object, *rest: object) -> object:
        if component.is_decoding:
            raise RuntimeError("the decoder broke")
        return original(component, call, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Component, "run", fails)
    broken = run("a red circle", *SMALL, "--seed", "3", "-o", str(rest))
    monkeypatch.undo()
    latents = tmp_path / "rest.latents.safetensors"
    assert broken.exit_code == 1
    assert f"generate --latents {latents}" in broken.stderr.replace("\n", "")
    went_on = run("--latents", str(latents), *SMALL[2:], "-o", str(rest))
    assert went_on.exit_code == 0, went_on.stderr
    assert rest.read_bytes() == whole.read_bytes()
    assert "; peak: sim0 " in went_on.stderr


def test_without_a_prompt_nothing_is_painted() -> None:
    assert run().exit_code == 2


@pytest.mark.slow
def test_a_dry_run_prints_what_would_run_where_and_paints_nothing(tmp_path: Path) -> None:
    plan = ("a red circle", "--dry-run", "-o", str(tmp_path / "out.png"), "--rig", "cuda0=1GiB,cuda1=1GiB")
    told = run(*plan, "--backend", "diffusion=cuda0&cuda1,te=cuda1,vae=cuda0")
    assert told.exit_code == 0, told.stderr
    assert "transformer" in told.stdout
    assert "fullest at" in told.stdout
    data = json.loads(run(*plan, "--backend", "cuda0", "--json").stdout)
    assert data["devices"]["cuda0"]["peak"] > 0
    assert {one["phase"] for one in data["components"].values()} == {"conditioning", "sampling", "decoding"}
    assert not (tmp_path / "out.png").exists()


def test_latents_of_another_pipeline_are_refused_by_its_name(tmp_path: Path) -> None:
    saved = Latents({"vae": torch.zeros(1, 4, 8, 8)}, "StableDiffusionPipeline", {"prompt": "x"})
    file = save_latents(tmp_path / "x.latents.safetensors", saved)
    told = run("--latents", str(file), "-o", str(tmp_path / "out.png"))
    assert told.exit_code == 2
    assert "is of a StableDiffusionPipeline, not of FluxPipeline: name its --model" in told.stderr


def test_what_goes_on_from_latents_names_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _keep(Latents({"vae": torch.zeros(1)}, "FluxPipeline", {}), tmp_path / "a.png", ["--model", "a folder"])
    assert "a.latents.safetensors --model 'a folder' goes on there" in capsys.readouterr().err


def test_latents_that_cannot_be_written_do_not_hide_why_decoding_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keep(Latents({"vae": torch.zeros(1)}, "FluxPipeline", {}), tmp_path / "gone" / "a.png", [])
    assert "cannot be kept beside" in capsys.readouterr().err


def test_latents_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert "there are no latents" in run("--latents", str(tmp_path / "x.latents.safetensors")).stderr

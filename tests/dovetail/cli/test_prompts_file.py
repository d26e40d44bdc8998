from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from testbed.processes import children_of, ends

SMALL = ["--steps", "1", "--size", "32"]


def generate(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["generate", "-o", str(folder / "out.png"), *SMALL, *words])


@pytest.mark.fifth
def test_a_list_is_painted_as_its_prompts_are_one_by_one(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a red circle", "seed": 3}\n{"prompt": 1}\n')
    result = generate(tmp_path, "--prompts-file", str(prompts))
    assert result.exit_code == 1, result.output
    assert "1 picture in" in result.output
    assert "line 2: prompt has to be a text, and is a number" in result.output
    assert result.stdout.split() == [str(tmp_path / "out-001.png")]
    assert generate(tmp_path, "a red circle", "--seed", "3").exit_code == 0
    assert (tmp_path / "out.png").read_bytes() == (tmp_path / "out-001.png").read_bytes()
    prompts.write_text(prompts.read_text().partition("\n")[0])
    again = generate(tmp_path, "--prompts-file", str(prompts), "--json")
    assert again.exit_code == 0, again.output
    assert (json.loads(again.stdout)["before"], json.loads(again.stdout)["painted"]) == (1, 0)
    other = generate(tmp_path, "--prompts-file", str(prompts), "--scheduler", "heun")
    assert other.exit_code == 2
    assert "--scheduler was not given and is heun" in other.output
    cached = generate(tmp_path, "--prompts-file", str(prompts), "--cache", "first_block:0.5", "--vae-tiling", "on")
    assert cached.exit_code == 2
    assert "--cache was not given and is first_block:0.5; --vae-tiling was not given and is on" in cached.output
    moved = generate(
        tmp_path, "--prompts-file", str(prompts), "--backend", "sim0&sim1", "--vae-tiling", "auto", "--chunk", "off"
    )
    assert moved.exit_code == 0, moved.output


@pytest.mark.parametrize(("words", "why"), [
    (["a cat"], "goes without PROMPT: write it in the file"),
    (["--num-images", "2"], "goes without --num-images: write the prompt on so many lines"),
    (["--dry-run"], "goes without --dry-run: dovetail plan says"),
    (["--frames", "9"], "goes without --frames"),
    (["--replicas", "0"], "--replicas 0 is no number of processes: give 1 to 64, or auto"),
    (["--replicas", "many"], "--replicas many is no number"),
    (["--lora", "none"], "no LoRA is called 'none'"),
    (["--lora-model-dir", "l\udcff"], r"--lora-model-dir 'l\udcff' is no text in UTF-8"),
    (["-o", "x\udcff.png"], r"--output 'x\udcff.png' is no text in UTF-8"),
    (["--replicas", "3", "--backend", "sim0+sim1"], "3 replicas need a device each, and there are 2"),
    (["--replicas", "auto", "--backend", "te=sim0,diffusion=sim1"], "--replicas auto finds the devices of each copy"),
])  # fmt: skip
def test_options_that_do_not_go_with_a_list_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\n")
    result = generate(tmp_path, "--prompts-file", str(prompts), *words)
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert not list(tmp_path.glob("*.png"))


def test_replicas_are_for_lists(tmp_path: Path) -> None:
    result = generate(tmp_path, "a cat", "--replicas", "2")
    assert result.exit_code == 2
    assert "--replicas shares a list of prompts" in " ".join(result.output.split())


def started(folder: Path, prompts: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dovetail", "generate", "--prompts-file", str(prompts), "--json", *SMALL]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [*command, "-o", str(folder / "out.png"), *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_a_list_over_replicas_that_is_killed_and_gone_on_with_has_the_pictures_of_one_process(tmp_path: Path) -> None:
    prompts, many, one = tmp_path / "prompts.txt", tmp_path / "many", tmp_path / "one"
    prompts.write_text("a red circle\na blue square\n" * 7 + "a <lora:blue:0.5> square\na cat\n")
    many.mkdir()
    one.mkdir()
    words = ["--replicas", "2", "--backend", "sim0+sim1"]
    parent = started(many, prompts, *words)
    assert parent.stderr is not None
    done, children = 0, []
    for line in parent.stderr:
        done += line.startswith('{"event": "line"')
        if done == 3 and not children:
            children = children_of(parent.pid)
            assert len(children) == 2
            os.kill(children[0], signal.SIGKILL)
        if done == 8:
            parent.kill()
            break
    parent.wait()
    assert all(map(ends, children))
    again = started(many, prompts, *words)
    out, errors = again.communicate()
    assert again.returncode == 0, errors
    assert json.loads(out)["before"] >= 7
    started(one, prompts).communicate()
    pictures = {path.name: path.read_bytes() for path in many.glob("*.png")}
    assert pictures == {path.name: path.read_bytes() for path in one.glob("*.png")}
    assert len(pictures) == 16


@pytest.mark.slow
def test_as_many_replicas_as_devices_hold_are_made(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle\n")
    result = started(tmp_path, prompts, "--replicas", "auto", "--backend", "sim0+sim1")
    out, errors = result.communicate()
    assert result.returncode == 0, errors
    assert json.loads(out)["replicas"] == ["replica 1 on sim0", "replica 2 on sim1"]

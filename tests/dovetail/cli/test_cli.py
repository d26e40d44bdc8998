"""The command line, as somebody would use it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from dovetail import demo
from dovetail.cli.app import app
from dovetail.demo.check import read
from scripts import split_figure
from tests.cases import slow_but

README = Path(__file__).resolve().parents[3] / "README.md"
SPLIT = "diffusion=sim0&sim1,te=sim1,vae=sim0"
INTERRUPT = ("SIGINT", "interrupted", 130)
COMPONENTS = ["text_encoder", "text_encoder_2", "transformer", "vae.decode"]


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def data(*words: str) -> Any:
    return json.loads(done(*words, "--json"))


def shell(*words: str, **more: Any) -> "subprocess.Popen[bytes]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": heed_interrupts}
    return subprocess.Popen([sys.executable, "-m", "dovetail", *words], **{**pipes, **more})


def heed_interrupts() -> None:
    """What runs in the background inherits deaf ears."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all") / "plans"
    done("compile", "--backend", SPLIT, "-o", str(folder))
    return folder


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["show", "-h"], []])
def test_help_imports_neither_torch_nor_diffusers(words: list[str]) -> None:
    assert imported(words) & {"torch", "diffusers", "transformers", "numpy", "networkx"} == set()


@pytest.mark.fifth
@pytest.mark.parametrize("words", [["devices"], ["--list-devices"], ["env"], ["passes"], ["cache"]])
def test_answers_about_the_machine_do_not_import_diffusers(words: list[str]) -> None:
    assert imported(words) & {"diffusers", "transformers", "accelerate"} == set()


def imported(words: list[str]) -> set[str]:
    """The modules that a command line has imported when it is done."""
    code = (
        f"import sys; sys.argv = ['dovetail', *{words}]\n"
        "from dovetail.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize("loaded", [True, False])
def test_nothing_is_reported_after_the_end_of_a_command_that_loaded_triton(loaded: bool) -> None:
    code = (
        "import ctypes, sys, types\n"
        "libc = ctypes.CDLL(None)\n"
        "ctypes.pythonapi.Py_AtExit(libc.malloc_stats)\n"  # writes to stderr
        f"if {loaded}: sys.modules['triton._C.libtriton'] = types.ModuleType('libtriton')\n"
        "sys.argv = ['dovetail', '--version']\n"
        "from dovetail.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("dovetail ")
    assert ("system bytes" in done.stderr) is not loaded


def test_a_process_ends_with_the_code_of_its_command_once_all_is_written() -> None:
    for words, code in (["--version"], 0), (["passes", "--no-such"], 2):
        ended = ended_after(f"sys.argv = ['dovetail', *{words}]; main()")
        assert ended.returncode == code
        assert ended.stdout.startswith("dovetail " if code == 0 else "noted")
        assert ended.stdout.endswith("noted\n")
        assert ("no such option" in ended.stderr.lower()) is (code == 2)
        assert "taken apart" not in ended.stderr


def test_a_process_that_fails_behind_its_command_ends_as_python_ends_it() -> None:
    ended = ended_after("1 / 0")
    assert ended.returncode == 1
    assert ended.stdout == "noted\n"
    assert "ZeroDivisionError" in ended.stderr
    assert "taken apart" in ended.stderr


def test_what_is_to_be_called_at_the_end_is_called_though_it_was_registered_before_the_command() -> None:
    """As profilers do, and as what starts Python may."""
    ended = ended_after("sys.argv = ['dovetail', '--version']; main()", "atexit.register(print, 'registered before')")
    assert ended.returncode == 0
    assert ended.stdout.endswith("noted\nregistered before\n")


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_that_wait_give_way_soon_unless_it_is_said_otherwise(given: dict[str, str], spins: str | None) -> None:
    code = "import os; from dovetail.cli import main; import atexit; " + (
        "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT'))); main()"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", f"import sys; sys.argv = ['dovetail', '--version']; {code}"]
    done = subprocess.run(command, env=environment | given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(spins)


def ended_after(line: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """A process whose command is a line; a function of atexit prints "noted", and what is left tells when it goes."""
    begin = (
        "import atexit, os, sys\n"
        "from dovetail.cli import main, run\n"
        "class Left:\n"
        "    def __init__(self): self.write = os.write\n"
        "    def __del__(self): self.write(2, b'taken apart')\n"
        "left = Left()\n"
        "def command():\n"
        "    atexit.register(print, 'noted')\n"
        f"    {line}\n"
        "run.__globals__['main'] = command\n"
        f"{before}\n"
        "run()\n"
    )
    return subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, check=False)


def test_devices_are_listed_with_their_memory() -> None:
    assert done("devices", "--rig", "cuda0=24GiB,cuda1=10GiB/16GiB").split() == (
        "device what it is free total cuda0 cuda 24.0 GiB 24.0 GiB cuda1 cuda 10.0 GiB 16.0 GiB".split()
    )
    assert done("--list-devices").splitlines()[0] == done("devices").splitlines()[0]


def test_devices_as_json_count_bytes() -> None:
    (found,) = data("devices", "--rig", "sim3=1GiB")["devices"]
    assert found["name"] == "sim3"
    assert found["total_bytes"] == 2**30


def test_env_tells_versions_and_devices() -> None:
    told = data("env")
    assert told["packages"]["torch"]
    assert told["devices"][-1]["name"] == "cpu"
    assert "torch" in done("env")


@pytest.mark.fifth
def test_passes_are_listed_in_a_text_that_passes_takes() -> None:
    usual = data("passes")["usual"]
    assert usual.startswith("simplify,quantize,blocks,")
    assert f'--passes "{usual}"' in done("passes")
    plans = data("compile", "--component", "vae", "--backend", "sim0&sim1", "--passes", usual)
    assert plans["vae.decode"]["segments"] > 1


@pytest.mark.slow
def test_generate_paints_the_same_picture_on_one_device_and_on_two(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    assert done("generate", "a red circle", "--steps", "2", "--size", "64", "-o", str(one)) == f"{one}\n"
    done("generate", "a red circle", "--steps", "2", "--size", "64", "-o", str(two), "--backend", SPLIT)
    assert Image.open(one).size == (64, 64)
    assert Image.open(one).tobytes() == Image.open(two).tobytes()


@pytest.mark.slow
def test_generate_tells_as_json_what_it_did(tmp_path: Path) -> None:
    out = tmp_path / "out.webp"
    options = ["--steps", "1", "--height", "32", "--width", "64", "--guidance", "2", "--negative-prompt", "blue"]
    told = data("generate", "a red circle", *options, "--seed", "7", "--dtype", "bfloat16", "-o", str(out))
    assert told["files"] == [str(out)]
    assert told["seed"] == 7
    assert told["call"]["true_cfg_scale"] == 2.0
    assert told["call"]["negative_prompt"] == "blue"
    assert Image.open(out).size == (64, 32)


@pytest.mark.slow
def test_another_seed_paints_another_picture(tmp_path: Path) -> None:
    for seed in "1", "2":
        done(
            "generate",
            "a red circle",
            "--steps",
            "1",
            "--size",
            "64",
            "--seed",
            seed,
            "-o",
            str(tmp_path / f"{seed}.png"),
        )
    assert Image.open(tmp_path / "1.png").tobytes() != Image.open(tmp_path / "2.png").tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("short", ["BFloat16", "bf16"])
def test_a_dtype_may_be_named_as_other_programs_do(short: str) -> None:
    typed = ["plan", "--rig", "cuda0=1GiB", "--size", "64", "--steps", "1", "--dtype"]
    assert done(*typed, short).splitlines()[1:5] == done(*typed, "bfloat16").splitlines()[1:5]


@pytest.mark.slow
def test_what_a_device_cannot_hold_exits_with_3_and_leaves_no_file(tmp_path: Path) -> None:
    rig = ["--backend", "sim0", "--rig", "sim0=4MiB"]
    result = run("generate", "x", "--steps", "1", "--size", "512", "-o", str(tmp_path / "out.png"), *rig)
    assert result.exit_code == 3, result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_old_flags_stand_before_backend() -> None:
    found = data("compile", "--backend", "sim0,vae=sim1", "--clip-on-cpu", "--vae-on-cpu", "--control-net-cpu")
    assert [found[name]["devices"] for name in COMPONENTS] == [["cpu"], ["cpu"], ["sim0"], ["sim1"]]
    assert "--clip-on-cpu" not in done("compile", "--help")


@pytest.mark.slow
def test_the_old_flag_for_offloading_stands_before_params_backend() -> None:
    found = data("compile", "--backend", "sim0", "--offload-to-cpu", "--mmap", "--params-backend", "te=disk,vae=sim0")
    assert [found[name]["weights_rest"] for name in COMPONENTS] == ["disk", "disk", "cpu", None]


@pytest.mark.slow
def test_a_plan_keeps_where_weights_rest(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done("compile", "--component", "transformer", "--backend", "sim0&sim1", "--params-backend", "cpu", "-o", str(plan))
    assert " from cpu" in done("compile", str(plan))
    assert '"rests cpu"' in plan.read_text()


@pytest.mark.slow
def test_compile_writes_a_plan_for_each_call_of_a_component(plans: Path) -> None:
    assert sorted(plans.glob("*.json")) == [plans / f"{name}.json" for name in COMPONENTS]
    assert not [path for path in plans.iterdir() if path.name.startswith(".")]


@pytest.mark.fifth
def test_compile_names_the_files_of_plans_whole(tmp_path: Path) -> None:
    folder = tmp_path / ("a_long_name_of_a_folder_" * 4)
    lines = done("compile", "--backend", "sim0", "-o", str(folder)).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [str(folder / f"{name}.json") for name in COMPONENTS]


@pytest.mark.slow
def test_compile_plans_for_a_machine_that_is_not_here(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    options = ["--component", "transformer", "--backend", "cuda0&cuda1", "--rig", "cuda0=24GiB,cuda1=8GiB"]
    found = data("compile", *options, "-o", str(plan))
    assert found["transformer"]["devices"] == ["cuda0", "cuda1"]
    assert found["transformer"]["plan"] == str(plan)
    assert "@cuda1" in done("show", str(plan), "--full")


@pytest.mark.slow
def test_shares_decide_who_gets_how_much() -> None:
    options = ["compile", "--component", "transformer", "--backend", "sim0&sim1"]
    few = data(*options, "-ts", "1,3")["transformer"]["weight_bytes"]
    many = data(*options, "--tensor-split", "diffusion=3:1")["transformer"]["weight_bytes"]
    assert few["sim0"] < many["sim0"]


@pytest.mark.slow
def test_several_plans_do_not_go_into_one_file(tmp_path: Path) -> None:
    result = run("compile", "-o", str(tmp_path / "plan.json"))
    assert result.exit_code == 2
    assert "name a folder, or one --component" in result.stderr


@pytest.mark.fifth
def test_show_prints_the_full_text_form_when_asked(plans: Path) -> None:
    shown = done("show", str(plans / "transformer.json"), "--as", "text", "--full")
    assert shown.startswith('program "FluxTransformer2DModel"')
    assert "@sim1 #1" in shown


@pytest.mark.fifth
def test_show_draws_devices_as_boxes_and_bytes_on_arrows() -> None:
    drawn = done("show", "--backend", SPLIT, "--format", "mermaid")
    assert drawn.startswith("flowchart LR\n")
    assert drawn.count("subgraph") == 2
    assert 'transformer_0 -- "' in drawn
    assert "transformer_2 -.-> vae__decode_0" in drawn


def test_show_draws_the_same_for_graphviz(plans: Path) -> None:
    drawn = done("show", str(plans / "transformer.json"), "-f", "dot")
    assert drawn.startswith("digraph placement {")
    assert drawn.count("subgraph") == 2
    assert drawn.rstrip().endswith("}")


def test_show_as_json_has_nodes_segments_crossings_and_schedule(plans: Path) -> None:
    (shown,) = data("show", str(plans / "transformer.json"))
    placed = {node["name"]: node for node in shown["nodes"]}
    for segment in shown["segments"]:
        assert {placed[name]["device"] for name in segment["nodes"]} == {segment["device"]}
    assert all(crossing["bytes"] > 0 and crossing["source"] != crossing["target"] for crossing in shown["crossings"])
    assert shown["schedule"][-1].startswith("output")
    assert sum(device["weight_bytes"] for device in shown["devices"]) > 0


@pytest.mark.fifth
def test_verify_accepts_what_compile_wrote(plans: Path) -> None:
    for plan in plans.glob("*.json"):
        assert "kept" in done("verify", str(plan))


@pytest.mark.slow
def test_verify_rehearses_deeply_for_devices_that_are_not_here(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done("compile", "--component", "vae", "--backend", "cuda1&xpu0", "--rig", "cuda1=8GiB,xpu0=8GiB", "-o", str(plan))
    assert "all yield what the plans say" in done("verify", str(plan), "--deep")


@pytest.mark.slow
def test_the_folder_of_a_component_stands_for_it_alone() -> None:
    assert list(data("compile", str(demo.folder() / "vae"), "--backend", "sim0")) == ["vae.decode"]


def test_verify_names_its_rules(plans: Path) -> None:
    found = data("verify", str(plans / "transformer.json"))
    assert "pin" in found["rules"]
    assert found["kept_by"] == ["transformer"]


@pytest.mark.slow
def test_the_first_command_of_the_readme_paints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done(*first_command())
    seen = read(np.asarray(Image.open("out.png")))
    assert seen is not None
    assert "a red circle above a blue square" in seen.captions()


def test_the_readme_shows_the_placement_of_its_first_command() -> None:
    words = first_command()
    assert (words[1], words[words.index("--backend") + 1]) == (split_figure.PROMPTS[0], split_figure.BACKEND)
    assert f'src="{split_figure.FIGURE.relative_to(README.parent)}"' in README.read_text()


def first_command() -> list[str]:
    """What stands after `dovetail` in the first fenced block of the README."""
    block = README.read_text().partition("```sh\n")[2].partition("\n```")[0]
    return shlex.split(block.partition("bin/dovetail ")[2])


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run("devices", "--colour").exit_code == 2
    assert run("paint").exit_code == 2


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    result = run("compile")
    assert result.exit_code == 1
    assert "diffusers is not installed: pip install" in result.stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code() -> None:
    for words in (["--debug", "devices", "--rig", "x"], ["devices", "--rig", "x", "--debug"]):
        result = run(*words)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(plans: Path) -> None:
    process = shell("show", str(plans / "transformer.json"))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("sent", "word", "code"),
    slow_but({INTERRUPT}, [INTERRUPT, ("SIGTERM", "terminated", 143), ("SIGHUP", "hung up", 129)]),
)
def test_a_signal_ends_a_command_quietly_and_leaves_no_file(tmp_path: Path, sent: str, word: str, code: int) -> None:
    process = shell("generate", "x", "--steps", "5000", "-o", str(tmp_path / "out.png"), "--debug")
    assert process.stderr is not None
    while b"compiled transformer" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.Signals[sent])
    assert process.communicate()[1].splitlines()[-1] == word.encode()
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fifth
def test_a_folder_of_plans_is_shown_and_verified_whole(plans: Path) -> None:
    told = done("verify", str(plans))
    assert [line.split()[0] for line in told.splitlines()[1:]] == COMPONENTS
    assert len(data("show", str(plans))) == len(COMPONENTS)


def test_the_module_and_the_script_are_the_same_command(tmp_path: Path) -> None:
    process = shell("--version", cwd=Path(__file__).resolve().parents[3], env={**os.environ, "COLUMNS": "80"})
    assert process.communicate()[0].startswith(b"dovetail ")


def test_the_documentation_names_every_command_and_option() -> None:
    page = (README.parent / "docs" / "command-line.md").read_text()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"`dovetail {name}" in page
        for option in command.params:
            assert option.hidden or option.opts[0] in page or option.param_type_name == "argument", option.opts

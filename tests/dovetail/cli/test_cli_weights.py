"""Files of weights on the command line: `--weights NAME=FILE`, and stable-diffusion.cpp's spellings."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dovetail import demo
from dovetail.cli.options.subject import Pipeline, find_pipeline
from dovetail.cli.options.weights import WeightFiles
from testbed import published

from .test_cli import data, done, run

SIZE = ("--width", "16", "--height", "16", "--backend", "cpu")


@pytest.fixture(scope="module")
def published_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo without its transformer's weights, and a file of these in FLUX's published layout."""
    folder = tmp_path_factory.mktemp("demo") / "pipeline"
    shutil.copytree(demo.folder(), folder)
    (weights,) = (folder / "transformer").glob("*.safetensors")
    state = load_file(weights)
    weights.unlink()
    save_file(published.flux(state), folder.parent / "model.safetensors")
    return folder, folder.parent / "model.safetensors"


@pytest.mark.slow
def test_a_published_file_takes_the_place_of_a_components_own_weights(published_demo: tuple[Path, Path]) -> None:
    folder, file = published_demo
    (facts,) = data("compile", str(folder), "--component", "transformer", *SIZE, "--weights", f"dit={file}").values()
    (own,) = data("compile", str(demo.folder()), "--component", "transformer", *SIZE).values()
    assert facts["weight_bytes"] == own["weight_bytes"]


@pytest.mark.slow
def test_a_picture_is_the_same_from_a_published_file(published_demo: tuple[Path, Path], tmp_path: Path) -> None:
    folder, file = published_demo
    words = ("generate", "a red circle", "--steps", "1", "--width", "16", "--height", "16", "--backend", "sim0")
    done(*words, "--model", str(demo.folder()), "-o", str(tmp_path / "own.png"))
    done(*words, "--model", str(folder), "--weights", f"transformer={file}", "-o", str(tmp_path / "given.png"))
    assert (tmp_path / "own.png").read_bytes() == (tmp_path / "given.png").read_bytes()


@pytest.mark.slow
def test_a_picture_is_painted_from_the_files_of_a_variant(tmp_path: Path) -> None:
    folder, plain = tmp_path / "both", tmp_path / "plain"
    for one in (folder, plain):
        shutil.copytree(demo.folder(), one)
    (weights,) = (folder / "transformer").glob("*.safetensors")
    state = {name: tensor.half() * 1.1 for name, tensor in load_file(weights).items()}
    save_file(state, weights.with_suffix(".fp16.safetensors"))
    save_file(state, plain / "transformer" / weights.name)
    words = ("generate", "a red circle", "--steps", "1", "--width", "16", "--height", "16", "--backend", "cpu")
    done(*words, "--model", str(folder), "--variant", "fp16", "-o", str(tmp_path / "variant.png"))
    done(*words, "--model", str(plain), "-o", str(tmp_path / "plain.png"))
    assert (tmp_path / "variant.png").read_bytes() == (tmp_path / "plain.png").read_bytes()
    result = run(*words, "--model", str(folder), "--variant", "fp8", "-o", str(tmp_path / "none.png"))
    assert result.exit_code == 2
    assert "is of variant 'fp8'" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weights", "model.gguf"), "--weights model.gguf: write NAME=FILE, such as transformer=model.gguf"),
        (("--weights", "controlnet=a.gguf"), "weights: this pipeline has no 'controlnet': name one of its components"),
        (("--clip_g", "a.gguf"), "--clip_g: "),
        (("--weights", "vae=nowhere.gguf"), "nowhere.gguf is missing"),
        (("--weights", "dit=nowhere.gguf"), "nowhere.gguf is missing: name a safetensors or GGUF file that is there"),
    ],
)
def test_a_wrong_file_or_name_is_one_clear_error(words: tuple[str, str], message: str) -> None:
    result = run("compile", *SIZE, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_plan_takes_no_weights(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    result = run("show", str(plan), "--weights", "vae=a.gguf")
    assert result.exit_code == 2
    assert "is a plan, which has no weights: leave out --weights" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "words",
    [("--backend", "sim1"), ("--clip-on-cpu",), ("--size", "64"), ("--steps", "3"), ("--config", "folder"),
     ("--revision", "v2"), ("--dtype", "float16")],
)  # fmt: skip
@pytest.mark.parametrize("command", ["show", "explain", "verify", "compile"])
def test_what_a_plan_decides_cannot_be_asked_for_beside_it(
    tmp_path: Path, command: str, words: tuple[str, ...]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    result = run(command, str(plan), *words)
    assert result.exit_code == 2
    assert f"is read as a plan, in which this is decided: leave out {words[0]}" in " ".join(result.stderr.split())


def test_stable_diffusion_cpps_names_mean_the_text_encoders_of_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ltvdbc":
        Path(name).touch()
    pipeline: Pipeline = find_pipeline("")
    files = WeightFiles(clip_l="l", t5xxl="t", vae="v", diffusion_model="d", weights=["a=b", "a=c"])
    assert files.given(pipeline) == {
        "a": ["b", "c"], "diffusion": ["d"], "vae": ["v"], "text_encoder": ["l"], "text_encoder_2": ["t"],
    }  # fmt: skip

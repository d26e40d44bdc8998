"""A single file of weights on the command line: where its configs come from, and what of it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from dovetail.cli.options.source import Source
from dovetail.cli.options.subject import dtype_of, find_pipeline
from dovetail.compiler.errors import UsageError
from testbed import published
from testbed.pipelines import tiny_pipelines

from .test_cli import data, done, run

SMALL = ("--size", "16", "--steps", "2", "--backend", "sim0")


@pytest.fixture(scope="module")
def sd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline, `saved`, its configs alone, `configs`, and its UNet in one file, `unet.safetensors`."""
    folder = tmp_path_factory.mktemp("single")
    pipe, _ = tiny_pipelines.sd()
    pipe.save_pretrained(folder / "saved")
    shutil.copytree(folder / "saved", folder / "configs", ignore=shutil.ignore_patterns("*.safetensors"))
    state = published.unet(pipe.unet.state_dict(), 1)
    weights = {f"model.diffusion_model.{name}": value.contiguous().clone() for name, value in state.items()}
    save_file(weights, folder / "unet.safetensors")
    return folder


@pytest.mark.fifth
def test_a_single_file_is_planned_with_the_configs_that_are_named(sd: Path) -> None:
    planned = data("plan", str(sd / "unet.safetensors"), "--config", str(sd / "configs"), *SMALL)
    assert list(planned["components"]) == ["text_encoder", "unet", "vae"]


@pytest.mark.slow
def test_a_picture_of_a_single_file_is_that_of_its_folder(sd: Path, tmp_path: Path) -> None:
    done("generate", "a cat", "--model", str(sd / "saved"), *SMALL, "-o", str(tmp_path / "folder.png"))
    words = ("generate", "a cat", "--model", str(sd / "unet.safetensors"), "--config", str(sd / "saved"))
    done(*words, *SMALL, "-o", str(tmp_path / "file.png"))
    assert (tmp_path / "file.png").read_bytes() == (tmp_path / "folder.png").read_bytes()


def test_a_file_of_one_component_names_the_command_that_takes_it(sd: Path, tmp_path: Path) -> None:
    file = sd / "unet.safetensors"
    told = run("generate", "x", "-m", str(file), "--config", str(sd / "configs"), *SMALL, "-o", str(tmp_path / "o.png"))
    assert told.exit_code == 1
    assert f"--weights unet={file} --model FOLDER" in told.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("saved", "--config", "configs"), "leave out --config"),
        (("saved", "--revision", "v2"), "leave out --revision v2"),
        (("unet.safetensors", "--config", "configs", "--variant", "fp16"), "leave out --variant fp16"),
        (("none.gguf",), "there is no file none.gguf"),
        (("unet.safetensors",), "--weights transformer=unet.safetensors --model FOLDER"),
        (("old.ckpt",), "is a pickle"),
    ],
)
def test_what_means_nothing_of_a_file_or_a_folder_is_refused(
    sd: Path, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sd)
    Path("old.ckpt").write_bytes(b"")
    told = run("plan", *words)
    assert (told.exit_code, said in told.stderr) == (2, True), told.stderr


def test_painting_with_one_components_folder_says_what_to_name_instead(sd: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(sd)
    told = run("generate", "x", "-m", "saved/unet")
    assert told.exit_code == 2
    assert "--model saved," in told.stderr
    assert "--weights unet=saved/unet" in told.stderr


def test_a_revision_reaches_the_hub(sd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[dict[str, Any]] = []

    def download(_: str, file: str, **options: Any) -> str:
        asked.append(options)
        return str(sd / "saved" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert "unet" in find_pipeline("owner/sd", Source(revision="v2")).components
    assert asked == [{"revision": "v2"}]
    with pytest.raises(UsageError, match="has its own configs"):
        find_pipeline("owner/sd", Source(config="configs"))


def test_a_single_file_is_computed_in_the_type_that_it_has(sd: Path) -> None:
    pipeline = find_pipeline(str(sd / "unet.safetensors"), Source(config=str(sd / "configs")))
    assert str(dtype_of(pipeline)) == "torch.float32"
    assert str(dtype_of(pipeline, "float16")) == "torch.float16"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("unet.safetensors", "--config", "configs", "--revision", "v2"),
            "configs is a folder, which has no revisions",
        ),
        (("empty.safetensors", "--config", "configs"), "empty.safetensors is no pipeline"),
        (("notes.txt",), "notes.txt is no p"),  # pipeline, or plan
        (("old.pt", "--config", "configs"), "old.pt is a pickle"),
        (("a/" * 3000,), "no folder can be called"),
        (("a" * 300,), "no folder can be called"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "show"])
def test_what_is_said_of_a_name_is_true(
    sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, said: str, command: str
) -> None:
    (tmp_path / "empty.safetensors").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "old.pt").touch()
    (tmp_path / "configs").symlink_to(sd / "configs")
    (tmp_path / "unet.safetensors").symlink_to(sd / "unet.safetensors")
    monkeypatch.chdir(tmp_path)
    told = run(command, *words)
    assert told.exit_code == 2
    assert said in " ".join(told.stderr.split())


@pytest.mark.slow
def test_the_line_of_a_component_s_folder_names_the_pipeline_that_can_be_planned(sd: Path) -> None:
    told = done("show", str(sd / "configs" / "vae"), *SMALL)
    assert f"dovetail generate 'a cat' --model {sd / 'configs'} --backend" in told

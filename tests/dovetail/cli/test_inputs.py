"""Pictures to begin with, schedulers, several pictures and films, from the command line."""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import dovetail
from dovetail import demo
from dovetail.cli.app import app
from dovetail.cli.commands.help import TOPICS
from dovetail.cli.options.call import frame_rate
from dovetail.cli.options.inputs import Inputs, read_picture
from dovetail.cli.output.picture import check_suffix, save
from dovetail.cli.output.run import Run
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.conventions.prompts import told_of_cut
from dovetail.conventions.schedulers import exchanged
from dovetail.conventions.tasks import class_for, told_of_models
from dovetail.demo.words import unknown_words
from dovetail.progress.phases import Phases
from testbed.pipelines import tiny_pipelines


def run(*words: Any) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def done(*words: Any) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result


def refused(*words: Any) -> str:
    result = run(*words)
    assert result.exit_code == 2, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "in.png"
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(path)
    return path


@pytest.fixture(scope="module")
def sd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sd")
    pipe, _ = tiny_pipelines.sd()
    pipe.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "kinds", "expected"),
    [
        ("FluxPipeline", {}, "FluxPipeline"),
        ("FluxPipeline", {"image": True}, "FluxImg2ImgPipeline"),
        ("FluxPipeline", {"image": True, "mask": True}, "FluxInpaintPipeline"),
        ("FluxKontextPipeline", {"image": True}, "FluxKontextPipeline"),
        ("WanImageToVideoPipeline", {"image": True}, "WanImageToVideoPipeline"),
        ("StableDiffusionPipeline", {"controlnet": True}, "StableDiffusionControlNetPipeline"),
        (
            "StableDiffusionXLPipeline",
            {"image": True, "mask": True, "controlnet": True},
            "StableDiffusionXLControlNetInpaintPipeline",
        ),
        ("StableDiffusionControlNetPipeline", {"image": True}, "StableDiffusionControlNetImg2ImgPipeline"),
        ("QwenImagePipeline", {"controlnet": True}, "QwenImageControlNetPipeline"),
        ("ChromaPipeline", {"image": True, "mask": True}, "ChromaInpaintPipeline"),
        ("LTX2Pipeline", {"image": True}, "LTX2ImageToVideoPipeline"),
        ("LTXPipeline", {"image": True}, "LTXImageToVideoPipeline"),
        ("WanPipeline", {"image": True}, "WanImageToVideoPipeline"),
    ],
)
def test_the_class_follows_from_what_is_given(name: str, kinds: dict[str, bool], expected: str) -> None:
    assert class_for(name, **kinds).__name__ == expected


def test_a_task_that_diffusers_has_no_class_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no pipeline that takes an image and a mask for the models of SanaPipeline"):
        class_for("SanaPipeline", image=True, mask=True)


def test_a_class_that_needs_models_which_are_not_there_is_refused_by_their_names() -> None:
    with pytest.raises(UsageError, match="needs image_encoder and image_processor, which SkyReelsV2Pipeline has not"):
        class_for("SkyReelsV2Pipeline", image=True)


@pytest.mark.parametrize(
    ("wanted", "name", "error", "words"),
    [
        ("WanImageToVideoPipeline", "WanPipeline", UsageError, "models of WanPipeline .*16.*WanImageToVideoPipeline"),
        ("WanImageToVideoPipeline", "WanImageToVideoPipeline", RuntimeError, "^expected 16"),
        ("FluxImg2ImgPipeline", "FluxPipeline", RuntimeError, "^expected 16"),
    ],
)
def test_models_that_do_not_compute_with_a_picture_are_said_to_be_of_another_pipeline(
    wanted: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words), told_of_models(getattr(diffusers, wanted), name):
        raise RuntimeError("expected 16 channels")


def test_nothing_is_said_of_a_class_that_is_not_diffusers_own() -> None:
    assert class_for("MyPipeline", image=True) is None


@pytest.mark.parametrize(
    ("own", "name", "expected"),
    [
        (diffusers.DDIMScheduler(), "euler_a", "EulerAncestralDiscreteScheduler"),
        (diffusers.DDIMScheduler(), "EulerDiscreteScheduler", "EulerDiscreteScheduler"),
        (diffusers.PNDMScheduler(), "dpm++2m", "DPMSolverMultistepScheduler"),
        (diffusers.EulerDiscreteScheduler(), "Heun", "HeunDiscreteScheduler"),
        (diffusers.FlowMatchEulerDiscreteScheduler(), "lcm", "FlowMatchLCMScheduler"),
        (diffusers.FlowMatchEulerDiscreteScheduler(), "euler", "FlowMatchEulerDiscreteScheduler"),
    ],
)
def test_a_scheduler_is_found_by_the_names_that_people_type(own: Any, name: str, expected: str) -> None:
    found = exchanged(own, name)
    assert type(found).__name__ == expected
    assert found.config.num_train_timesteps == own.config.num_train_timesteps


def test_a_scheduler_of_another_family_is_refused_with_those_that_fit() -> None:
    with pytest.raises(UsageError, match=r"ddim cannot take the place .* what can: lcm"):
        exchanged(diffusers.FlowMatchEulerDiscreteScheduler(), "ddim")


@pytest.mark.fifth
def test_a_picture_begins_where_it_is_told_to_and_is_that_of_diffusers(tmp_path: Path, picture: Path) -> None:
    out = tmp_path / "out.png"
    words = ["a red circle", "-i", picture, "--strength", 0.5, "--steps", 4, "-s", 3]
    done("generate", *words, "--backend", "sim0+sim1", "-o", out)
    pipe = diffusers.FluxImg2ImgPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 4, "strength": 0.5, "image": Image.open(picture)}
    expected = pipe("a red circle", **call, generator=torch.Generator().manual_seed(3)).images[0]
    assert np.abs(np.asarray(Image.open(out)).astype(int) - np.asarray(expected)).max() <= 1


def test_a_file_that_is_named_twice_and_a_seed_that_is_none_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    for option in ("--profile", "--save-latents"):
        assert "is named twice" in refused("generate", "a cat", "-o", file, option, file)
    assert "is no seed" in refused("generate", "a cat", "-o", file, "--seed", 10**20)
    assert "is no seed" in refused("generate", "a cat", "-o", file, "--seed", 2**64 - 1, "--num-images", 2)


def test_a_photograph_is_turned_as_it_says(tmp_path: Path) -> None:
    file, photograph = tmp_path / "in.jpg", Image.new("RGB", (64, 32))
    turned = photograph.getexif()
    turned[0x0112] = 6  # a quarter to the right
    photograph.save(file, exif=turned)
    arguments = Inputs(image=file).arguments(None, {})
    assert (arguments["width"], arguments["height"]) == arguments["image"].size == (32, 64)


def test_a_picture_that_is_too_large_and_a_config_that_is_none_are_refused(
    tmp_path: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UsageError, match=r"cannot read a picture from .*in\.png"):
        Inputs(image=picture).arguments(None, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightError, match=r"cannot read .*config\.json"):
        Inputs(control_net=tmp_path).components(None)


def test_a_config_of_which_no_component_can_be_made_is_named(sd: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sd"
    shutil.copytree(sd, folder)
    config = json.loads((folder / "unet" / "config.json").read_text())
    (folder / "unet" / "config.json").write_text(json.dumps({**config, "cross_attention_dim": "x"}))
    for command in (["generate", "x", "-o", tmp_path / "out.png"], ["explain"]):
        result = run(*command, "--model", folder) if command[0] == "generate" else run(*command, folder)
        assert result.exit_code == WeightError.exit_code
        assert re.search(r"unet.config\.json makes no UNet2DConditionModel \(IndexError", result.stderr)


def test_a_mask_without_a_picture_and_files_that_are_not_there_are_refused(tmp_path: Path, picture: Path) -> None:
    assert "give that picture with --image" in refused("generate", "x", "--mask", picture)
    assert "--image: there is no file" in refused("generate", "x", "--image", tmp_path / "none.png")
    assert "is no ControlNet's folder" in refused("generate", "x", "--control-net", tmp_path)
    (tmp_path / "text.png").write_text("no picture")
    assert "cannot read a picture" in refused("generate", "x", "--image", tmp_path / "text.png")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--frames", 3], "FluxPipeline has no use for --frames"),
        (["--strength", 0.5], "give that picture with --image"),
        (["--control-strength", 1], "give it with --control-image"),
        (["--fps", 8], "FluxPipeline makes no video"),
        (["--scheduler", "blah"], "no scheduler is called blah; what can be taken: euler, lcm"),
        (["--scheduler", "eulr"], "no scheduler is called eulr, did you mean euler? what can be taken: euler, lcm"),
        (["--negative-prompt", "blue", "--cfg-scale", 1], "only with --cfg-scale above 1"),
        (["-p", "another"], "two prompts were given"),
        (["--guidance", "nan"], "--guidance takes a number, and nan is none to compute with"),
        (["--cfg-scale", "inf"], "--cfg-scale takes a number, and inf is none to compute with"),
        (["--rig", ""], "--rig names no device"),
        (["--scheduler", "ddim"], "cannot take the place of FlowMatchEulerDiscreteScheduler"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_painted(
    options: list[Any], why: str, tmp_path: Path
) -> None:
    assert why in refused("generate", "a red circle", *options, "-o", tmp_path / "out.png")
    assert not list(tmp_path.iterdir())


def test_what_a_pipeline_says_of_its_arguments_is_a_usage_error(sd: Path, tmp_path: Path) -> None:
    why = refused("generate", "x", "--model", sd, "--size", 20, "--steps", 1, "-o", tmp_path / "out.png")
    assert why == "error: `height` and `width` have to be divisible by 8 but are 20 and 20.\n"


@pytest.mark.slow
def test_a_picture_takes_the_size_that_is_asked_for_where_the_pipeline_takes_none(
    sd: Path, tmp_path: Path, picture: Path
) -> None:
    out = tmp_path / "out.png"
    done("generate", "x", "-m", sd, "-i", picture, "--size", "32x48", "--strength", 0.9, "--steps", 2, "-o", out)
    assert Image.open(out).size == (32, 48)


def test_a_picture_that_is_taken_in_another_size_than_its_own_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "odd.png"
    Image.new("RGB", (70, 48)).save(file)
    for _ in range(2):
        assert Inputs(image=file).arguments(None, {"prompt": "x", "width": None})["image"].size == (64, 48)
    Inputs(image=file).arguments(None, {"width": 32, "height": 32})
    assert caplog.messages == [
        f"{file} has 70 x 48 pixels and is taken as 64 x 48, multiples of 16, as models take them: --size says another"
    ]


@pytest.mark.slow
def test_a_size_that_a_pipeline_rounds_is_said_where_it_takes_none(sd: Path, tmp_path: Path, picture: Path) -> None:
    words = ["generate", "x", "-m", sd, "-i", picture, "--size", "33x48", "--strength", 0.9, "--steps", 2]
    assert "33 x 48 was asked for and 32 x 48 is painted" in done(*words, "-o", tmp_path / "out.png").stderr


@pytest.mark.slow
def test_the_same_seed_paints_the_same_where_a_scheduler_draws_random_numbers_itself(tmp_path: Path) -> None:
    for name in "a.png", "b.png":
        done("generate", "a red circle", "--scheduler", "lcm", "--steps", 2, "-o", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0, 0.4])
@pytest.mark.parametrize("command", ["plan", "generate"])
def test_a_strength_that_leaves_no_step_says_so_whatever_fails_then(
    sd: Path, tmp_path: Path, picture: Path, command: str, strength: float
) -> None:
    words = ["-i", picture, "--strength", strength, "--steps", 2]
    named = [sd] if command == "plan" else ["x", "-m", sd, "-o", tmp_path / "out.png"]
    why = refused(command, *named, *words).splitlines()[-1]
    assert f"a strength of {strength:g} leaves none of 2 steps to make" in why
    assert not list(tmp_path.iterdir())


@pytest.mark.fifth
def test_a_strength_that_leaves_no_step_is_a_usage_error(tmp_path: Path, picture: Path) -> None:
    words = ["generate", "x", "-i", picture, "--strength", 0, "--steps", 2, "-o", tmp_path / "out.png"]
    assert "after adjusting" in refused(*words).lower()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_several_pictures_are_those_of_the_next_seeds(tmp_path: Path) -> None:
    words = ["generate", "a red circle", "--steps", 1]
    told = done(*words, "-s", 5, "-b", 2, "-o", tmp_path / "a.png")
    assert told.stdout.split() == [str(tmp_path / "a-000.png"), str(tmp_path / "a-001.png")]
    done(*words, "-s", 6, "-o", tmp_path / "b.png")
    assert (tmp_path / "a-001.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a-000.png").read_bytes() != (tmp_path / "b.png").read_bytes()


@pytest.mark.fifth
def test_latents_that_were_saved_become_the_same_picture(tmp_path: Path) -> None:
    latents = tmp_path / "latents.safetensors"
    done("generate", "a red circle", "--steps", 2, "-s", 4, "--save-latents", latents, "-o", tmp_path / "a.png")
    done("generate", "--latents", latents, "-o", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.slow
def test_any_seed_is_told(tmp_path: Path) -> None:
    words = ["generate", "a red circle", "--steps", 1, "--json", "-o", tmp_path / "a.png", "-s"]
    seeds = {json.loads(done(*words, -1).stdout)["seed"] for _ in range(2)}
    assert len(seeds) == 2
    assert min(seeds) >= 0


@pytest.mark.slow
def test_the_last_line_says_which_seed_was_drawn_and_it_paints_the_same(tmp_path: Path) -> None:
    words = ["generate", "a red circle", "--steps", 1, "--size", 64]
    last = done(*words, "-s", -1, "-o", tmp_path / "a.png").stderr.splitlines()[-1]
    done(*words, "-s", last.rpartition("; seed ")[2], "-o", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.slow
def test_progress_is_told_as_events_with_json(tmp_path: Path) -> None:
    told = done("generate", "a red circle", "--steps", 2, "--json", "-o", tmp_path / "a.png").stderr
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    steps = [event["step"] for event in events if event["event"] == "step"]
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert steps == [1, 2]
    assert phases.index("planning") < phases.index("sampling") < phases.index("decoding") < phases.index("writing")


@pytest.mark.slow
def test_a_controlnet_is_added_to_a_pipeline(sd: Path, tmp_path: Path, picture: Path) -> None:
    pipe, _ = tiny_pipelines.sd_controlnet()
    pipe.controlnet.save_pretrained(tmp_path / "net")
    words = ["generate", "x", "--model", sd, "--steps", 2, "--control-net", tmp_path / "net"]
    words += ["--backend", "sim0,controlnet=sim1"]
    assert "give --control-image" in refused(*words)
    for name, strength in ("a.png", 1), ("b.png", 0):
        done(*words, "--control-image", picture, "--control-strength", strength, "-o", tmp_path / name)
    assert Image.open(tmp_path / "a.png").size == (64, 64)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_a_film_is_one_file_with_its_frames(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio")
    pytest.importorskip("imageio_ffmpeg")
    frames = np.stack([np.full((16, 33, 3), shade) for shade in (0.0, 0.5, 1.0)])
    check_suffix(tmp_path / "a.mp4")
    assert save(SimpleNamespace(frames=frames[None]), tmp_path / "a.mp4", 5) == [tmp_path / "a.mp4"]
    with imageio.get_reader(tmp_path / "a.mp4") as film:
        found = [np.asarray(frame) for frame in film]
        assert film.get_meta_data()["fps"] == 5
    assert [frame.shape for frame in found] == [(16, 32, 3)] * 3
    assert np.abs(found[1].astype(int) - 127).max() < 10


def test_a_film_without_its_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'dovetail-diffusion\[video\]'"):
        check_suffix(Path("a.mp4"))


def test_words_that_the_demo_does_not_know_are_told() -> None:
    assert unknown_words("A red circle above a blue square") == []
    assert unknown_words("two red cats, a cat") == ["two", "cats", "cat"]


@pytest.mark.slow
def test_a_prompt_that_is_cut_is_told() -> None:
    pipe = dovetail.compile_pipeline(tiny_pipelines.sd()[0], "cpu")
    most = pipe.tokenizer.model_max_length
    assert told_of_cut(pipe, {"prompt": "a cat"}) == ""
    assert f"the first {most} are read" in told_of_cut(pipe, {"prompt": "a cat " * most})
    pipe.dovetail.undo()


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_shows_commands_that_are_understood(topic: str, tmp_path: Path) -> None:
    import shlex

    from typer.main import get_command

    commands = [line for line in done("help", topic).stdout.splitlines() if line.startswith("  ")]
    assert commands
    for line in commands:
        _, name, *words = shlex.split(line)
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        command.make_context(name, list(words))


def test_a_topic_that_is_not_there_names_those_that_are() -> None:
    assert "did you mean placement?" in refused("help", "placemnt")


@pytest.mark.parametrize(("name", "rate"), [("LTX2Pipeline", 24), ("LTXPipeline", 25), ("WanPipeline", None)])
def test_a_video_is_as_fast_as_its_pipeline_computes_it_for(name: str, rate: float | None) -> None:
    assert frame_rate(getattr(diffusers, name)) == rate


def written(audio: Any, folder: Path, vocoder: dict[str, int]) -> list[Path]:
    """What is written of a video with such a sound."""
    frames = np.stack([np.full((16, 16, 3), shade) for shade in (0.0, 1.0)])
    pipe = SimpleNamespace(vocoder=SimpleNamespace(config=SimpleNamespace(**vocoder)))
    made = SimpleNamespace(frames=frames[None], audio=audio)
    files = Run(pipe, {}, Phases(lambda _: None), folder / "a.gif", [], 24.0, None, False)._write(
        made, folder / "a.gif"
    )
    assert Image.open(folder / "a.gif").info["duration"] == 40
    return files


WAVE = torch.tensor([[0.0, 0.5, -1.0, 2.0], [0.25, 0.0, 0.0, -3.0]])


@pytest.mark.parametrize(
    ("audio", "channels"),
    [
        (WAVE[None].bfloat16(), 2),
        (WAVE[:1][None], 1),
        (WAVE[:1], 1),
        (WAVE[0].numpy(), 1),
        ([np.tile(WAVE.numpy(), 8).T], 2),
    ],
)
def test_sound_is_written_beside_its_video(
    audio: Any, channels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [tmp_path / "a.gif", tmp_path / "a.wav"]
    assert written(audio, tmp_path, {"output_sampling_rate": 24000, "sampling_rate": 16000}) == both
    assert sorted(tmp_path.iterdir()) == both
    said = capsys.readouterr()
    assert said.out.split() == list(map(str, both))
    assert not said.err
    with wave.open(str(both[1])) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (channels, 2, 24000)
        samples = np.frombuffer(file.readframes(4), "<i2").reshape(4, channels)
    assert samples[:, 0].tolist() == [0, 16384, -32767, 32767]
    assert channels == 1 or samples[:, 1].tolist() == [8192, 0, 0, -32767]


@pytest.mark.parametrize(
    ("audio", "vocoder", "why"),
    [
        (np.zeros((1, 2, 8)), {}, "sampling_rate"),
        (np.zeros((1, 20, 30)), {"sampling_rate": 16000}, r"\[20, 30\]"),
    ],
)
def test_sound_that_cannot_be_written_is_said(
    audio: Any, vocoder: dict[str, int], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(audio, tmp_path, vocoder) == [tmp_path / "a.gif"]
    assert re.search(f"warning: the sound is not written: .*{why}", capsys.readouterr().err)


def test_a_video_without_sound_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert written(None, tmp_path, {}) == [tmp_path / "a.gif"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize("parameter", ["image", "mask_image"])
def test_a_picture_of_16_bits_keeps_its_levels(parameter: str) -> None:
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 4096).reshape(64, 64).astype(np.uint16)).save(file, format="png")
    read = np.asarray(read_picture(file, parameter, "x"), float)
    levels = read if parameter == "mask_image" else read[:, :, 0]
    assert np.abs(levels.ravel() - np.linspace(0, 255, 4096)).max() <= 0.51


@pytest.mark.parametrize(("most", "bits"), [(65535, 16), (1023, 10)])
def test_a_grey_file_of_many_levels_keeps_them(most: int, bits: int) -> None:
    levels = np.linspace(0, most, 64).astype(">u2")
    file = io.BytesIO(f"P5 8 8 {most}\n".encode() + levels.tobytes())
    read = np.asarray(read_picture(file, "mask_image", "x"), float)
    assert np.abs(read.ravel() - np.linspace(0, 255, 64)).max() <= 0.51 + 255 / most, bits


@pytest.mark.parametrize(("kind", "levels"), [(np.uint8, 255), (np.uint16, 65535)])
def test_a_tiff_in_which_white_is_zero_is_no_negative(kind: type[np.integer[Any]], levels: int) -> None:
    file = io.BytesIO()
    picture = Image.fromarray(np.linspace(0, levels, 64).reshape(8, 8).astype(kind))
    picture.save(file, format="tiff")
    data = bytearray(file.getvalue())
    entry = struct.pack("<HHI", 262, 3, 1)
    at = data.index(entry) + len(entry)
    assert data[at] == 1
    data[at] = 0
    read = np.asarray(read_picture(io.BytesIO(bytes(data)), "mask_image", "x"), float)
    assert np.abs(read.ravel() - np.linspace(255, 0, 64)).max() <= 1


def _fits() -> bytes:
    """A file of FITS with levels of 16 bits, which may mean anything."""
    cards = ("SIMPLE  = T", "BITPIX  = 16", "NAXIS   = 2", "NAXIS1  = 4", "NAXIS2  = 4", "END")
    return "".join(card.ljust(80) for card in cards).ljust(2880).encode() + bytes(2880)


def _tiff() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(file, format="tiff")
    return file.getvalue()


@pytest.mark.parametrize(("file", "mode"), [(_tiff, "F"), (_fits, "I;16")])
def test_a_picture_whose_levels_have_no_known_range_is_refused(file: Callable[[], bytes], mode: str) -> None:
    with pytest.raises(UsageError, match=rf"x has levels of no known range \({mode}\): save it with 8 or 16 bits"):
        read_picture(io.BytesIO(file()), "image", "x")

"""What somebody meets who uses dovetail for the first time: one sentence of ours each, that names a way out."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import dovetail
from dovetail import demo
from dovetail.cli.app import app
from dovetail.cli.options.inputs import Inputs
from dovetail.cli.options.painting import Painting
from dovetail.cli.options.source import Source
from dovetail.cli.options.weights import WeightFiles
from dovetail.cli.output.figures import document_of, line_of
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import SpecError, UsageError, WeightError
from dovetail.conventions.request import Request, _several, _tell_no_sums, tell_unused_split
from dovetail.convert import plan_conversion
from dovetail.draw.page.page import Page
from dovetail.fitting.eased import resting, tell_of_places
from dovetail.progress.phases import Phases
from testbed.pipelines import tiny_pipelines

CALL = {"height": 16, "width": 16, "num_inference_steps": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "sd"
    tiny_pipelines.sd()[0].save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe, _ = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    return dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim1,vae=sim0")


@pytest.mark.parametrize(
    "taken",
    [
        {"use_safetensors": True, "safety_checker": None, "requires_safety_checker": False},
        {"device_map": "auto"},
        {"dtype": "bfloat16"},
        {"dtype": torch.float16, "torch_dtype": "fp16"},
    ],
    ids=str,
)
def test_load_pipeline_takes_what_from_pretrained_takes(folder: Path, taken: dict[str, Any]) -> None:
    assert dovetail.load_pipeline(folder, **taken).dovetail.components


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weights": "x.gguf"}, "takes for weights a dict such as {'transformer': 'x.gguf'}, of component and files"),
        (
            {"lora": [("x", 0.8)]},
            "a LoRA is a text, NAME:SCALE, or a path, and no tuple .*: write style.safetensors:0.8",
        ),
        ({"lora": {"x": 0.8}}, "a LoRA is a text, NAME:SCALE, or a path, and no dict"),
        ({"variant": "fp16"}, "no file in .* is of variant 'fp16': leave variant out"),
        ({"dtype": torch.float16, "torch_dtype": torch.float32}, "its older name .* contradict each other: give one"),
    ],
    ids=str,
)
def test_load_pipeline_refuses_what_cannot_be_meant(folder: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dovetail.load_pipeline(folder, **wrong)


def test_a_repository_without_a_network_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"^cannot download owner/model: [^\n]*: check its name and the network, or"):
        dovetail.load_pipeline("owner/model", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda pipe: dovetail.compile_pipeline(pipe), "is compiled already: call pipe.dovetail.undo"),
        (lambda pipe: dovetail.compile_pipeline("folder"), "load_pipeline takes folders"),
        (lambda pipe: dovetail.compile_pipeline(pipe.unet), "load_pipeline takes folders, and compile modules"),
        (lambda pipe: dovetail.load_pipeline(pipe), "compile_pipeline takes pipelines"),
        (
            lambda pipe: pipe.unet.cuda(),
            r"unet\.cuda\(\) cannot move this component: dovetail placed its weights on sim0",
        ),
        (lambda pipe: pipe.unet.cuda("cuda:1"), r"unet\.cuda\(\) cannot move this component"),
        (lambda pipe: pipe.unet.cuda(torch.device("cuda", 1)), r"unet\.cuda\(\) cannot move this component"),
        (lambda pipe: pickle.dumps(pipe.dovetail), "copy the pipeline, and compile the copy"),
        (lambda pipe: pipe.dovetail.prepare("x", **{**CALL, "height": "x"}), "height is 'x', and no whole number"),
        (lambda pipe: pipe.dovetail.refresh("transformer"), "has no transformer that is compiled; it has"),
    ],
)
def test_what_a_compiled_pipeline_cannot_do_is_one_sentence(
    pipe: Any, call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        call(pipe)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_what_a_compiled_pipeline_can_do_is_done(pipe: Any) -> None:
    pipe("x", **CALL)
    assert pickle.loads(pickle.dumps(pipe)).unet is not pipe.unet
    pipe.scheduler = diffusers.EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    pipe.vae = copy.deepcopy(pipe.vae)
    assert pipe("x", **CALL).images
    pipe.unet.half()
    assert {one.dtype for one in pipe.unet.parameters()} == {torch.float16}
    pipe.unet.float()
    with pytest.raises(UsageError, match="cannot compile it once more: leave it as it is"):
        pipe.unet = torch.compile(pipe.unet)


def test_a_pipeline_without_anything_at_dovetail_says_why(pipe: Any) -> None:
    other = diffusers.StableDiffusionImg2ImgPipeline(**{**pipe.components, "vae": copy.deepcopy(pipe.vae)})
    with pytest.raises(AttributeError, match=r"its .*unet.* are those of a compiled pipeline, whose \.dovetail"):
        _ = other.dovetail
    with pytest.raises(AttributeError, match=r"neither is a copy .*: dovetail\.compile_pipeline\(pipe\) does so"):
        _ = copy.deepcopy(pipe).dovetail
    with pytest.raises(AttributeError, match="no attribute 'dovetailed'"):
        _ = other.dovetailed


def test_a_page_is_not_saved_where_there_is_no_folder(tmp_path: Path) -> None:
    page = Page("<html>")
    with pytest.raises(UsageError, match=r"^cannot write \S+nowhere/page\.html: there is no folder \S+nowhere: name"):
        page.save(tmp_path / "nowhere" / "page.html")
    page.save(tmp_path / "page.html")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_an_address_is_no_file_of_weights() -> None:
    for call in (
        dovetail.load_single_file,
        lambda place: dovetail.compile(nn.Linear(1, 1), (torch.ones(1),), weights=place),
    ):
        with pytest.raises(WeightError, match=r"^https://a\.b/c\.safetensors is an address, .*: download it"):
            call("https://a.b/c.safetensors")


@pytest.mark.slow
def test_a_transformer_that_diffusers_quantized_is_refused_with_the_way_to_load_it(tmp_path: Path) -> None:
    home = demo.folder() / "transformer"
    plan_conversion(home, tmp_path / "transformer.gguf", "q4_k").run()
    quantized = diffusers.FluxTransformer2DModel.from_single_file(
        str(tmp_path / "transformer.gguf"),
        config=str(home),
        quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32),
        torch_dtype=torch.float32,
    )
    pipe = diffusers.DiffusionPipeline.from_pretrained(demo.folder(), transformer=quantized, torch_dtype=torch.float32)
    with pytest.raises(WeightError, match=r"^\S+ of \S+ is a GGUFParameter of diffusers, [^\n]*weights=…\)$"):
        dovetail.compile_pipeline(pipe, "sim0&sim1")


@pytest.mark.slow
def test_a_component_that_takes_another_ones_place_after_a_search_is_said_to_take_its_devices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    dovetail.compile_pipeline(pipe, rig="sim0=64MiB,cpu=1GiB")
    pipe.dovetail.plan("x", **CALL)
    assert pipe.dovetail.decision is not None
    pipe.vae = copy.deepcopy(pipe.vae)
    assert "the new vae takes the devices that were found" in caplog.text


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "plan.json"), "plan.json is a plan, and this makes one: dovetail show plan.json shows it"),
        (("plan", "my plan.json"), "my plan.json is a plan, and this makes one: dovetail show 'my plan.json' shows it"),
        (("show", "my plan.json"), "dovetail compile --component NAME -o 'my plan.json' writes one"),
        (("plan", "flux/model_index.json"), "flux/model_index.json says what a folder holds: name the folder, flux"),
        (("generate", "x", "--model", "m" * 3000), "no folder can be called mmmm"),
        (("generate", "x", "--model", "https://a.b/c.safetensors"), "is an address"),
        (("generate", "x", "--size", "9" * 3000), "is no size"),
        (("plan", "--size", "160000"), "more than 32768 pixels"),
        (("plan", "--height", "160000"), "32768"),
        (
            ("generate", "a", "red", "circle"),
            "no use for red circle: leave it out, or write words that belong together",
        ),
        (("plan", "--dtype", "int8"), "no type to compute in: give float32, bfloat16, float16"),
        (("generate", "x", "--backend", "&".join(["sim0"] * 3000)), "…\n       ^^^^\n"),
        (("generate", "x", "--backend", "sim0", "--tensor-split", "1e308,1e308"), "'1e308' is too large a share"),
        (
            ("plan", "--backend", "sim0+sim1", "--tensor-split", "diffusion=3,1"),
            "one share for each device: 1:1 for all, vae=1:1 for it alone; a comma begins another component's",
        ),
    ],
    ids=lambda value: value[-1][:20] if isinstance(value, tuple) else "",
)
def test_what_is_typed_wrongly_gets_a_short_message_and_the_exit_code_of_usage(
    words: tuple[str, ...], said: str
) -> None:
    told = typed(*words)
    assert told.exit_code == 2
    assert said in told.stderr
    assert len(told.stderr) < 500


@pytest.mark.parametrize("command", [("plan",), ("show",), ("verify",), ("explain",), ("generate", "x", "--model")])
def test_the_config_of_a_component_is_told_from_a_plan(command: tuple[str, ...], tmp_path: Path) -> None:
    config = demo.folder() / "transformer" / "config.json"
    told = typed(*command, str(config))
    way = f"is the config of one part of a pipeline, transformer: name the folder of the pipeline, {demo.folder()}"
    assert (told.exit_code, told.stderr) == (2, f"error: {config} {way}\n")
    alone = shutil.copy(config, tmp_path)
    assert "is the config of one model: name the folder of its pipeline" in typed(*command, str(alone)).stderr


def test_json_that_is_no_plan_is_not_called_one(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert "other.json is no pipeline: it has no model_index.json" in typed("plan", str(tmp_path / "other.json")).stderr


def test_a_tokenizer_whose_folder_is_not_there_is_named(tmp_path: Path) -> None:
    shutil.copytree(demo.folder(), tmp_path / "demo", ignore=shutil.ignore_patterns("tokenizer"))
    told = typed("plan", str(tmp_path / "demo"))
    assert told.exit_code != 0
    assert "demo has no tokenizer, which its model_index.json names" in told.stderr.replace("\n", " ")


def test_a_tokenizer_whose_folder_is_empty_is_named_with_the_files_that_lack(tmp_path: Path) -> None:
    shutil.copytree(demo.folder(), tmp_path / "demo", ignore=shutil.ignore_patterns("tokenizer.json", "*.safetensors"))
    for name in ("tokenizer_config.json", "vocab.json"):
        lacks = "merges.txt" if name == "vocab.json" else "tokenizer.json (or vocab.json and merges.txt)"
        (tmp_path / "demo" / "tokenizer" / name).write_text("{}")
        told = typed("plan", str(tmp_path / "demo"))
        assert told.exit_code == 2
        folder = tmp_path / "demo" / "tokenizer"
        assert f"the tokenizer's folder {folder} lacks {lacks}: download that folder whole" in told.stderr


def test_a_gpu_that_is_not_here_is_answered_with_what_is_here_and_how_to_plan_for_it() -> None:
    rig = Rig({Device("cpu"): Memory(2**30, 2**30)}, present=True)
    with pytest.raises(
        SpecError, match=r"cpu \(1\.0 GiB\), .* \(sim0\); PyTorch sees no GPU .* --rig cuda0=24GiB plans"
    ):
        rig.find("cuda:0")
    with pytest.raises(SpecError) as caught:
        Rig(rig.memory, present=False).find("cuda0")
    assert "PyTorch sees" not in str(caught.value)


def test_shares_that_no_component_can_use_are_said_to_be_unused(caplog: pytest.LogCaptureFixture) -> None:
    request = Request.parse(tensor_split="5,2", rig="cpu=1GiB")
    tell_unused_split(request, {"unet": "diffusion", "vae": "vae"})
    assert "--tensor-split 5:2 is not used, for each component is on one device (cpu)" in caplog.text
    caplog.clear()
    tell_unused_split(Request.parse(tensor_split="5,2", rig="cuda0=1GiB,cuda1=1GiB"), {"unet": "diffusion"})
    assert not caplog.text


def test_a_row_split_that_no_component_can_use_is_said_to_be_unused_where_it_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    roles = {"unet": "diffusion", "vae": "vae"}
    for _ in range(2):
        tell_unused_split(Request.parse(split_mode="row", backend="sim7", rig="sim7=1GiB"), roles)
    assert [record.message for record in caplog.records] == [
        "--split-mode row is not used, for each component is on one device (sim7): name several in --backend, such as "
        "'sim7&cpu'"
    ]
    caplog.clear()
    tell_unused_split(Request.parse(split_mode="layer", backend="sim8", rig="sim8=1GiB"), roles)
    tell_unused_split(Request.parse(split_mode="row", backend="diffusion=sim0&sim1", rig="sim0=1GiB,sim1=1GiB"), roles)
    tell_unused_split(Request.parse(split_mode="row", rig="cuda0=1GiB,cuda1=1GiB"), roles)
    assert not caplog.text


@pytest.mark.parametrize(
    ("backend", "modes", "said"),
    [
        ("cuda6", "tensor", "is not used, for each component is on one device (cuda6): name several in --backend"),
        ("cuda6,vae=cpu&cuda5", "diffusion=tensor", "is not used, for no component is split by tensor over several"),
        ("cuda5,unet=cuda5&cuda6", "diffusion=tensor", ""),
        ("cuda5,unet=cuda5&cuda6", "tensor", ""),
    ],
)
def test_short_partial_sums_are_said_to_be_unused_where_nothing_is_split_by_tensor(
    backend: str, modes: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    _tell_no_sums.cache_clear()
    rig = "cuda5=1GiB,cuda6=1GiB,cpu=1GiB"
    roles = {"unet": "diffusion", "vae": "vae"}
    request = Request.parse(backend=backend, split_mode=modes, bf16_partials=True, rig=rig, components=roles)
    tell_unused_split(request, roles)
    assert f"--bf16-partials {said}" in caplog.text if said else "--bf16-partials" not in caplog.text


@pytest.mark.parametrize(
    ("rig", "device", "mode", "several"),
    [
        ("cuda4=1GiB,cuda7=1GiB", "cuda7", "layer", "cuda7&cuda4"),
        ("cuda4=1GiB,cuda7=1GiB", "cuda4", "tensor", "cuda4&cuda7"),
        ("cuda4=1GiB,cuda7=1GiB", "cpu", "layer", "cuda4&cuda7"),
        ("cuda4=1GiB,xpu0=1GiB", "cuda4", "layer", "cuda4&cpu"),
        ("cuda4=1GiB,xpu0=1GiB", "cpu", "layer", "cuda4&cpu"),
        ("cpu=1GiB", "cpu", "layer", "sim0&sim1"),
    ],
)
def test_devices_of_the_rig_are_the_example_of_several(rig: str, device: str, mode: str, several: str) -> None:
    """They are one of a kind in a mode in which they compute together."""
    assert _several(Device.named(device), Rig.parse(rig), mode) == several


def test_what_is_unused_is_answered_with_devices_of_the_rig(caplog: pytest.LogCaptureFixture) -> None:
    request = Request.parse(micro_batches=2, backend="cuda8", rig="cuda8=1GiB,cuda9=1GiB")
    tell_unused_split(request, {"unet": "diffusion"})
    assert caplog.messages[-1].endswith("name several in --backend, such as 'cuda8&cuda9'")


def test_where_weights_were_moved_is_said_as_an_option_that_a_shell_takes(caplog: pytest.LogCaptureFixture) -> None:
    roles = {"unet": "diffusion", "vae": "vae"}
    before = Request.parse(backend="cuda0", rig="cuda0=1GiB,cpu=1GiB", components=roles)
    tell_of_places("Pipe", before, resting(before, {"unet": "cpu:1GiB&disk"}), roles)
    assert caplog.messages[-1].endswith("until they are used (--params-backend 'unet=cpu:1GiB&disk')")


@pytest.mark.parametrize("mode", ["tensor", "sequence", "batch", "spatial"])
def test_a_mode_on_one_device_is_answered_with_devices_that_it_takes(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    for device, several in (("sim6", "sim6&sim0"), ("cuda0", "cuda0&cuda1"), ("cpu", "sim0&sim1")):
        Request.parse(split_mode={"upscaler": mode}, backend=device, rig=f"{device}=1GiB").devices_for("upscaler")
        assert caplog.messages[-1].endswith(f"is on one device, {device}: name several, as in '{several}'")
        rig = ",".join(f"{one}=1GiB" for one in several.split("&"))
        Request.parse(split_mode=mode, backend=several, rig=rig).devices_for("unet", "diffusion")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-200], r"damaged: line \d+, column \d+ is no JSON"),
        (lambda text: text.replace('"version": 7', '"version": 6'), r"version should be 7"),
        (lambda text: text.replace('"return [', '"turn ['), r"plan\.json is damaged: program: line \d+"),
        (lambda text: text.replace('"program": [', '"program": [7,'), r"program\[0\] is no text"),
        (lambda text: text.replace('"torch"', '"troch"'), r"torch is missing"),
        (lambda text: text.replace('"rig": "', '"rig": "x'), r"plan\.json is damaged: rig: "),
    ],
)
def test_a_damaged_plan_is_told_with_the_place(change: Callable[[str], str], said: str, tmp_path: Path) -> None:
    dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0").save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert change(text) != text
    (tmp_path / "plan.json").write_text(change(text))
    told = typed("show", str(tmp_path / "plan.json"))
    assert told.exit_code == 1
    assert re.search(said, told.stderr)
    assert "Input should" not in told.stderr


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        (r'"return(.|\n)*', '"ret', "is no JSON: the file ends in the middle"),
        ('"torch":', '"torch"', "line 4, column 10 is no JSON: a colon is expected, and '"),
        ('"version": 7', '"version": "7"', 'version should be 7, and is "7"'),
        ('"tensors": {}', '"tensors": {"a": 5}', "damaged: tensors.a is no text, but 5"),
        ('"tensors": {}', '"tensors": null', "damaged: tensors is no object, but null"),
        ('"rig": "[^"]*"', '"rig": "sim0=1XiB"', "damaged: rig: '1XiB' is not a size, expected a number and a unit"),
        ('"rig": "[^"]*"', '"rig": "cuda0"', "damaged: rig: cuda0 has no size, expected its memory"),
        ("devices sim0=", "devices sim0=x", "is not a size, expected a number and a unit"),
        ("@sim0", "@sim9", "sim9 is not among the devices of the program, which are: sim0"),
        ("@sim0", "@", ", found the end"),
        ('@sim0 #0[^"]*', "", "%linear is on no device, and in a program that is cut each operation is"),
        (r"f32\[", "f99[", "f99 is no dtype, such as f32 or bf16"),
        (r"default\(%", "default(%nope_", "stands on no line before"),
        ("%linear:", "%linear: (", "expected , at column "),
        (r"\[4, 4\]", "[4, 99999999999999999999]", "99999999999999999999 has more than 64 bits"),
        (r"\[4, 4\]", "[4, four]", "four is no symbol that a line before names"),
        ("~0", "~-1", "expected a whole number, found -1"),
        (r'program \\"Linear', "program Linear", "expected text in quotes, found Linear"),
        (r'\\"children_spec\\"', "children_spec", "the structure is no JSON from character "),
        (" : ", " ", "behind // stand a module, its class and a place in its source"),
        ("aten.linear.default", "aten.liner.default", "there is no operation aten.liner.default in torch"),
        ('"return [^\n]*\n', "7", "damaged: program["),
    ],
)
def test_a_damaged_plan_is_told_in_one_sentence_and_never_in_words_of_python(
    there: str, instead: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0").save(file)
    text = file.read_text()
    file.write_text(re.sub(there, instead, text))
    assert file.read_text() != text
    for command in ("show", "verify"):
        told = typed(command, str(file)).stderr
        assert told.startswith(f"error: {file} is ")
        assert told.endswith(": compile it again\n")
        assert said in told
        assert told.count("\n") == 1
        assert not re.search(r"Error\b|\(char|Expecting|index|Traceback|None\b", told)


def test_a_plan_that_breaks_a_rule_is_told_with_its_file(tmp_path: Path) -> None:
    dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0").save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace("#0", "#7"))
    told = typed("show", str(tmp_path / "plan.json"))
    assert told.exit_code == 4
    assert told.stderr.startswith(
        f"error: {tmp_path / 'plan.json'} is damaged, or was edited: compile it again\nrule seg"
    )


def test_a_plan_whose_devices_are_not_those_of_its_program_is_told_so(tmp_path: Path) -> None:
    there = {"backend": "cuda6&cuda7", "rig": "cuda6=1GiB,cuda7=1GiB"}
    dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), **there).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(re.sub('"rig": "[^"]*"', '"rig": "cuda6=1GiB"', text))
    told = typed("verify", str(tmp_path / "plan.json"))
    assert told.exit_code == 1
    assert "damaged: rig: cuda6=1GiB has no cuda7, where the program runs: compile it again" in told.stderr


def test_what_goes_on_from_latents_names_all_that_the_call_began_with() -> None:
    inputs = Inputs(image=Path("a.png"), mask=Path("b.png"), control_net=Path("net"))
    assert inputs.words() == ["--image", "a.png", "--mask", "b.png", "--control-net", "net"]
    assert WeightFiles(weights=["vae=v.gguf"], t5xxl="t.gguf").words() == [
        "--weights",
        "vae=v.gguf",
        "--t5xxl",
        "t.gguf",
    ]
    source = Source(config="folder", revision="v2", variant="fp16")
    assert source.words() == ["--config", "folder", "--revision", "v2", "--variant", "fp16"]


def test_phases_are_told_in_the_order_of_a_call_also_where_a_picture_is_encoded_first() -> None:
    phases = Phases()
    with phases.watching():
        for name in ("loading", "decoding", "conditioning", "prior", "sampling", "decoding", "writing"):
            phases.turn_to(name)
    told = re.findall(r"(\w+) \d", line_of(phases, {}))
    assert told == ["loading", "conditioning", "prior", "sampling", "decoding", "writing"]
    assert list(document_of(phases, {})["phases"]) == told


def test_an_empty_prompt_is_a_prompt() -> None:
    assert Painting(named_prompt="").prompt(None) == ""
    assert Painting().prompt("") == ""
    assert Painting().prompt(None) is None
    with pytest.raises(UsageError, match="two prompts"):
        Painting(named_prompt="").prompt("x")


@pytest.mark.parametrize("command", ["generate", "plan", "show", "convert"])
def test_help_shows_no_value_for_a_flag(command: str) -> None:
    assert "bool" not in typed(command, "--help").stdout.lower()

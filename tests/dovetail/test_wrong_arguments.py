"""Public functions with arguments that make no sense: each is taken, or refused with a sentence of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DovetailError, SpecError
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

X = torch.ones(2)
WRONG: tuple[Any, ...] = (
    None, 0, -1, 3.5, float("nan"), True, "", "nonsense", "cuda9", "sim0&", "=", "a=b=c", "\0", "/nowhere", "x" * 5000,
    b"bytes", [], [None], (), (1, 2), {}, {"x": 1}, {1: 2}, {None: None}, {"unet": object()}, object(), object, len,
    range(3), X, torch.float32, torch.device("cpu"), Path("/nowhere"), nn.Linear(2, 2), ValueError("x"),
)  # fmt: skip
PLACING = ("backend", "params_backend", "split_mode", "tensor_split", "max_vram", "max_memory", "rig", "chunk")
MORE = ("device_map", "passes", "callbacks", "dynamic_shapes")
OF_PIPELINES = ("lora", "lora_apply_mode", "vae_tiling", "attention", "cache", "plans")
LOADED = (
    "dtype", "variant", "pipeline_class", "components", "weights", "revision", "token", "cache_dir", "vae", "unet",
    "scheduler", "use_safetensors",
)  # fmt: skip


def check(call: Callable[[Any], Any]) -> int:
    """Calls with each wrong argument; returns how many were refused. Any other error than ours fails."""
    refused = 0
    for wrong in WRONG:
        try:
            call(wrong)
        except DovetailError as error:
            refused += 1
            assert str(error), wrong
            assert isinstance(error, SpecError) or "\n" not in str(error), (wrong, str(error))
    return refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sd")
    tiny_pipelines.sd()[0].save_pretrained(folder)
    return folder


@pytest.fixture
def pipe() -> Iterator[Any]:
    pipe, _ = tiny_pipelines.sd()
    pipe.set_progress_bar_config(disable=True)
    yield pipe
    dovetail.undo(pipe)


@pytest.mark.parametrize("name", slow_but(["weights", "rig", "passes"], [*PLACING, *MORE, "weights", "args", "kwargs"]))
def test_compile_refuses_what_makes_no_sense(name: str) -> None:
    given = {"args": (X,)} if name != "args" else {}
    assert check(lambda wrong: dovetail.compile(nn.Linear(2, 2), **{**given, name: wrong})) > 5


def test_compile_load_and_undo_refuse_what_is_no_module_plan_or_pipeline() -> None:
    assert check(lambda wrong: dovetail.compile(nn.Tanh() if isinstance(wrong, nn.Module) else wrong, (X,))) == 34
    assert check(dovetail.load) == len(WRONG)
    assert check(lambda wrong: dovetail.load("/nowhere", wrong)) == len(WRONG)
    assert check(dovetail.undo) == 0
    with pytest.raises(DovetailError, match=r"^compile: got an unexpected keyword argument 'bakend'$"):
        dovetail.compile(nn.Linear(2, 2), (X,), bakend="cpu")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", slow_but(["lora", "plans", "max_memory"], [*PLACING, *MORE, *OF_PIPELINES]))
def test_compile_pipeline_refuses_what_makes_no_sense(name: str, pipe: Any) -> None:
    def call(wrong: Any) -> None:
        dovetail.undo(pipe)
        dovetail.compile_pipeline(pipe, **{"backend": "cpu", name: wrong})

    assert check(call) > 5


def test_what_is_no_pipeline_is_refused_with_the_function_that_takes_it() -> None:
    assert check(dovetail.compile_pipeline) == len(WRONG)
    with pytest.raises(DovetailError, match=r"^compile_pipeline takes for pipe a pipeline of diffusers; load_pipeline"):
        dovetail.compile_pipeline("owner/sd")


@pytest.mark.parametrize("name", slow_but(["weights", "components"], [*LOADED, *OF_PIPELINES]))
def test_load_pipeline_refuses_what_makes_no_sense(name: str, folder: Path) -> None:
    check(lambda wrong: dovetail.load_pipeline(folder, **{"backend": "cpu", "local_files_only": True, name: wrong}))


def test_loading_refuses_what_is_no_place(folder: Path) -> None:
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    assert check(lambda wrong: dovetail.load_pipeline(wrong, local_files_only=True)) == len(WRONG)
    assert check(lambda wrong: dovetail.load_single_file(wrong, config=folder, local_files_only=True)) == len(WRONG)
    assert check(lambda wrong: dovetail.load_single_file(file, config=wrong, local_files_only=True)) == len(WRONG)


@pytest.mark.fifth
def test_what_is_at_dovetail_refuses_what_makes_no_sense(pipe: Any) -> None:
    ours = dovetail.compile_pipeline(pipe, "sim0").dovetail
    call = {"prompt": "a cat", "height": 16, "width": 16, "num_inference_steps": 1}
    check(ours.plan)
    check(lambda wrong: ours.plan(**{**call, "height": wrong}))
    assert check(lambda wrong: ours.prepare(bogus=wrong)) == len(WRONG)
    assert check(ours.refresh) == len(WRONG)
    assert check(lambda wrong: ours.go_on(wrong, **call)) >= len(WRONG) - 1
    assert check(pipe.to) > 20


def test_a_path_that_is_no_utf_8_is_a_path() -> None:
    with pytest.raises(DovetailError, match="nowhere"):
        dovetail.load(os.fsdecode(b"/nowhere/\xff.json"))
    with pytest.raises(DovetailError, match="nowhere"):
        dovetail.load_single_file(Path(os.fsdecode(b"/nowhere/\xff.safetensors")))

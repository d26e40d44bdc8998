"""Nobody else moves the components of a compiled pipeline, and whatever was tried, undo gives them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import accelerate
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline

import dovetail
from dovetail.compiler.errors import UsageError
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "unet=sim0&sim1,te=sim1,vae=sim0"
TO = "sim:0"


def _clone(pipe: Any) -> Any:
    return StableDiffusionImg2ImgPipeline.from_pipe(pipe)


MOVES: dict[str, Callable[[Any], Any]] = {
    "model offload": lambda pipe: _clone(pipe).enable_model_cpu_offload(device=TO),
    "sequential offload": lambda pipe: _clone(pipe).enable_sequential_cpu_offload(device=TO),
    "group offload": lambda pipe: _clone(pipe).enable_group_offload(torch.device(TO), offload_type="leaf_level"),
    "to": lambda pipe: _clone(pipe).to("cpu"),
    "cpu_offload": lambda pipe: accelerate.cpu_offload(pipe.text_encoder, TO),
    "cpu_offload_with_hook": lambda pipe: accelerate.cpu_offload_with_hook(pipe.vae, TO),
    "dispatch_model": lambda pipe: _dispatch(pipe, force_hooks=True),
    "dispatch_model of a part": lambda pipe: accelerate.dispatch_model(pipe.unet.mid_block, {"": TO}, force_hooks=True),
    "cpu_offload of a part": lambda pipe: accelerate.cpu_offload(pipe.unet.mid_block, TO),
    "remove hooks": lambda pipe: accelerate.hooks.remove_hook_from_module(pipe.unet, recurse=True),
}


@pytest.fixture(scope="module")
def eager() -> tuple[Any, dict[str, Any], torch.Tensor]:
    pipe, call = tiny_pipelines.sd()
    return pipe, call, paint(pipe, call)


@pytest.mark.fifth
def test_what_others_do_to_move_components_is_refused_in_one_sentence(eager: Any) -> None:
    pipe, call, expected = eager
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    for name, move in MOVES.items():
        with pytest.raises(UsageError, match="cannot move"):
            move(pipe)
            pytest.fail(name)
    pipe.remove_all_hooks()
    assert not any("_old_forward" in vars(part) for part in pipe.unet.modules())
    assert torch.equal(paint(pipe, call).cpu(), expected)
    pipe.dovetail.undo()
    assert torch.equal(paint(pipe, call), expected)
    assert {one.device.type for one in pipe.unet.parameters()} == {"cpu"}


def _no_hooks(_: Any) -> None:
    """Leaves the components without any."""


def _dispatch(pipe: Any, **options: Any) -> None:
    names = dict(pipe.text_encoder.named_children())
    with contextlib.suppress(TypeError):  # accelerate cannot make a parameter on a simulated device
        accelerate.dispatch_model(
            pipe.text_encoder, {one: ("cpu", TO)[i % 2] for i, one in enumerate(names)}, TO, **options
        )


@pytest.mark.fifth
@pytest.mark.parametrize("put", [_no_hooks, _dispatch])
def test_undo_works_whatever_became_of_hooks(eager: Any, put: Callable[[Any], None]) -> None:
    pipe, call, expected = eager
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    for module in (pipe.unet, pipe.text_encoder, pipe.vae):
        del module._hf_hook
    put(pipe)
    pipe.dovetail.undo()
    assert not hasattr(pipe.text_encoder, "_old_forward")
    assert torch.equal(paint(pipe.to("cpu"), call), expected)  # accelerate has moved what it dispatched

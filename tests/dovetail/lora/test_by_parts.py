"""Adapters of a component that runs by its parts, for a block has a cache or a hook: eager's pictures."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, FirstBlockCacheConfig
from peft import LoraConfig
from torch import Tensor

import dovetail
from dovetail import demo
from dovetail.compiler.errors import UsageError
from tests.cases import drawn, slow_but

RIGS = {
    "one device": {"backend": "sim0"},
    "weights in RAM": {"backend": "sim0", "params_backend": "cpu"},
    "weights on disk": {"backend": "sim0", "params_backend": "disk"},
    "two devices": {"backend": "sim0&sim1,te=sim0,vae=sim0"},
}


def _load(pipe: Any, name: str = "blue") -> None:
    pipe.load_lora_weights(demo.adapter().parent, weight_name=demo.adapter().name, adapter_name=name)


def _cached(pipe: Any) -> None:
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))


def _uncached(pipe: Any) -> None:
    pipe.transformer.disable_cache()


def _hooked(pipe: Any) -> None:
    pipe.transformer.single_transformer_blocks[0].register_forward_hook(lambda *_: None)


def _halved(pipe: Any) -> None:
    pipe.set_adapters(["blue"], [0.5])


def _two(pipe: Any) -> None:
    _load(pipe, "other")
    pipe.set_adapters(["blue", "other"], [0.7, 0.4])


def _unloaded(pipe: Any) -> None:
    pipe.unload_lora_weights()


def _exchanged(pipe: Any) -> None:
    pipe.load_lora_weights(demo.adapter().parent, weight_name=demo.adapter().name, adapter_name="blue", hotswap=True)


def _fused(pipe: Any) -> None:
    pipe.fuse_lora()


def _dora(pipe: Any) -> None:
    pipe.transformer.add_adapter(
        LoraConfig(r=4, target_modules=["to_q", "proj_mlp"], init_lora_weights=False, use_dora=True),
        adapter_name="dora",
    )
    pipe.transformer.load_state_dict(
        {
            name: torch.randn(one.shape, generator=torch.Generator().manual_seed(5)) * 0.1
            for name, one in pipe.transformer.named_parameters()
            if "lora_A" in name or "lora_B" in name
        },
        strict=False,
    )


Step = Callable[[Any], None]
COURSES: dict[str, tuple[tuple[Step, ...], ...]] = {
    "cached, then loaded": ((_cached,), (_load,), (_halved,), (_uncached,)),
    "loaded, then hooked": ((_load,), (_hooked,), (_two,), (_unloaded,)),
    "exchanged and fused": ((_load, _cached), (_exchanged,), (_fused,)),
}
FAST = ("loaded, then hooked", "weights in RAM")


def _plain() -> Any:
    pipe = DiffusionPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _picture(pipe: Any, **more: Any) -> Tensor:
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 2, "output_type": "pt", **more}
    found: Tensor = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images
    return found.cpu()


def _equal_after(eager: Any, compiled: Any, courses: Iterable[tuple[Step, ...]]) -> None:
    for steps in courses:
        for step in steps:
            torch.manual_seed(0)
            step(eager)
            torch.manual_seed(0)
            step(compiled)
        assert torch.equal(_picture(compiled), _picture(eager)), steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("course", "rig"), slow_but([FAST], dict.fromkeys([FAST, *drawn(itertools.product(COURSES, RIGS), 5)]))
)
def test_adapters_of_what_runs_by_its_parts_count(course: str, rig: str) -> None:
    compiled = dovetail.load_pipeline(demo.folder(), dtype=torch.float32, **RIGS[rig])
    compiled.set_progress_bar_config(disable=True)
    _equal_after(_plain(), compiled, COURSES[course])


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("added", "step"), slow_but([(_dora, _hooked)], [(_load, _cached), (_load, _hooked), (_dora, _hooked)])
)
def test_adapters_that_were_there_before_it_was_compiled_count(added: Step, step: Step) -> None:
    eager, compiled = _plain(), _plain()
    for pipe in (eager, compiled):
        torch.manual_seed(0)
        added(pipe)
        step(pipe)
    dovetail.compile_pipeline(compiled, "sim0&sim1,te=sim0,vae=sim0")
    scale = {"joint_attention_kwargs": {"scale": 0.5}}
    assert torch.equal(_picture(compiled), _picture(eager))
    assert torch.equal(_picture(compiled, **copy.deepcopy(scale)), _picture(eager, **scale))


@pytest.mark.parametrize("config", [{"use_dora": True}, {"init_lora_weights": "pissa"}, {"init_lora_weights": "olora"}])
def test_an_adapter_that_is_computed_from_weights_is_added_before(config: dict[str, Any]) -> None:
    compiled = dovetail.load_pipeline(demo.folder(), dtype=torch.float32, backend="sim0")
    names = set(dict(compiled.transformer.named_parameters()))
    with pytest.raises(UsageError, match="before the pipeline is compiled"):
        compiled.transformer.add_adapter(LoraConfig(r=4, target_modules=["to_q"], **config), adapter_name="new")
    assert set(dict(compiled.transformer.named_parameters())) == names

"""Links between devices: one that damages copies harms no weight, and a call that fails frees no landing too early."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime import sim
from dovetail.runtime.devices import transfers
from dovetail.runtime.devices.accelerator import accelerator_of
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from ..lora.tiny_loras import save_lora

sim.enable()
SIM0, SIM1 = torch.device("sim", 0), torch.device("sim", 1)


@pytest.fixture
def broken_link() -> Iterator[None]:
    """Direct copies from sim0 to sim1 and back arrive damaged."""
    transfers.forget_self_tests()
    with sim.broken_link(0, 1), sim.broken_link(1, 0):
        yield
    transfers.forget_self_tests()


def layers() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module, x = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).eval(), torch.randn(2, 16)
    with torch.no_grad():
        return module, x, module(x)


@pytest.mark.usefixtures("broken_link")
@pytest.mark.parametrize("rests", [None, "cpu"])
def test_a_module_that_lies_on_one_device_is_split_over_two(
    rests: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    module, x, expected = layers()
    module.to("sim:0")
    with caplog.at_level(logging.WARNING):
        compiled = dovetail.compile(module, (x.to("sim:0"),), backend="sim0&sim1", tensor_split="1,1",
                                    params_backend=rests)  # fmt: skip
        assert torch.equal(compiled(x), expected)
    assert "through host memory" in caplog.text


@pytest.mark.fifth
@pytest.mark.usefixtures("broken_link")
def test_a_pipeline_that_lies_on_one_device_is_split_over_two_and_comes_back() -> None:
    pipe, call = tiny_pipelines.flux()
    expected = paint(pipe, call)
    pipe.to("sim:0")
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim1,vae=sim0")
    assert torch.equal(paint(pipe, call).cpu(), expected)
    pipe.dovetail.undo()
    assert {parameter.device for parameter in pipe.transformer.parameters()} == {SIM0}
    assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.fifth
@pytest.mark.usefixtures("broken_link")
@pytest.mark.parametrize("merged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_adapters_come_over_beside_weights_and_merged_into_them(tmp_path: Path, merged: bool) -> None:
    pipe, call = tiny_pipelines.flux()
    pipe.load_lora_weights(save_lora(pipe, tmp_path / "one", 1, rank=4))
    if merged:
        pipe.fuse_lora()
    expected = latents(pipe, call)
    if merged:
        pipe.unfuse_lora()
    pipe.to("sim:0")
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim0,vae=sim0")
    if merged:
        pipe.fuse_lora()
    assert torch.equal(latents(pipe, call), expected)


def latents(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    return paint(pipe, {**call, "num_inference_steps": 1}, "latent").cpu()  # type: ignore[no-any-return]


class Broadcast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x).softmax(-1)
        return x


def test_a_row_split_that_fails_anywhere_leaves_no_memory_to_a_copy_that_still_writes_to_it() -> None:
    module, x = Broadcast().eval(), torch.randn(8, 256)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode="row", tensor_split="1,1")
    expected = compiled(x)
    compiled._executor._make_steps()  # forgets what the first call has found: the steps below are taken again
    steps = dict(compiled._executor._steps or {})
    assert len(steps) > 8

    def fail(slots: list[Any]) -> None:
        raise torch.OutOfMemoryError("no room")

    def fail_at_last(slots: list[Any]) -> None:
        steps[last](slots)
        fail(slots)

    last = max(steps)
    for at, failing in (*((one, fail) for one in steps), (last, fail_at_last)):
        compiled._executor._steps = {**steps, at: failing}
        with pytest.raises(DoesNotFitError):
            compiled(x)
        with torch.inference_mode():
            for device in (SIM0, SIM1):
                torch.zeros(16, device=device)
        for index in range(2):
            sim.synchronize(index)
    compiled._executor._steps = steps
    assert torch.equal(compiled(x), expected)


class Passing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, y


def test_an_argument_in_pinned_memory_may_be_written_to_after_the_call() -> None:
    compiled = dovetail.compile(Passing(), (torch.ones(2), torch.ones(3)), backend="sim0")
    pinned = accelerator_of(SIM0).empty_on_host((3,), (1,), torch.float32).fill_(1)
    _, passed = compiled(torch.ones(2, device=SIM0), pinned)
    pinned.zero_()
    assert passed.tolist() == [1, 1, 1]


def test_results_that_come_back_to_the_host_are_not_in_pinned_memory() -> None:
    module, x, expected = layers()
    result = dovetail.compile(module, (x,), backend="sim0&sim1")(x)
    assert torch.equal(result, expected)
    assert not torch.sim.is_pinned(result)  # type: ignore[attr-defined]

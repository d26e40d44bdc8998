"""Blocks that Inductor compiles: which are, what is said where they are not, and that results are close."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dovetail
from dovetail.compiler.errors import UsageError
from dovetail.components.compiled import CompiledModule
from dovetail.runtime import block_kernels
from dovetail.runtime.block_kernels import BlockKernel
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x * (1 + cond))))


class Tower(nn.Module):
    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(blocks)), nn.Linear(8, 8)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, cond)
        return self.head(x)


@pytest.fixture
def tower() -> Tower:
    torch.manual_seed(0)
    return Tower().eval()


@pytest.fixture
def compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BlockKernel]]:
    """Counts the kernels that are called, which run without Inductor: it takes long."""
    called: list[BlockKernel] = []

    def call(self: BlockKernel, *inputs: Tensor) -> object:
        called.append(self)
        return self._plain(*inputs)

    monkeypatch.setattr(BlockKernel, "__call__", call)
    block_kernels._kernels.clear()
    return called


CALL = (torch.ones(2, 8), torch.full((8,), 0.5))


@torch.no_grad()
def test_equal_blocks_are_one_kernel_and_what_it_is_called_with_is_eager_s(
    tower: Tower, compiled_blocks: list[BlockKernel]
) -> None:
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    assert torch.equal(compiled(*CALL), tower(*CALL))
    assert len(compiled_blocks) == 4
    assert len(set(compiled_blocks)) == 1


@torch.no_grad()
def test_blocks_that_differ_run_as_they_are(tower: Tower, compiled_blocks: list[BlockKernel]) -> None:
    tower.blocks[1].down = nn.Sequential(nn.Linear(32, 8), nn.ReLU())
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    assert torch.equal(compiled(*CALL), tower(*CALL))
    assert len(compiled_blocks) == 3


@torch.no_grad()
@pytest.mark.parametrize("rests", ["cpu", None])
def test_blocks_are_compiled_on_the_host_alone_and_simulated_devices_run_theirs_as_they_are(
    tower: Tower, compiled_blocks: list[BlockKernel], rests: str | None
) -> None:
    options = {"rig": "sim0=1MiB,cpu=1GiB", "tensor_split": "1,1", "params_backend": rests}
    compiled = dovetail.compile(tower, CALL, backend="sim0&cpu", inductor=True, **options)
    assert torch.equal(compiled(*CALL), tower(*CALL))
    assert len(compiled_blocks) == 2


def test_all_that_happens_within_a_block_is_at_its_border(tower: Tower) -> None:
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    plain = dovetail.compile(tower, CALL, backend="cpu")
    assert "inductor" in compiled.program.history
    assert frees_at(plain, "add_6") != frees_at(compiled, "add_6")


def frees_at(compiled: CompiledModule, name: str) -> list[str]:
    return [str(free.value) for step in compiled.schedule.flat() if hasattr(step, "frees") for free in step.frees
            if step.node.name == name]  # fmt: skip


@torch.no_grad()
def test_a_plan_is_saved_and_loaded_with_its_compiled_blocks(
    tower: Tower, compiled_blocks: list[BlockKernel], tmp_path: Path
) -> None:
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    compiled.save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json", weights=tower)
    assert str(loaded.schedule) == str(compiled.schedule)
    assert torch.equal(loaded(*CALL), tower(*CALL))
    assert len(compiled_blocks) == 4


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backend": "sim0&sim1", "rig": "sim0=1MiB,sim1=1MiB"}, "simulated devices run no kernels of it"),
        (
            {"backend": "cpu", "dynamic_shapes": {"x": {0: torch.export.Dim("n")}, "cond": None}},
            "its sizes are dynamic",
        ),
    ],
)
@torch.no_grad()
def test_what_speaks_against_it_is_said_and_blocks_run_as_they_are(
    tower: Tower, options: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = dovetail.compile(tower, CALL, inductor=True, **options)
    assert f"Tower is not compiled by Inductor: {why}; its blocks run as they are" in caplog.messages
    assert torch.equal(compiled(*CALL), tower(*CALL))


@torch.no_grad()
def test_blocks_of_which_no_two_do_the_same_run_as_they_are_and_that_is_said(
    compiled_blocks: list[BlockKernel], caplog: pytest.LogCaptureFixture
) -> None:
    tower = Tower(2).eval()
    tower.blocks[0].down = nn.Sequential(nn.Linear(32, 8), nn.ReLU())
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    assert torch.equal(compiled(*CALL), tower(*CALL))
    assert compiled_blocks == []
    assert "no two of 2 blocks of Tower do the same: they run as they are" in caplog.messages


def test_passes_that_are_given_say_themselves_whether_blocks_are_compiled(tower: Tower) -> None:
    with pytest.raises(UsageError, match="put inductor before schedule in passes"):
        dovetail.compile(tower, CALL, backend="cpu", inductor=True, passes="simplify,blocks")


def test_a_budget_is_refused_for_what_kernels_need_is_not_known(tower: Tower) -> None:
    with pytest.raises(UsageError, match="a budget cannot be kept with inductor"):
        dovetail.compile(tower, CALL, backend="cpu", max_vram=1, inductor=True)


@pytest.mark.parametrize("budget", [{"max_vram": 1}, {"max_vram": {"sim0": "1GiB"}}, {"max_memory": {"cpu": "4GiB"}}])
def test_a_budget_of_a_pipeline_is_refused_before_anything_runs(budget: dict[str, Any]) -> None:
    pipe, _ = tiny_pipelines.flux()
    with pytest.raises(UsageError, match=r"leave out one of the two, max_vram \(--max-vram\) or inductor"):
        dovetail.compile_pipeline(pipe, "cpu", inductor=True, params_backend="cpu", **budget)
    assert not hasattr(pipe, "dovetail")


@pytest.mark.fifth
def test_a_pipeline_whose_weights_come_block_by_block_computes_the_same_with_compiled_blocks(
    compiled_blocks: list[BlockKernel],
) -> None:
    pipe, call = tiny_pipelines.flux()
    expected = paint(pipe, call)
    rig = {"rig": "sim0=1GiB,cpu=8GiB", "tensor_split": "diffusion=1:3", "params_backend": "diffusion=cpu"}
    dovetail.compile_pipeline(pipe, "diffusion=sim0&cpu,te=cpu,vae=cpu", inductor=True, **rig)
    assert torch.equal(paint(pipe, call).cpu(), expected)
    assert compiled_blocks


@torch.no_grad()
def test_a_block_that_inductor_fails_at_runs_as_it_is_and_says_so(
    tower: Tower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> object:
        raise torch._dynamo.exc.TorchDynamoException("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    block_kernels._kernels.clear()
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    assert torch.equal(compiled(*CALL), tower(*CALL))
    said = [one for one in caplog.messages if "cannot compile" in one]
    assert said == ["Inductor cannot compile a block of Tower, which runs as it is: no compiler here"]


@pytest.mark.slow
@torch.no_grad()
def test_what_inductor_compiles_is_close_to_eager_and_its_bits_are_said_to_differ(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    block_kernels._tell_bits.cache_clear()
    compiled = dovetail.compile(tower, CALL, backend="cpu", inductor=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*CALL), tower(*CALL))
    assert [one for one in caplog.messages if "last bits" in one]
    assert not [one for one in caplog.messages if "cannot compile" in one]

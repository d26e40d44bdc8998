"""Parts of a compiled model that are replaced by others answer as eager's do, where it runs by its parts too."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

import dovetail
from dovetail.runtime import sim
from tests.cases import slow_but

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline

RIGS = {
    "one device": {"backend": "sim0"},
    "two devices": {"backend": "sim0&sim1"},
    "weights in RAM": {"backend": "sim0", "params_backend": "diffusion=cpu"},
    "two devices, weights in RAM": {"backend": "sim0&sim1", "params_backend": "diffusion=cpu"},
}
ROWS = {"backend": "sim0&sim1", "split_mode": "row"}


class Unsteady(nn.Module):
    """A layer that no trace follows, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) + self.shift
        return made + torch.from_numpy(made.detach().cpu().numpy()).to(made.device)


class Around(nn.Module):
    """Doubles what another layer makes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) * 2
        return made


def _layer(model: Model) -> None:
    model.first = nn.Linear(WIDTH, WIDTH)


def _untraceable(model: Model) -> None:
    model.first = Unsteady()


def _wrapped(model: Model) -> None:
    model.first = Around(model.first)


def _block(model: Model) -> None:
    model.blocks[1] = type(model.blocks[1])().eval()


def _in_a_block(model: Model) -> None:
    model.blocks[1].up = nn.Linear(WIDTH, 2 * WIDTH)


def _list(model: Model) -> None:
    model.blocks = nn.ModuleList(type(model.blocks[0])() for _ in range(3)).eval()


def _one_more(model: Model) -> None:
    model.blocks.append(type(model.blocks[0])().eval())


def _same_twice(model: Model) -> None:
    model.blocks[2] = model.blocks[0]


CHANGES = (_layer, _untraceable, _wrapped, _block, _in_a_block, _list, _one_more, _same_twice)


def _made(kind: type[Block], rig: str) -> tuple[Pipeline, Pipeline, Tensor]:
    torch.manual_seed(0)
    model = Model(kind).eval()
    eager, compiled = Pipeline(copy.deepcopy(model)), Pipeline(model)
    dovetail.compile_pipeline(compiled, **(ROWS if rig == "rows" else RIGS[rig]))
    return eager, compiled, torch.randn(6, WIDTH)


@pytest.mark.fifth
@pytest.mark.few(quick=4)
@pytest.mark.parametrize("rig", slow_but(["weights in RAM"], list(RIGS)))
@pytest.mark.parametrize("kind", slow_but([Numpy], [Block, Numpy]))
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_in_the_place_of_another_answers(change: Callable[[Model], None], kind: type[Block], rig: str) -> None:
    eager, compiled, x = _made(kind, rig)
    for calls in range(3):  # before the first call, and after one and more
        for pipe in (eager, compiled):
            torch.manual_seed(calls)
            change(pipe.unet)
        assert torch.equal(compiled(x), eager(x))
        assert torch.equal(compiled(x), eager(x))
    compiled.dovetail.undo()
    assert torch.equal(compiled(x), eager(x))


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [Block, Numpy])
def test_a_part_in_the_place_of_one_with_an_adapter_has_none(kind: type[Block]) -> None:
    eager, compiled, x = _made(kind, "one device")
    for pipe in (eager, compiled):
        torch.manual_seed(1)
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["up"], init_lora_weights=False), pipe.unet)
    assert torch.equal(compiled(x), eager(x))
    for change in (_block, _same_twice, _block):
        for pipe in (eager, compiled):
            torch.manual_seed(2)
            change(pipe.unet)
        assert torch.equal(compiled(x), eager(x))


@pytest.mark.fifth
@pytest.mark.parametrize("kind", [Block, Numpy])
def test_a_part_that_is_put_back_answers_again(kind: type[Block]) -> None:
    eager, compiled, x = _made(kind, "weights in RAM")
    before = compiled(x)
    assert torch.equal(before, eager(x))
    block = compiled.unet.blocks[1]
    compiled.unet.blocks[1] = nn.Identity()
    assert not torch.equal(compiled(x), before)
    assert "forward" not in vars(block), "it is as if it had never been compiled"
    compiled.unet.blocks[1] = block
    assert torch.equal(compiled(x), before)


@pytest.mark.fifth
def test_weights_of_parts_that_nobody_has_any_more_leave_their_device() -> None:
    _, compiled, x = _made(Numpy, "one device")
    compiled(x)
    held = sim.stats(0).in_use
    for _ in range(3):
        compiled.unet.blocks[1] = Numpy().eval()
        compiled(x)
        gc.collect()
    assert sim.stats(0).in_use == held


@pytest.mark.fifth
@pytest.mark.few(3)
@pytest.mark.parametrize("rig", ["two devices", "two devices, weights in RAM", "rows"])
@pytest.mark.parametrize("kind", [Block, Numpy])
def test_a_part_that_was_taken_out_has_its_weights_where_they_were(kind: type[Block], rig: str) -> None:
    eager, compiled, x = _made(kind, rig)
    compiled(x)
    blocks = {pipe: pipe.unet.blocks[1] for pipe in (eager, compiled)}
    for pipe in blocks:
        del pipe.unet.blocks[1]
    assert torch.allclose(compiled(x), eager(x), atol=1e-5 if rig == "rows" else 0, rtol=0)
    block = blocks[compiled]
    assert {one.device.type for one in block.parameters()} == {"cpu"}
    assert torch.equal(block(x), blocks[eager](x))
    assert torch.equal(copy.deepcopy(block)(x), blocks[eager](x))
    for pipe in blocks:
        pipe.unet.blocks.append(blocks[pipe])
    assert torch.allclose(compiled(x), eager(x), atol=1e-5 if rig == "rows" else 0, rtol=0)
    compiled.dovetail.undo()
    assert {one.device.type for one in compiled.unet.parameters()} == {"cpu"}
    assert torch.equal(compiled(x), eager(x))


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [Block, Numpy])
def test_a_part_that_another_compiled_model_had_is_at_home_where_the_rest_is(kind: type[Block]) -> None:
    eager, compiled, x = _made(kind, "two devices")
    eager_other, other, _ = _made(kind, "two devices")
    for pipe in (compiled, other):
        pipe(x)
    for source, target in ((eager, eager_other), (compiled, other)):
        target.unet.blocks[2], source.unet.blocks[1] = source.unet.blocks[1], nn.Identity()
    assert torch.equal(other(x), eager_other(x))
    assert torch.equal(compiled(x), eager(x))
    for pipe in (compiled, other):
        pipe.dovetail.undo()
        assert {one.device.type for one in pipe.unet.parameters()} == {"cpu"}
    assert torch.equal(other(x), eager_other(x))


@pytest.mark.fifth
@pytest.mark.parametrize("kind", [Block, Numpy])
def test_a_part_that_was_taken_out_before_undo_has_its_weights_where_they_were(kind: type[Block]) -> None:
    eager, compiled, x = _made(kind, "two devices")
    compiled(x)
    block = compiled.unet.blocks[1]
    del compiled.unet.blocks[1]
    compiled.dovetail.undo()
    assert torch.equal(block(x), eager.unet.blocks[1](x))


def test_a_part_that_was_put_back_before_anybody_asked_keeps_its_weights_where_they_are() -> None:
    _, compiled, x = _made(Block, "one device")
    compiled(x)
    view, block = compiled.dovetail.components["unet"].view, compiled.unet.blocks[1]
    compiled.unet.blocks[1] = nn.Identity()
    view.store.survey()
    compiled.unet.blocks[1] = block
    view.survey()
    assert {one.device.type for one in block.parameters()} == {"sim"}

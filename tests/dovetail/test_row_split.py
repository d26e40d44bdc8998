"""Row split from the outside: modules, pipelines, plan files, and what cannot be split by rows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DoesNotFitError, UsageError, WeightError
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Copy, Lifetime, Load
from dovetail.compiler.states.parts import pieces
from dovetail.components.compiled import CompiledModule
from dovetail.passes.placement import rows
from testbed.pipelines.tiny_pipelines import paint, wide_flux

X = torch.linspace(-1, 1, 2 * 256).reshape(2, 256)


class Wide(nn.Module):
    """Blocks with a matrix each, between layers in no block."""

    def __init__(self, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(width, width), nn.Linear(width, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def wide(width: int = 256, depth: int = 2) -> Wide:
    torch.manual_seed(0)
    return Wide(width, depth).eval()


def split(module: nn.Module, backend: str = "sim0&sim1&sim2", **more: object) -> CompiledModule:
    return dovetail.compile(module, (X[:, : module.embed.in_features],), backend=backend, split_mode="row", **more)  # type: ignore[arg-type, index, misc, union-attr]


def slices(program: Program) -> dict[str, tuple[Part, Device]]:
    return {w.name: (w.which, device) for w, device in pieces(program).values() if w.which}


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_matrix_and_its_bias_are_sliced_by_shares_and_all_else_stays_on_the_main_device() -> None:
    compiled = split(wide(), tensor_split="16,10,6")
    program = compiled.program
    sim0, sim1, sim2 = program.devices
    assert slices(program) == {
        f"blocks.{block}.0.{name}[{start}:{stop}]": (Part(0, ((start, stop),)), device)
        for block in range(2)
        for name in ("weight", "bias")
        for start, stop, device in ((0, 128, sim0), (128, 208, sim1), (208, 256, sim2))
    }
    whole = {name: device for name, (weight, device) in pieces(program).items() if not weight.which}
    assert set(whole.values()) == {sim0}
    assert whole.keys() == {
        "embed.weight", "embed.bias", "head.weight", "head.bias",
    }  # fmt: skip
    assert close(compiled(X), wide()(X))


def test_the_input_of_a_matmul_crosses_once_to_each_device_and_the_parts_land_in_the_whole() -> None:
    copies = [one for one in split(wide(), tensor_split="16,10,6").schedule.flat() if isinstance(one, Copy)]
    out = [one for one in copies if not one.landings]
    back = [one for one in copies if one.landings]
    assert (len(out), len(back)) == (2 * 2, 2 * 3)
    assert {str(one.source) for one in out} == {"sim0"} == {str(one.target) for one in back}
    assert [one.into.ranges for copy in back for one in copy.landings] == [
        ((1, 128, 80),),
        ((1, 208, 48),),
        ((1, 0, 128),),
    ] * 2


def test_a_device_whose_share_rounds_to_nothing_gets_nothing() -> None:
    compiled = split(wide(), tensor_split="1000,1,999")
    assert {str(device) for _, device in slices(compiled.program).values()} == {"sim0", "sim2"}
    assert all(str(one.target) != "sim1" for one in compiled.schedule.flat() if isinstance(one, Copy))
    assert close(compiled(X), wide()(X))


def test_left_to_itself_it_follows_free_memory_less_what_the_main_device_must_hold_besides() -> None:
    compiled = split(wide(256, 8), rig="sim0=4MiB,sim1=2MiB,sim2=1MiB")
    program = compiled.program
    besides = sum(weight.nbytes for weight, _ in pieces(program).values() if weight.which is None)
    first, *others = program.rig.free.values()
    assert besides == 2 * (256 * 256 + 256) * 4
    for bounds in program.bounds.values():
        assert len(bounds) == 3
        ratios = [(stop - start) / free for (start, stop), free in zip(bounds, (first - besides, *others), strict=True)]
        assert max(ratios) / min(ratios) < 1.05


def test_devices_of_mixed_kinds_take_part() -> None:
    for backend in ("sim0&cpu", "cpu&sim0", "sim1&cpu&sim0"):
        compiled = split(wide(), backend, tensor_split=[1] * (backend.count("&") + 1))
        assert {device for _, device in slices(compiled.program).values()} == set(compiled.program.devices)
        assert close(compiled(X), wide()(X))


def test_what_has_nothing_to_slice_is_split_by_layers_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    rows._tell.cache_clear()
    with caplog.at_level(logging.INFO, "dovetail.passes.placement.rows"):
        for _ in range(2):
            compiled = split(wide(64), "sim0&sim1")
    assert not slices(compiled.program)
    assert {str(segment.device) for segment in compiled.program.segments} == {"sim0", "sim1"}
    (record,) = (record for record in caplog.records if record.name == "dovetail.passes.placement.rows")
    assert record.levelno == logging.WARNING
    assert "Wide cannot be split by rows, for none of its weights is a matrix of a block" in record.message
    assert "run one after another" in record.message
    assert torch.equal(compiled(X[:, :64]), wide(64)(X[:, :64]))


def test_one_device_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    rows._tell.cache_clear()
    with caplog.at_level(logging.INFO, "dovetail.passes.placement.rows"):
        compiled = split(wide(), "sim0")
    said = [record.levelno for record in caplog.records if record.name == "dovetail.passes.placement.rows"]
    assert said == [logging.INFO]  # that rows mean nothing on one device was told when the request was read
    assert torch.equal(compiled(X), wide()(X))


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        DoesNotFitError, match=r"needs .* of weights and .* of headroom on sim1, which has 96\.0 KiB free"
    ):
        split(wide(), "sim0&sim1", rig="sim0=8MiB,sim1=96KiB", tensor_split="1,1")


def test_a_device_map_is_refused() -> None:
    with pytest.raises(UsageError, match="a device map places each weight whole"):
        dovetail.compile(wide(), (X,), device_map={"": "sim0", "blocks": "sim1"}, split_mode="row")


def test_a_plan_file_of_a_row_split_is_read_back(tmp_path: Path) -> None:
    compiled = split(wide(), tensor_split="16,10,6")
    compiled.save(tmp_path / "plan.json")
    again = dovetail.load(tmp_path / "plan.json", weights=wide())
    assert (str(again), str(again.schedule)) == (str(compiled), str(compiled.schedule))
    assert slices(again.program) == slices(compiled.program)
    assert torch.equal(again(X), compiled(X))


def test_dynamic_sizes_are_split_by_rows() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    compiled = split(wide(), tensor_split="16,10,6", dynamic_shapes={"x": {0: batch}})
    for count in (2, 7):
        x = torch.randn(count, 256)
        assert close(compiled(x), wide()(x))


@pytest.mark.fifth
def test_one_role_of_a_pipeline_is_split_by_rows_and_painting_goes_on_as_before() -> None:
    pipe, call = wide_flux()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(
        pipe, "diffusion=sim0&sim1&sim2,te=sim1&sim2,vae=sim0", split_mode="diffusion=row,te=layer",
        tensor_split="diffusion=16:10:6",
    )  # fmt: skip
    found = paint(pipe, call).cpu()
    (program,) = pipe.dovetail.programs["transformer"]
    assert slices(program.program)
    assert not any(
        slices(one.program) for name in ("text_encoder", "text_encoder_2") for one in pipe.dovetail.programs[name]
    )
    assert (found - eager).abs().max() < 1e-4
    pipe.dovetail.undo()
    assert torch.equal(paint(pipe, call), eager)


@pytest.mark.slow
def test_another_state_that_is_loaded_into_split_weights_counts_from_the_next_picture_on() -> None:
    pipe, call = wide_flux()
    call = {**call, "num_inference_steps": 1}
    eager, _ = wide_flux()
    others = {name: value * 0.5 for name, value in eager.transformer.state_dict().items()}
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=sim0,vae=sim0", split_mode="row")
    old = paint(pipe, call, "latent").cpu()
    pipe.transformer.load_state_dict(others)
    new = paint(pipe, call, "latent").cpu()
    eager.transformer.load_state_dict(others)
    assert any(slices(one.program) for one in pipe.dovetail.programs["transformer"])
    assert close(new, paint(eager, call, "latent"))
    assert not torch.allclose(new, old, atol=1e-2)


def test_rows_that_rest_elsewhere_come_to_each_device_a_block_at_a_time() -> None:
    compiled = split(wide(256, 3), tensor_split="16,10,6", params_backend="cpu")
    loads = [one for one in compiled.schedule if isinstance(one, Load) and one.lifetime is Lifetime.STAGE]
    for device in compiled.program.devices[1:]:
        blocks = [sorted({name.split("[")[0] for name in one.weights}) for one in loads if one.device == device]
        assert blocks == [[f"blocks.{index}.0.bias", f"blocks.{index}.0.weight"] for index in range(3)]
    assert close(compiled(X), wide(256, 3)(X))


@pytest.mark.parametrize("rests", [None, "cpu"])
@pytest.mark.parametrize("rows", [128, 512])
def test_a_matrix_of_other_rows_in_the_place_of_one_is_refused_before_anything_runs(
    rows: int, rests: str | None
) -> None:
    module = wide()
    compiled = split(module, tensor_split="16,10,6", params_backend=rests)
    before = compiled(X)
    layer = module.get_submodule("blocks.1.0")
    kept = layer.weight
    layer.weight = nn.Parameter(torch.randn(rows, 256))
    told = rf"weight blocks\.1\.0\.weight is torch\.float32\[{rows}, 256\], but .*\[256, 256\]"
    with pytest.raises(WeightError, match=told):
        compiled(X)
    layer.weight = kept
    assert torch.equal(compiled(X), before)


@pytest.mark.parametrize("mode", ["row", "layer"])
def test_weights_that_were_written_through_data_are_read_after_unloading(mode: str) -> None:
    module = wide()
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", split_mode=mode)
    compiled(X)
    module.get_submodule("blocks.1.0").weight.data.mul_(2)  # type: ignore[operator, union-attr]
    compiled.unload()
    assert close(compiled(X), module(X))


def test_a_sequence_of_any_length_behind_a_batch_is_split_by_rows() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 256)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    module, dynamic = Tower().eval(), {"x": {1: torch.export.Dim("length", min=2, max=64)}}
    compiled = dovetail.compile(
        module, (torch.randn(2, 7, 256),), backend="sim0&sim1", rig="sim0=64MiB,sim1=64MiB",
        split_mode="row", tensor_split=[1, 1], dynamic_shapes=dynamic,
    )  # fmt: skip
    for length in (7, 30):
        x = torch.randn(2, length, 256)
        with torch.no_grad():
            assert torch.allclose(compiled(x), module(x), atol=1e-5)

"""Weights that rest in host memory or on disk: the same pictures, and nothing held longer than it is needed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dovetail
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import ExecutionError, UsageError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.compiler.states.parts import pieces, slot_bytes
from dovetail.components.compiled import CompiledModule
from dovetail.components.weights.module_view import ModuleView
from dovetail.runtime import sim
from dovetail.runtime.store.origins import origins_of
from dovetail.runtime.store.reader import WeightReader
from dovetail.runtime.store.store import Store
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import PIPELINES, paint
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

APART = "diffusion=sim0&sim1,te=sim2,vae=sim0"
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each tiny pipeline."""
    folders = {}
    for name in ("flux", "sd", "wan"):
        folders[name] = tmp_path_factory.mktemp(name)
        PIPELINES[name]()[0].save_pretrained(folders[name])
    return folders


def in_use() -> list[int]:
    gc.collect()
    return [sim.stats(index).in_use for index in range(3)]


def resident(pipe: Any) -> int:
    """The bytes that may stay: buffers, and the weights of components that rest where they run."""
    pipe.scheduler.set_timesteps(1)  # which keeps tensors of its own on the main device, as the pipeline does
    pipe._current_timestep = None
    return sum(
        tensor.nbytes
        for one in pipe.dovetail.components.values()
        for tensor in (*one.module.parameters(), *one.module.buffers())
        if tensor.device.type == "sim" and has_numbers(tensor)
    )


@pytest.mark.parametrize(
    ("name", "rests"),
    [
        *slow_but([], [("flux", "te=disk"), ("flux", "*=cpu"), *((name, "*=disk") for name in ("flux", "sd", "wan"))]),
        *slow_but([], [(name, "te=cpu,vae=disk,diffusion=cpu") for name in ("flux", "sd", "wan")]),
    ],
)
def test_a_picture_is_the_same_wherever_weights_rest_and_nothing_staged_is_left(
    name: str, rests: str, saved: dict[str, Path]
) -> None:
    pipe, call = PIPELINES[name]()
    eager = paint(pipe, call)
    loaded = dovetail.load_pipeline(saved[name], APART, params_backend=rests)
    for _ in range(2):
        assert torch.equal(paint(loaded, call).cpu(), eager)
        left = resident(loaded)
        assert sum(in_use()) == left
    loaded.dovetail.undo()
    lend_weights(loaded, pipe)
    assert torch.equal(paint(loaded, call), paint(pipe, call))
    assert sum(in_use()) == 0


def lend_weights(undone: Any, pipe: Any) -> None:
    """Lets a pipeline compute with the memory of another: views of a file may be aligned so that matmuls round else."""
    for name, module in modules_of(undone).items():
        own, lent = getattr(pipe, name), dict(module.state_dict())
        assert all(torch.equal(tensor, lent[key]) for key, tensor in own.state_dict().items())
        own.load_state_dict(lent, assign=True)


def modules_of(pipe: Any) -> dict[str, torch.nn.Module]:
    return {name: one for name, one in pipe.components.items() if isinstance(one, torch.nn.Module)}


@SLOW
def test_a_pipeline_in_memory_may_rest_there() -> None:
    pipe, call = tiny_pipelines.flux()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, APART, params_backend={"te": "cpu", "diffusion": "cpu"})
    with pipe.dovetail:
        assert torch.equal(paint(pipe, call).cpu(), eager)
        assert {one.device.type for one in pipe.transformer.parameters()} == {"cpu"}
        assert pipe.transformer.device == torch.device("cpu")
        assert in_use()[1] == sum(b.nbytes for b in pipe.transformer.buffers() if b.device.type == "sim")
        assert "transformer (diffusion): sim0 & sim1, weights kept in RAM, 1 program" in str(pipe.dovetail)
    assert torch.equal(paint(pipe, call), eager)


@pytest.mark.slow
def test_the_text_encoders_are_gone_before_sampling_starts(
    saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    call_of = CompiledModule.__call__

    def watched(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        before = sim.stats(2).in_use
        result = call_of(self, *args, **kwargs)
        seen.append((self.program.name, before))
        return result

    monkeypatch.setattr(CompiledModule, "__call__", watched)
    _, call = tiny_pipelines.flux()
    pipe = dovetail.load_pipeline(saved["flux"], APART, params_backend="te=disk")
    paint(pipe, call)
    held = {name: nbytes for name, nbytes in seen if name != "T5EncoderModel"}
    weights = pipe.dovetail.components["text_encoder"].view.nbytes
    assert held["FluxTransformer2DModel"] < 2000 < weights
    assert held["AutoencoderKL"] < 2000
    assert next(nbytes for name, nbytes in seen if name == "T5EncoderModel") > weights // 2


@pytest.mark.fifth
def test_one_phase_sends_weights_once_whatever_the_number_of_steps() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, APART, params_backend="diffusion=cpu")
    sent = []
    for steps in (1, 4):
        pipe(**{**call, "num_inference_steps": steps}, output_type="latent")
        sim.reset_stats(1)
        pipe(**{**call, "num_inference_steps": steps}, output_type="latent")
        sent.append(sim.stats(1).bytes_in)
    (program,) = pipe.dovetail.programs["transformer"]
    loads = [load for load in program.schedule if isinstance(load, Load) and load.device.index == 1]
    weights = program.program.weights
    staged = sum(weights[name].nbytes for one in loads if one.lifetime is Lifetime.PHASE for name in one.weights)
    assert staged > 100_000
    assert sent[1] - staged == 4 * (sent[0] - staged)


@SLOW
def test_a_step_between_two_phases_lets_go_of_the_first_only() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, "te=sim0,diffusion=sim1,vae=sim2", params_backend="*=cpu")
    paint(pipe, call)
    with torch.no_grad():
        pipe.text_encoder_2(torch.arange(16)[None])
        assert in_use()[0] > 100_000
        pipe.vae.decode(torch.zeros(1, 4, 8, 8))
    held = in_use()
    assert held[0] < 2000
    assert held[2] > 10_000
    pipe.dovetail.release()
    left = resident(pipe)
    assert sum(in_use()) == left


@SLOW
def test_an_error_in_the_middle_of_a_picture_leaves_nothing() -> None:
    pipe, call = tiny_pipelines.flux()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, APART, params_backend="*=cpu")

    def fail(*_: Any) -> Any:
        raise RuntimeError("stopped by the person who called")

    with pytest.raises(RuntimeError, match="stopped by the person"):
        pipe(**call, callback_on_step_end=fail)
    left = resident(pipe)
    assert sum(in_use()) == left
    with torch.no_grad(), pytest.raises(ExecutionError):
        pipe.text_encoder_2(torch.full((1, 16), 10**6))
    left = resident(pipe)
    assert sum(in_use()) == left
    assert torch.equal(paint(pipe, call).cpu(), eager)


@pytest.mark.fifth
def test_what_is_offered_to_a_component_counts_one_phase_of_the_staged_ones() -> None:
    pipe, _ = tiny_pipelines.flux()
    sizes = {name: sum(p.nbytes for p in part.parameters()) for name, part in pipe.components.items()
             if isinstance(part, nn.Module)}  # fmt: skip
    room = sizes["transformer"] + 200_000
    dovetail.compile_pipeline(pipe, "sim0", params_backend="*=cpu", rig=f"sim0={room}B")
    offered = {name: next(iter(one.decided.offer().free.values())) for name, one in pipe.dovetail.components.items()}
    stay = {
        name: sum(buffer.nbytes for buffer in one.module.buffers()) for name, one in pipe.dovetail.components.items()
    }
    others = {name: sum(stay.values()) - stay[name] for name in stay}
    assert offered["transformer"] == room - others["transformer"]
    assert offered["text_encoder"] == room - others["text_encoder"] - sizes["text_encoder_2"]
    assert offered["vae"] == room - others["vae"]


@pytest.mark.slow
@pytest.mark.parametrize("what", slow_but(["weight"], ["weight", "module"]))
def test_a_weight_that_two_components_share_is_held_once(what: str) -> None:
    pipe, call = tiny_pipelines.sdxl()
    if what == "module":
        pipe.text_encoder_2.set_input_embeddings(pipe.text_encoder.get_input_embeddings())
    pipe.text_encoder_2.get_input_embeddings().weight = pipe.text_encoder.get_input_embeddings().weight
    shared = pipe.text_encoder.get_input_embeddings().weight
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "te=sim2,diffusion=sim0,vae=sim0")
    assert torch.equal(paint(pipe, call).cpu(), eager)
    total = {id(t): t.nbytes for part in (pipe.text_encoder, pipe.text_encoder_2)
             for t in (*part.parameters(), *part.buffers()) if t.device.type == "sim"}  # fmt: skip
    assert in_use()[2] == sum(total.values())
    first, second = (part.get_input_embeddings().weight for part in (pipe.text_encoder, pipe.text_encoder_2))
    assert first is second
    assert first.device == torch.device("sim", 2)
    pipe.dovetail.undo()
    assert torch.equal(pipe.text_encoder.get_input_embeddings().weight, shared.cpu())
    assert torch.equal(paint(pipe, call), eager)


@SLOW
def test_rows_of_what_rests_in_host_memory_go_straight_to_their_devices() -> None:
    pipe, call = tiny_pipelines.wide_flux()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(
        pipe, "diffusion=sim0&sim1,te=cpu,vae=cpu", params_backend="diffusion=cpu", split_mode="diffusion=row"
    )
    assert torch.allclose(paint(pipe, call).cpu(), eager, atol=1e-4)
    (program,) = pipe.dovetail.programs["transformer"]
    assert program.program.bounds
    loads = [load for load in program.schedule if isinstance(load, Load)]
    pipe(**{**call, "num_inference_steps": 1}, output_type="latent")
    sim.reset_stats(1)
    pipe(**{**call, "num_inference_steps": 1}, output_type="latent")
    names = {name for load in loads if load.device.index == 1 for name in load.weights}
    held = pieces(program.program)
    rows = sum(held[name][0].nbytes for name in names)
    activations = sim.stats(1).bytes_in - rows
    assert 0 < activations < rows // 4
    left = resident(pipe)
    assert sum(in_use()) == left


@SLOW
def test_rows_that_stay_on_their_devices_are_held_once_and_come_back(saved: dict[str, Path], tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.wide_flux()
    before = {name: tensor.clone() for name, tensor in pipe.transformer.state_dict().items()}
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1,te=cpu,vae=cpu", split_mode="diffusion=row")
    assert torch.allclose(paint(pipe, call).cpu(), eager, atol=1e-4)
    pipe.scheduler.set_timesteps(1)
    total = sum(tensor.nbytes for tensor in before.values())
    assert sum(in_use()) == total == pipe.dovetail.components["transformer"].assigned.bytes_on().total()
    assert not all(map(has_numbers, pipe.transformer.parameters()))
    pipe.transformer.save_pretrained(tmp_path)
    assert sum(in_use()) == total
    again = diffusers.FluxTransformer2DModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())
    pipe.dovetail.undo()
    assert all(torch.equal(tensor, before[name]) for name, tensor in pipe.transformer.state_dict().items())
    assert torch.equal(paint(pipe, call), eager)


@SLOW
def test_what_rests_on_disk_is_saved_and_still_rests_there(saved: dict[str, Path], tmp_path: Path) -> None:
    _, call = tiny_pipelines.flux()
    pipe = dovetail.load_pipeline(saved["flux"], APART, params_backend="*=disk")
    paint(pipe, call)
    pipe.save_pretrained(tmp_path)
    assert not any(map(has_numbers, pipe.transformer.parameters()))
    assert pipe.transformer.device == torch.device("cpu")
    first = diffusers.FluxPipeline.from_pretrained(saved["flux"]).transformer.state_dict()
    again = diffusers.FluxPipeline.from_pretrained(tmp_path).transformer.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


def test_only_weights_in_files_can_rest_on_disk() -> None:
    pipe, _ = tiny_pipelines.flux()
    with pytest.raises(UsageError, match=r"weights of FluxTransformer2DModel .* are in no file.*load_pipeline"):
        dovetail.compile_pipeline(pipe, APART, params_backend="diffusion=disk")
    with pytest.raises(UsageError, match=r"are in memory and cannot be kept on disk: name their files \(weights=…\)"):
        dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0", params_backend="disk")


def test_weights_cannot_rest_on_another_accelerator() -> None:
    with pytest.raises(
        UsageError, match="weights cannot be kept on sim1 and be read on sim0: keep them on cpu or disk"
    ):
        dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0", params_backend="sim1", rig="sim0,sim1")


def test_a_module_with_files_rests_on_disk(tmp_path: Path) -> None:
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    file = tmp_path / "m.safetensors"
    save_file(module.state_dict(), file)
    module.to("meta")
    x = torch.ones(2, 64)
    compiled = dovetail.compile(module, (x.to("meta"),), backend="sim0&sim1", params_backend="disk", weights=file)
    found = compiled(x)
    compiled.unload()
    assert in_use() == [0, 0, 0]
    module.load_state_dict(load_file(file), assign=True)
    with torch.no_grad():
        assert torch.equal(found, module(x))


def test_a_module_whose_files_rest_in_host_memory_reads_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    file, x = tmp_path / "m.safetensors", torch.ones(2, 64)
    save_file(module.state_dict(), file)
    with torch.no_grad():
        expected = module(x)
    module.to("meta")
    compiled = dovetail.compile(module, (x.to("meta"),), backend="sim0&sim1", params_backend="cpu", weights=file)
    assert torch.equal(compiled(x), expected)
    with monkeypatch.context() as context:
        context.setattr(WeightReader, "read", lambda *_: pytest.fail("a weight was read again"))
        assert torch.equal(compiled(x), expected)
    compiled.unload()
    assert in_use() == [0, 0, 0]
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("rests", ["cpu", pytest.param("disk", marks=SLOW)])
@SLOW
def test_what_runs_as_it_is_leaves_with_its_phase_too(rests: str, saved: dict[str, Path]) -> None:
    pipe, call = tiny_pipelines.wan()
    pipe.vae.enable_tiling(16, 16, 8, 8)
    call = {**call, "height": 32}
    eager = paint(pipe, call)
    loaded = dovetail.load_pipeline(saved["wan"], "diffusion=sim0,te=sim0,vae=sim1", params_backend=f"vae={rests}")
    loaded.vae.enable_tiling(16, 16, 8, 8)
    for _ in range(2):
        assert torch.equal(paint(loaded, call).cpu(), eager)
        assert in_use()[1] < 100
    loaded.dovetail.undo()
    assert torch.equal(paint(loaded, call), eager)


def resident_peak() -> tuple[int, int]:
    """Resident memory of this process now, and its peak, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim0&sim1&sim2&sim3", "cpu"])
def test_resident_memory_grows_by_no_more_than_the_slots(tmp_path: Path, backend: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(3072, 3072) for _ in range(8))).eval()  # which the C library maps one by one
    file = tmp_path / "m.safetensors"
    save_file(module.state_dict(), file)
    x = torch.ones(8, 3072)
    with torch.no_grad():
        expected = module(x)
    module.to("meta")
    compiled = dovetail.compile(module, (x.to("meta"),), backend=backend, params_backend="disk", weights=file)
    slots = {device.name: sum(sizes) for device, sizes in slot_bytes(compiled.program).items()}
    assert backend != "cpu" or slots["cpu"] < sum(one.nbytes for one in module.parameters()) // 2
    compiled.load()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, _ = resident_peak()
    found = [compiled(x) for _ in range(3)]
    assert resident_peak()[1] - before < 1.02 * sum(slots.values()) + 8 * 2**20
    assert all(torch.equal(one, expected) for one in found)


def test_weights_without_data_in_one_range_of_a_file_are_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    save_file({"weight": first.weight.data, "bias": first.bias.data}, tmp_path / "w.safetensors")
    index = WeightIndex.of_file(tmp_path / "w.safetensors")
    weight = first.weight.data.clone()
    store = Store()
    views, reader = [], WeightReader()
    for module in (first, second):
        module.to("meta")
        views.append(ModuleView(module, origins_of(index, reader), store=store))
    assert first.weight is second.weight
    store.place(store.of(first.weight), Device("sim", 1))
    assert second.weight.device == torch.device("sim", 1)
    assert in_use()[1] == weight.nbytes
    views[0].undo()
    views[1].undo()
    assert first.weight is second.weight
    assert torch.equal(second.weight, weight)


def test_equal_names_in_two_files_are_two_weights(tmp_path: Path) -> None:
    modules = [nn.Linear(8, 8), nn.Linear(8, 8)]
    store = Store()
    expected = [module.weight.data.clone() for module in modules]
    for number, module in enumerate(modules):
        file = tmp_path / f"{number}.safetensors"
        save_file(module.state_dict(), file)
        module.to("meta")
        ModuleView(module, origins_of(WeightIndex.of_file(file)), store=store)
    assert all(torch.equal(module.weight, weight) for module, weight in zip(modules, expected, strict=True))

"""Whole pipelines, compiled: what they paint, where their weights are, and what undoing gives back."""

from __future__ import annotations

import gc
import logging
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import NotHereError, SpecError, UsageError
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines, tiny_text
from testbed.pipelines.more_pipelines import MORE_PIPELINES
from testbed.pipelines.tiny_pipelines import PIPELINES, paint
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
SLOW = pytest.mark.slow
ALL = {**PIPELINES, **MORE_PIPELINES}
FIRST = ("flux", "sd_controlnet")


def modules(pipe: Any) -> dict[str, nn.Module]:
    return {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}


def weights(pipe: Any) -> dict[str, torch.Tensor]:
    states = {part: module.state_dict() for part, module in modules(pipe).items()}
    return {f"{part}.{name}": tensor.clone() for part, state in states.items() for name, tensor in state.items()}


def held(pipe: Any, kind: str = "") -> int:
    """Bytes of all weights and buffers, on one kind of device or on all."""
    tensors = (t for module in modules(pipe).values() for t in (*module.parameters(), *module.buffers()))
    return sum(tensor.nbytes for tensor in tensors if tensor.device.type.startswith(kind))


def in_use() -> int:
    gc.collect()
    return sum(sim.stats(index).in_use for index in range(3))


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(FIRST, ALL))
def test_the_compiled_picture_is_the_eager_picture_and_undoing_leaves_nothing(name: str) -> None:
    pipe, call = ALL[name]()
    eager, before = paint(pipe, call), weights(pipe)
    dovetail.compile_pipeline(pipe, SPREAD)
    first, second = paint(pipe, call), paint(pipe, call)
    assert torch.equal(first.cpu(), eager)
    assert torch.equal(second.cpu(), eager)
    (spread,) = (one for one in pipe.dovetail.components.values() if one.role == "diffusion")
    assert spread.assigned.bytes_on().keys() == {"sim0", "sim1"}
    pipe.dovetail.undo()
    after = weights(pipe)
    assert after.keys() == before.keys()
    assert all(after[name].device.type == "cpu" and torch.equal(after[name], before[name]) for name in before)
    assert not any("forward" in vars(part) or "_decode" in vars(part) for part in modules(pipe).values())
    assert torch.equal(paint(pipe, call), eager)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("name", slow_but(["flux"], ALL))
def test_every_component_may_be_split_over_three_devices(name: str, dtype: torch.dtype) -> None:
    pipe, call = ALL[name]()
    pipe.to(dtype)
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "sim0&sim1&sim2")
    assert torch.equal(paint(pipe, call).cpu(), eager)


@pytest.mark.parametrize("output_type", ["np", pytest.param("latent", marks=SLOW)])
@SLOW
def test_other_kinds_of_output_are_the_same_too(output_type: str) -> None:
    pipe, call = tiny_pipelines.flux()
    eager = paint(pipe, call, output_type)
    dovetail.compile_pipeline(pipe, SPREAD)
    assert torch.equal(torch.as_tensor(paint(pipe, call, output_type)).cpu(), torch.as_tensor(eager))


@pytest.mark.fifth
def test_a_new_size_compiles_once_more_and_a_known_one_does_not() -> None:
    pipe, call = tiny_pipelines.sd()
    larger = {**call, "height": 32}
    eager, eager_larger = paint(pipe, call), paint(pipe, larger)
    dovetail.compile_pipeline(pipe, SPREAD)
    counts = []
    for one, expected in ((call, eager), (larger, eager_larger), (call, eager), (larger, eager_larger)):
        assert torch.equal(paint(pipe, one).cpu(), expected)
        counts.append({name: len(programs) for name, programs in pipe.dovetail.programs.items()})
    assert counts[0] == {"vae": 1, "text_encoder": 1, "unet": 1}
    assert counts[1] == counts[2] == counts[3] == {"vae": 2, "text_encoder": 1, "unet": 2}


@SLOW
def test_weights_live_once_whatever_the_number_of_sizes() -> None:
    pipe, call = tiny_pipelines.sd()
    total = held(pipe)
    dovetail.compile_pipeline(pipe, SPREAD)
    for width in (16, 32):
        paint(pipe, {**call, "width": width})
        pipe.scheduler.set_timesteps(1)
        placed = sum(one.assigned.bytes_on().total() for one in pipe.dovetail.components.values())
        assert in_use() == placed
        assert placed + held(pipe, "cpu") == total == held(pipe)


@pytest.mark.fifth
@pytest.mark.parametrize("name", ["flux", pytest.param("qwen", marks=SLOW)])
def test_a_pipeline_that_nobody_holds_leaves_nothing_on_its_devices(name: str) -> None:
    def paint_and_forget() -> None:
        pipe, call = ALL[name]()
        dovetail.compile_pipeline(pipe, SPREAD)
        paint(pipe, call)

    before = in_use()
    paint_and_forget()
    assert in_use() == before


@SLOW
def test_weights_that_no_call_needs_stay_where_they_are() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    assert {weight.device for weight in pipe.vae.encoder.parameters()} == {torch.device("cpu")}
    assert {weight.device for weight in pipe.vae.decoder.parameters()} == {torch.device("sim", 0)}


@SLOW
def test_encoding_after_decoding_places_what_was_left() -> None:
    pipe, call = tiny_pipelines.flux()
    image = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        eager = pipe.vae.encode(image).latent_dist.mean
    dovetail.compile_pipeline(pipe, "sim0&sim1")
    paint(pipe, call)
    with torch.no_grad():
        assert torch.equal(pipe.vae.encode(image).latent_dist.mean, eager)
    assert {weight.device.type for weight in pipe.vae.parameters()} == {"sim"}


@pytest.mark.fifth
def test_the_pipeline_and_its_components_say_where_they_are() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, SPREAD)
    assert pipe._execution_device == torch.device("sim", 0)
    assert pipe.hf_device_map == {
        "vae": "sim0", "text_encoder": "sim1", "text_encoder_2": "sim1", "transformer": "sim0&sim1",
    }  # fmt: skip
    paint(pipe, call)
    assert pipe.transformer.device == torch.device("sim", 0)
    assert pipe.text_encoder.device == torch.device("sim", 1)
    assert (type(pipe.transformer).__name__, pipe.transformer.dtype) == ("FluxTransformer2DModel", torch.float32)
    assert pipe.transformer.config.num_layers == 2
    assert "transformer (diffusion): sim0 & sim1, 1 program" in str(pipe.dovetail)


def test_results_come_back_to_the_device_of_the_call() -> None:
    pipe, _ = tiny_pipelines.flux()
    ids = torch.arange(16)[None]
    with torch.no_grad():
        eager = pipe.text_encoder_2(ids)[0]
        dovetail.compile_pipeline(pipe, "te=sim1,diffusion=sim0,vae=sim0")
        assert torch.equal(pipe.text_encoder_2(ids)[0], eager)
        there = pipe.text_encoder_2(ids.to("sim:2"))[0]
    assert there.device == torch.device("sim", 2)
    assert torch.equal(there.cpu(), eager)


def test_a_component_whose_weights_diffusers_moves_by_groups_is_refused() -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.unet.enable_group_offload(torch.device("cpu"), offload_type="leaf_level")
    with pytest.raises(UsageError, match=r"weights of unet .* by groups .*without that.*params_backend=cpu"):
        dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    pipe, _ = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1").dovetail.undo()


@pytest.mark.parametrize(
    "name", ["to", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload"]
)
def test_moving_a_placed_pipeline_is_refused_with_the_way_out(name: str) -> None:
    pipe, _ = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, SPREAD)
    with pytest.raises(UsageError, match=rf"pipe\.{name}\(\) cannot move.*call pipe\.dovetail\.undo\(\)"):
        getattr(pipe, name)("cpu")
    pipe.dovetail.undo()
    assert pipe.to("cpu") is pipe


@SLOW
def test_resetting_the_device_map_undoes() -> None:
    pipe, call = tiny_pipelines.flux()
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail:
        paint(pipe, call)
        pipe.reset_device_map()
        assert pipe.hf_device_map is None
        assert pipe.device == torch.device("cpu")


def test_a_pipeline_is_compiled_once_at_a_time() -> None:
    pipe, _ = tiny_pipelines.flux()
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail:
        with pytest.raises(UsageError, match=r"compiled already: call pipe\.dovetail\.undo"):
            dovetail.compile_pipeline(pipe, "sim0")
        other = dovetail.compile_pipeline(diffusers.FluxImg2ImgPipeline(**pipe.components), "sim0")
        assert other.dovetail.components == pipe.dovetail.components
    dovetail.compile_pipeline(pipe, "sim0").dovetail.undo()


@SLOW
def test_another_pipeline_may_use_the_compiled_components() -> None:
    other, call = tiny_pipelines.flux_img2img()
    eager = paint(other, call)
    pipe = diffusers.FluxPipeline(**other.components)
    dovetail.compile_pipeline(pipe, SPREAD)
    with pipe.dovetail:
        assert torch.equal(paint(other, call).cpu(), eager)
        assert len(pipe.dovetail.programs["vae"]) == 2


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(["flux"], ["flux", "sdxl"]))
def test_a_pipeline_spread_over_devices_saves_what_it_was(name: str, tmp_path: Any) -> None:
    pipe, call = PIPELINES[name]()
    before = weights(pipe)
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    pipe.save_pretrained(tmp_path)
    after = weights(diffusers.DiffusionPipeline.from_pretrained(tmp_path))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@SLOW
def test_tiling_and_slicing_go_on_working() -> None:
    pipe, call = tiny_pipelines.sd()
    call = {**call, "height": 64, "width": 48, "num_images_per_prompt": 2}
    pipe.vae.enable_tiling()
    pipe.vae.enable_slicing()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD)
    assert torch.equal(paint(pipe, call).cpu(), eager)
    assert {str(call) for call in pipe.dovetail.components["vae"].calls if call.programs} == {
        "decoder",
        "post_quant_conv",
    }
    pipe.vae.disable_tiling()
    untiled = paint(pipe, call)
    pipe.dovetail.undo()
    assert torch.equal(untiled.cpu(), paint(pipe, call))


def _tiled_wan() -> Any:
    pipe, call = tiny_pipelines.wan()
    pipe.vae.enable_tiling(16, 16, 8, 8)
    return pipe, {**call, "height": 32}


@SLOW
def test_a_part_that_keeps_what_it_is_handed_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = _tiled_wan()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "diffusion=sim0,te=sim0,vae=sim1")
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert torch.equal(paint(pipe, call).cpu(), eager)
    assert "vae (AutoencoderKLWan).decoder cannot be compiled" in caplog.text
    assert caplog.text.count("cannot be compiled") == 1


@SLOW
def test_a_part_that_keeps_what_it_is_handed_is_split_by_its_parts() -> None:
    pipe, call = _tiled_wan()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "diffusion=sim0,te=sim0,vae=sim0&sim1")
    assert torch.equal(paint(pipe, call).cpu(), eager)
    assert pipe.dovetail.components["vae"].parts.reasons["decoder"].startswith("decoder is handed a list or dict")
    assert {tensor.device.index for tensor in pipe.vae.decoder.parameters()} == {0, 1}


def test_a_part_that_is_called_by_itself_is_compiled_by_itself() -> None:
    pipe, _ = tiny_pipelines.sd()
    latents = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        eager = pipe.vae.decoder(latents)
        dovetail.compile_pipeline(pipe, "sim0&sim1")
        assert torch.equal(pipe.vae.decoder(latents), eager)


@SLOW
def test_of_several_text_encoders_the_largest_is_split() -> None:
    pipe, call = tiny_pipelines.sd3()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "te=sim1&sim2,diffusion=sim0,vae=sim0,text_encoder_2=sim0")
    assert torch.equal(paint(pipe, call).cpu(), eager)
    where = {name: "&".join(map(str, one.devices)) for name, one in pipe.dovetail.components.items()}
    assert {name: where[name] for name in where if name.startswith("text")} == {
        "text_encoder": "sim1", "text_encoder_2": "sim0", "text_encoder_3": "sim1&sim2",
    }  # fmt: skip


@SLOW
def test_what_other_components_take_is_not_offered_twice() -> None:
    pipe, call = tiny_pipelines.flux()
    transformer, encoder = (sum(p.nbytes for p in m.parameters()) for m in (pipe.transformer, pipe.text_encoder_2))
    clip = sum(p.nbytes for p in pipe.text_encoder.parameters())
    size = transformer + encoder + clip
    dovetail.compile_pipeline(pipe, SPREAD, rig=f"sim0={size}B,sim1={size}B", passes=None)
    paint(pipe, call)
    placed = pipe.dovetail.components["transformer"].assigned.bytes_on()
    assert placed["sim0"] > placed["sim1"] > 0


def test_inference_results_may_be_written_by_the_pipeline() -> None:
    pipe, _ = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, "sim0")
    with torch.no_grad():
        sample = pipe.vae.decode(torch.randn(1, 4, 8, 8)).sample
    sample.add_(1)
    assert not sample.is_inference()


@pytest.mark.fifth
def test_a_component_that_was_converted_runs_in_its_new_dtype() -> None:
    pipe, _ = tiny_pipelines.sd()
    latents = torch.randn(1, 4, 8, 8)
    reference, _ = tiny_pipelines.sd()
    expected = {}
    with torch.no_grad():
        expected[torch.float32] = reference.vae.decode(latents).sample
        reference.vae.to(torch.bfloat16)
        expected[torch.bfloat16] = reference.vae.decode(latents.bfloat16()).sample
        dovetail.compile_pipeline(pipe, SPREAD)
        assert torch.equal(pipe.vae.decode(latents).sample, expected[torch.float32])
        pipe.vae.to(torch.bfloat16)
        assert torch.equal(pipe.vae.decode(latents.bfloat16()).sample, expected[torch.bfloat16])


@SLOW
def test_dynamic_shapes_take_other_sizes_without_compiling_again() -> None:
    pipe, call = tiny_pipelines.flux()
    larger = {**call, "height": 32, "width": 24}
    eager, eager_larger = paint(pipe, call), paint(pipe, larger)
    auto = torch.export.Dim.AUTO
    shapes = {"transformer": {"hidden_states": {1: auto}, "img_ids": {0: auto}}}
    dovetail.compile_pipeline(pipe, SPREAD, dynamic_shapes=shapes)
    assert torch.equal(paint(pipe, call).cpu(), eager)
    assert torch.equal(paint(pipe, larger).cpu(), eager_larger)
    assert len(pipe.dovetail.programs["transformer"]) == 1
    assert len(pipe.dovetail.programs["vae"]) == 2


@SLOW
def test_arguments_that_are_no_tensors_choose_the_program() -> None:
    pipe, _ = tiny_pipelines.sd()
    call = (torch.randn(1, 4, 8, 8), torch.tensor(3), torch.randn(1, 4, 32))
    dovetail.compile_pipeline(pipe, SPREAD)
    with torch.no_grad():
        sample = pipe.unet(*call).sample
        assert torch.equal(pipe.unet(*call, cross_attention_kwargs={"scale": 1.0}).sample, sample)
        assert torch.equal(pipe.unet(*call, return_dict=False)[0], sample)
        assert len(pipe.dovetail.programs["unet"]) == 3
        pipe.unet(*call, cross_attention_kwargs={"scale": 1.0})
    assert len(pipe.dovetail.programs["unet"]) == 3


class Moody(nn.Module):
    """An encoder that looks at values, which no trace can."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.config = inner.config

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        return self.inner(input_ids if input_ids.sum() > 0 else input_ids + 1, **kwargs)


def _moody() -> Any:
    pipe, call = tiny_pipelines.flux()
    pipe.text_encoder_2 = Moody(tiny_text.t5())
    return pipe, call


@pytest.mark.fifth
def test_what_cannot_be_traced_is_compiled_by_its_parts_on_one_device_too(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = _moody()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert torch.equal(paint(pipe, call).cpu(), eager)
        assert torch.equal(paint(pipe, call).cpu(), eager)
    said = [record.getMessage() for record in caplog.records if "text_encoder_2" in record.getMessage()]
    assert len(said) == 1
    assert "is compiled by its parts: what it computes between them it computes on sim" in said[0]
    assert "cross" not in said[0]


@pytest.mark.fifth
def test_what_cannot_be_traced_is_split_by_its_parts_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = _moody()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "te=sim0&sim1,diffusion=sim0,vae=sim0")
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert torch.equal(paint(pipe, call).cpu(), eager)
        assert torch.equal(paint(pipe, call).cpu(), eager)
    said = [record.getMessage() for record in caplog.records if "text_encoder_2" in record.getMessage()]
    assert len(said) == 1
    assert "cannot be compiled whole and is compiled by its parts" in said[0]
    assert [program.program.name for program in pipe.dovetail.programs["text_encoder_2"]] == ["T5EncoderModel"]
    assert {tensor.device.index for tensor in pipe.text_encoder_2.parameters()} == {0, 1}
    assert "text_encoder_2 (te): sim0 & sim1, by its parts" in str(pipe.dovetail)


@SLOW
def test_preparing_compiles_and_loads_and_the_first_picture_does_not() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, SPREAD)
    pipe.dovetail.prepare(**{name: value for name, value in call.items() if name != "num_inference_steps"})
    before = {name: list(programs) for name, programs in pipe.dovetail.programs.items()}
    paint(pipe, call)
    assert pipe.dovetail.programs == before


@SLOW
def test_refreshing_forgets_the_programs_of_a_component_changed_by_hand() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, SPREAD)
    paint(pipe, call)
    with torch.no_grad():
        pipe.transformer.transformer_blocks = nn.ModuleList(list(pipe.transformer.transformer_blocks)[:1])
    pipe.dovetail.refresh("transformer")
    changed = paint(pipe, call)
    pipe.dovetail.undo()
    assert torch.equal(changed.cpu(), paint(pipe, call))


@SLOW
def test_other_attention_processors_compile_anew() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, "sim0")
    paint(pipe, call)
    pipe.transformer.fuse_qkv_projections()
    fused = paint(pipe, call)
    assert len(pipe.dovetail.programs["transformer"]) == 2
    pipe.dovetail.undo()
    assert torch.equal(fused.cpu(), paint(pipe, call))


@SLOW
def test_inference_mode_around_a_pipeline_changes_nothing() -> None:
    pipe, call = tiny_pipelines.sd()
    eager = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD)
    with torch.inference_mode():
        assert torch.equal(paint(pipe, call).cpu(), eager)
    assert torch.equal(paint(pipe, call).cpu(), eager)
    dovetail.undo(pipe)
    assert torch.equal(paint(pipe, call), eager)
    dovetail.undo(pipe)


@pytest.mark.slow
def test_a_pipeline_for_another_machine_says_so_when_it_is_called() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, "cuda0&cuda1", rig="cuda0=24GiB,cuda1=16GiB")
    with pytest.raises(NotHereError, match=r"was compiled for cuda0 \(24.0 GiB\), cuda1 \(16.0 GiB\)"):
        paint(pipe, call)
    assert {one.device.type for one in pipe.transformer.parameters()} == {"cpu"}
    pipe.dovetail.undo()


def test_names_that_mean_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    pipe, _ = tiny_pipelines.flux()
    with pytest.raises(SpecError, match="unett"):
        dovetail.compile_pipeline(pipe, "unett=sim0")
    with pytest.raises(UsageError, match=r"dynamic_shapes names unet; this pipeline has vae"):
        dovetail.compile_pipeline(pipe, "sim0", dynamic_shapes={"unet": {}})
    with pytest.raises(UsageError, match="give one of them"):
        dovetail.compile_pipeline(pipe, "sim0", device_map="balanced")
    with caplog.at_level(logging.WARNING, "dovetail"):
        dovetail.compile_pipeline(pipe, "sim0,controlnet=sim1")
    assert "this pipeline has no controlnet" in caplog.text


def test_a_device_map_places_components_as_diffusers_spells_it() -> None:
    pipe, _ = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, device_map={"transformer": "sim:1", "text_encoder": "sim:0", "": "sim:2"})
    assert {name: str(one.devices[0]) for name, one in pipe.dovetail.components.items()} == {
        "vae": "sim2", "text_encoder": "sim0", "text_encoder_2": "sim2", "transformer": "sim1",
    }  # fmt: skip

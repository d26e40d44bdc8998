"""Adapters of compiled pipelines: as peft applies them, beside the weights and merged, on one device and several."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.compiler.ir.part import Part, joined
from dovetail.compiler.ir.weight import Weight
from dovetail.components.compiled import CompiledModule
from dovetail.lora.updates import Update
from dovetail.runtime.store.origin import HOST, MergedOrigin, TensorOrigin
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

from ...compiler.ir.parts import Case, cases
from .tiny_loras import save_lora

FILE = "pytorch_lora_weights.safetensors"
MAKERS: Mapping[str, Callable[[], Any]] = {"flux": tiny_pipelines.flux, "sd": tiny_pipelines.sd}
PARTS = {"flux": ["transformer", "text_encoder"], "sd": ["unet", "text_encoder"]}
BACKENDS = ("sim0", "diffusion=sim0&sim1,te=sim1", "diffusion=sim0&sim1&sim2,te=sim2&sim0")
SLOW = pytest.mark.slow
SETS = ((["one"], [1.0]), (["one"], [0.4]), (["two"], [1.0]), (["one", "two"], [0.7, -0.3]))


def paint(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    """What a pipeline denoises in one step; adapters do not touch what decodes it."""
    return tiny_pipelines.paint(pipe, {**call, "num_inference_steps": 1}, "latent").cpu()  # type: ignore[no-any-return]


pytestmark = pytest.mark.usefixtures("sims")


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two LoRAs of one form for each pipeline, and one of another rank."""
    folder = tmp_path_factory.mktemp("loras")
    return {
        name: [save_lora(maker()[0], folder / f"{name}{seed}", seed, rank=6 if seed == 3 else 4) for seed in (1, 2, 3)]
        for name, maker in MAKERS.items()
    }


def with_loras(name: str, loras: Mapping[str, list[Path]]) -> tuple[Any, dict[str, Any]]:
    pipe, call = MAKERS[name]()
    load(pipe, loras[name])
    return pipe, call


def load(pipe: Any, loras: list[Path]) -> None:
    for folder, adapter in zip(loras, ("one", "two"), strict=False):
        pipe.load_lora_weights(folder, adapter_name=adapter)


def compiled(name: str, backend: str, **options: Any) -> tuple[Any, dict[str, Any], list[str]]:
    """A compiled pipeline, a call for it, and the names of what is compiled from now on."""
    pipe, call = MAKERS[name]()
    traced: list[str] = []
    note = lambda step, program, _: traced.append(program.name) if step.name == "simplify" else None  # noqa: E731
    dovetail.compile_pipeline(pipe, backend, callbacks=[note], **options)
    return pipe, call, traced


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    slow_but([("sd", BACKENDS[1])], [("flux", BACKENDS[0]), ("flux", BACKENDS[2]), ("sd", BACKENDS[1])]),
)
def test_adapters_do_what_they_do_in_eager_to_the_bit_and_exchanging_them_compiles_nothing(
    name: str, backend: str, loras: Any
) -> None:
    eager, call = with_loras(name, loras)
    pipe, _, traced = compiled(name, backend)
    plain = paint(pipe, call)
    load(pipe, loras[name])
    seen = {}
    for adapters, scales in SETS:
        eager.set_adapters(adapters, scales)
        pipe.set_adapters(adapters, scales)
        picture = paint(pipe, call)
        assert torch.equal(picture, paint(eager, call))
        assert not torch.equal(picture, plain)
        seen[tuple(adapters)] = len(traced)
    assert seen["one",] == seen["two",] < seen["one", "two"]
    pipe.unload_lora_weights()
    assert torch.equal(paint(pipe, call), plain)
    assert len(traced) == seen["one", "two"]


@pytest.mark.fifth
def test_a_factor_given_with_a_call_multiplies_the_scale_and_compiles_nothing(loras: Any) -> None:
    eager, call = with_loras("sd", loras)
    pipe, _, traced = compiled("sd", "sim0&sim1")
    load(pipe, loras["sd"])
    first, count = paint(pipe, call), len(traced)
    stronger = {**call, "cross_attention_kwargs": {"scale": 0.5}}
    assert torch.equal(paint(pipe, stronger), paint(eager, stronger))
    assert not torch.equal(paint(pipe, stronger), first)
    assert len(traced) == count


@pytest.mark.slow
def test_threads_that_call_one_program_with_other_scales_each_run_with_their_own(
    loras: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(pipe: Any, scale: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        latents, text = torch.randn(1, 4, 8, 8, generator=generator), torch.randn(1, 4, 32, generator=generator)
        with torch.no_grad():
            found = pipe.unet(latents, torch.tensor(3), text, cross_attention_kwargs={"scale": scale})
        return found.sample.cpu()  # type: ignore[no-any-return]

    def meet(program: CompiledModule, adapters: Mapping[str, torch.Tensor]) -> None:
        exchange(program, adapters)
        if threading.current_thread() is other:
            has_exchanged.set()
        else:
            other.start()
            has_exchanged.wait(1)

    eager, _ = with_loras("sd", loras)
    pipe, _, traced = compiled("sd", "sim0&sim1")
    load(pipe, loras["sd"])
    expected = {scale: answer(eager, scale) for scale in (1.0, 0.25)}
    assert not torch.equal(expected[1.0], expected[0.25])
    found = {1.0: answer(pipe, 1.0)}
    count, has_exchanged, exchange = len(traced), threading.Event(), CompiledModule.exchange
    other = threading.Thread(target=lambda: found.update({0.25: answer(pipe, 0.25)}), daemon=True)
    monkeypatch.setattr(CompiledModule, "exchange", meet)
    found[1.0] = answer(pipe, 1.0)
    other.join(60)
    assert len(traced) == count
    assert all(torch.equal(found[scale], expected[scale]) for scale in expected)


@SLOW
def test_adapters_may_be_switched_off_and_on_deleted_and_loaded_again(loras: Any) -> None:
    pipe, call, _ = compiled("flux", "sim0&sim1")
    plain = paint(pipe, call)
    load(pipe, loras["flux"])
    pipe.set_adapters(["one", "two"], [0.5, 0.5])
    both = paint(pipe, call)
    pipe.disable_lora()
    assert torch.equal(paint(pipe, call), plain)
    pipe.enable_lora()
    assert torch.equal(paint(pipe, call), both)
    pipe.delete_adapters("two")
    one = paint(pipe, call)
    pipe.delete_adapters("one")
    assert torch.equal(paint(pipe, call), plain)
    assert not torch.equal(one, both)
    pipe.unload_lora_weights()
    load(pipe, loras["flux"])
    pipe.set_adapters(["one", "two"], [0.5, 0.5])
    assert torch.equal(paint(pipe, call), both)


@SLOW
def test_an_adapter_of_another_rank_compiles_anew_and_is_right(loras: Any) -> None:
    eager, call = MAKERS["flux"]()
    pipe, _, _ = compiled("flux", "sim0&sim1")
    for one in (eager, pipe):
        one.load_lora_weights(loras["flux"][0], adapter_name="one")
        one.load_lora_weights(loras["flux"][2], adapter_name="three")
    paint(pipe, call)
    for one in (eager, pipe):
        one.set_adapters("three", 0.9)
    assert torch.equal(paint(pipe, call), paint(eager, call))


@pytest.mark.slow
def test_an_adapter_whose_weights_are_swapped_in_place_compiles_nothing(loras: Any) -> None:
    eager, call = MAKERS["flux"]()
    first, second = (load_file(folder / FILE) for folder in loras["flux"][:2])
    eager.transformer.load_lora_adapter(second, prefix="transformer", adapter_name="one")
    pipe, _, traced = compiled("flux", "sim0&sim1")
    pipe.transformer.load_lora_adapter(first, prefix="transformer", adapter_name="one")
    paint(pipe, call)
    count = len(traced)
    pipe.transformer.load_lora_adapter(second, prefix="transformer", adapter_name="one", hotswap=True)
    for number in range(3):
        assert torch.equal(paint(pipe, call), paint(eager, call))
        swap = load_file(loras["flux"][number % 2] / FILE)
        for one in (eager, pipe):
            one.transformer.load_lora_adapter(swap, prefix="transformer", adapter_name="one", hotswap=True)
    assert len(traced) == count


@pytest.mark.slow
def test_weights_of_an_adapter_that_are_written_without_a_trace_count_from_the_next_picture_on(loras: Any) -> None:
    eager, call = MAKERS["flux"]()
    pipe, _, traced = compiled("flux", "sim0&sim1")
    for one in (eager, pipe):
        load(one, loras["flux"][:1])
    paint(pipe, call)
    count = len(traced)
    for factor in (2.0, 0.25):
        for one in (eager, pipe):
            for name, parameter in one.transformer.named_parameters():
                if "lora_B" in name:
                    parameter.data.mul_(factor)
        assert torch.equal(paint(pipe, call), paint(eager, call))
    assert len(traced) == count


@SLOW
def test_a_pipeline_that_has_adapters_already_may_be_compiled(loras: Any) -> None:
    pipe, call = with_loras("flux", loras)
    eager = paint(pipe, call)
    with dovetail.compile_pipeline(pipe, "sim0&sim1").dovetail:
        assert torch.equal(paint(pipe, call), eager)
        pipe.unload_lora_weights()
        assert not torch.equal(paint(pipe, call), eager)


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("name", "backend"),
    slow_but([("flux", BACKENDS[1])], [("flux", BACKENDS[1]), ("flux", BACKENDS[2]), ("sd", BACKENDS[0])]),
)
def test_merging_gives_the_bits_of_eager_and_taking_out_those_of_before(name: str, backend: str, loras: Any) -> None:
    eager, call = with_loras(name, loras)
    pipe, _, _ = compiled(name, backend)
    plain = paint(pipe, call)
    load(pipe, loras[name])
    for one in (eager, pipe):
        one.set_adapters(["one", "two"], [0.7, -0.3])
        one.fuse_lora(components=PARTS[name], lora_scale=0.5)
    assert torch.equal(paint(pipe, call), paint(eager, call))
    assert pipe.num_fused_loras == 2
    pipe.unfuse_lora(components=PARTS[name])
    pipe.disable_lora()
    assert torch.equal(paint(pipe, call), plain)
    assert pipe.num_fused_loras == 0


@pytest.mark.fifth
def test_what_is_merged_stays_when_the_pipeline_is_undone_and_when_the_adapter_is_unloaded(loras: Any) -> None:
    pipe, call, _ = compiled("flux", "sim0&sim1")
    paint(pipe, call)
    load(pipe, loras["flux"][:1])
    pipe.fuse_lora(components=PARTS["flux"])
    merged = paint(pipe, call)
    pipe.unload_lora_weights()
    assert torch.equal(paint(pipe, call), merged)
    dovetail.undo(pipe)
    assert torch.equal(paint(pipe, call), merged)


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_weights_that_were_loaded_into_the_module_last(wide: Any) -> None:
    folder, lora = wide
    eager, call = tiny_pipelines.wide_flux()
    others = {name: tensor * 0.5 for name, tensor in eager.transformer.state_dict().items()}
    compiled = dovetail.load_pipeline(folder, "diffusion=sim0,te=cpu,vae=cpu")
    with compiled.dovetail:
        paint(compiled, call)
        for pipe in (eager, compiled):
            pipe.transformer.load_state_dict(others)
            pipe.load_lora_weights(lora, adapter_name="one")
            pipe.fuse_lora(components=["transformer"])
        assert torch.equal(paint(compiled, call), paint(eager, call))


@SLOW
def test_what_was_merged_before_compiling_cannot_be_taken_out_of_a_compiled_pipeline(loras: Any) -> None:
    pipe, call = with_loras("flux", loras)
    pipe.fuse_lora(components=["transformer"])
    eager = paint(pipe, call)
    with dovetail.compile_pipeline(pipe, "sim0&sim1").dovetail:
        assert torch.equal(paint(pipe, call), eager)
        with pytest.raises(UsageError, match="was merged before the pipeline was compiled"):
            pipe.unfuse_lora(components=["transformer"])


def test_saving_a_merged_pipeline_saves_what_eager_saves(loras: Any, tmp_path: Path) -> None:
    eager, _ = with_loras("flux", loras)
    pipe, _, _ = compiled("flux", "sim0&sim1")
    load(pipe, loras["flux"])
    for one in (eager, pipe):
        one.fuse_lora(components=["transformer"])
        one.unload_lora_weights()
    pipe.transformer.save_pretrained(tmp_path)
    saved = type(eager.transformer).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in eager.transformer.state_dict().items())


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A saved pipeline whose weights may be split by rows, and a LoRA for it."""
    folder = tmp_path_factory.mktemp("wide")
    pipe, _ = tiny_pipelines.wide_flux()
    pipe.save_pretrained(folder)
    return folder, save_lora(pipe, folder / "lora", seed=4)


@pytest.mark.parametrize(
    ("split", "rests"),
    slow_but([("row", "disk")], itertools.product(("row", "layer"), ("", "cpu", "disk"))),
)
@SLOW
def test_weights_that_are_merged_in_slices_are_those_that_are_merged_whole(split: str, rests: str, wide: Any) -> None:
    folder, lora = wide
    eager, call = tiny_pipelines.wide_flux()
    eager.load_lora_weights(lora, adapter_name="one")
    eager.set_adapters("one", 0.6)
    eager.fuse_lora(components=["transformer"])
    expected = {name.replace(".base_layer", ""): tensor for name, tensor in eager.transformer.state_dict().items()}
    options = {"split_mode": f"diffusion={split}", "params_backend": f"diffusion={rests}" if rests else None}
    pipe = dovetail.load_pipeline(
        folder, "diffusion=sim0&sim1&sim2", lora=f"{lora}:0.6", lora_apply_mode="immediately", **options
    )
    with pipe.dovetail:
        paint(pipe, call)
        view = pipe.dovetail.components["transformer"].view
        if split == "row" and not rests:
            assert any(key[0] for one in view.weights() for key in one.parts)
        whole = {one.name: _all_of(one) for one in view.weights() if ".lora_" not in one.name}
        assert all(torch.equal(whole[name], expected[name]) for name in whole)
        pipe.unfuse_lora(components=["transformer", "text_encoder"])
        pipe.unload_lora_weights()
        bare, _ = tiny_pipelines.wide_flux()
        paint(pipe, call)
        original = dict(bare.transformer.named_parameters())
        assert all(torch.equal(_all_of(one), original[one.name]) for one in view.weights() if one.name in original)


def _all_of(held: Any) -> torch.Tensor:
    """A weight in host memory, out of its slices where it is sliced."""
    parts = {key[0]: part.cpu() for key, part in (held.parts | held.staged).items() if key[0]}
    if parts:
        return joined(parts)
    return held.whole(torch.device("cpu")).detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("out", "inward", "rank"), [(300, 256, 4), (1024, 700, 64), (5, 3, 1), (129, 2048, 17)])
def test_rows_of_an_update_are_the_rows_of_the_update(out: int, inward: int, rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    update = Update(torch.randn(out, rank).to(dtype), torch.randn(rank, inward).to(dtype), 0.37)
    whole = update.part(None)
    for start, stop in ((0, 1), (1, out), (out // 3, out // 2 + 1), (out - 1, out)):
        assert torch.equal(update.part(Part(0, ((start, stop),))), whole[start:stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [(), (1, 1), (3, 3)])
@given(case=cases(least=1).filter(lambda case: len(case.shape) == 2))
def test_a_part_of_what_is_merged_is_the_part_of_the_merged_whole(
    case: Case, inner: tuple[int, ...], dtype: torch.dtype
) -> None:
    out, inward = case.shape
    downs = [torch.randn(3, inward, *inner).to(dtype) for _ in range(2)]
    updates = [Update(torch.randn(out, 3, *(1 for _ in inner)).to(dtype), down, 0.37) for down in downs]
    weight = Weight("w", "parameter", (*case.shape, *inner), dtype)
    merged = MergedOrigin(TensorOrigin(torch.randn(weight.shape).to(dtype)), updates)
    whole = merged.read(weight, HOST)
    assert torch.equal(merged.read(weight.part(case.axis, case.ranges), HOST), case.of(whole))


@SLOW
def test_adapters_that_are_no_plain_branches_are_compiled_in_and_not_merged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    eager, call = MAKERS["flux"]()
    folder = save_lora(eager, tmp_path, seed=5, parts=("transformer",), use_dora=True)
    pipe, _, _ = compiled("flux", "sim0&sim1")
    for one in (eager, pipe):
        one.load_lora_weights(folder, adapter_name="one")
        one.set_adapters("one", 0.5)
    assert torch.equal(paint(pipe, call), paint(eager, call))
    assert "compiled in as they are" in caplog.text
    for one in (eager, pipe):
        one.set_adapters("one", 0.8)
    assert torch.equal(paint(pipe, call), paint(eager, call))
    with pytest.raises(UsageError, match="cannot be merged"):
        pipe.fuse_lora(components=["transformer"])


@pytest.mark.parametrize(
    ("options", "merged"),
    [
        ({}, True),
        ({"params_backend": "cpu"}, False),
        ({"split_mode": "diffusion=row"}, False),
        ({"lora_apply_mode": "at_runtime"}, False),
        ({"split_mode": "diffusion=row", "lora_apply_mode": "immediately"}, True),
    ],
)
def test_loras_asked_for_by_name_are_merged_where_that_costs_nothing(options: Any, merged: bool, wide: Any) -> None:
    folder, lora = wide
    pipe = dovetail.load_pipeline(folder, "diffusion=sim0&sim1", lora=[f"{lora}:0.6"], **options)
    with pipe.dovetail:
        assert pipe.get_active_adapters() == ["lora"]
        assert bool(pipe.transformer.transformer_blocks[0].attn.to_q.merged_adapters) == merged


@SLOW
def test_two_loras_asked_for_by_name_act_together(wide: Any) -> None:
    folder, lora = wide
    eager, call = tiny_pipelines.wide_flux()
    for name in ("lora", "lora_0"):
        eager.load_lora_weights(lora, adapter_name=name)
    eager.set_adapters(["lora", "lora_0"], [0.6, 1.0])
    pipe = dovetail.load_pipeline(folder, "sim0", lora=[f"{lora}:0.6", lora], lora_apply_mode="at_runtime")
    with pipe.dovetail:
        assert torch.equal(paint(pipe, call), paint(eager, call))


@pytest.mark.parametrize(
    ("lora", "message", "kind"),
    [
        (
            "no/such/file.safetensors:0.5",
            r"no LoRA is at no/such/file\.safetensors: give a \.safetensors file",
            UsageError,
        ),
        ("{lora}:strong", "'strong' is no scale: write NAME:SCALE", UsageError),
        ("{lora}:nan", "'nan' is no scale", UsageError),
        (
            "{other}",
            r"has no weight for FluxPipeline \(for transformer, text_encoder\): it was made for another model",
            UsageError,
        ),
        ("{damaged}", r"damaged\.safetensors is damaged: its header would have", WeightError),
    ],
)
def test_a_lora_that_cannot_be_applied_is_one_clear_error(
    lora: str, message: str, kind: type[Exception], wide: Any, tmp_path: Path
) -> None:
    other = save_lora(tiny_pipelines.sd()[0], tmp_path / "other", seed=6, parts=("unet",))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\x10\x00\x00\x00")
    asked = lora.format(lora=wide[1], other=other, damaged=damaged)
    with pytest.raises(kind, match=message):
        dovetail.load_pipeline(wide[0], "sim0", lora=asked)


def test_another_way_to_apply_than_there_is_is_refused(wide: Any) -> None:
    with pytest.raises(UsageError, match="one of auto, immediately, at_runtime"):
        dovetail.load_pipeline(wide[0], "sim0", lora=wide[1], lora_apply_mode="now")


def test_a_pipeline_without_adapters_refuses_a_lora(wide: Any) -> None:
    pipe, _ = tiny_pipelines.PIPELINES["pixart"]()
    with pytest.raises(UsageError, match="takes no LoRA"):
        dovetail.compile_pipeline(pipe, "sim0", lora=wide[1])
    assert not hasattr(pipe, "_dovetail")

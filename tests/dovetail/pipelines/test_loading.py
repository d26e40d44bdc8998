"""Loading saved pipelines: the same weights as diffusers', read where they belong, and files that are damaged."""

from __future__ import annotations

import gc
import json
import logging
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.more_pipelines import MORE_PIPELINES
from testbed.pipelines.tiny_pipelines import PIPELINES, paint
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
ALL = {**PIPELINES, **MORE_PIPELINES}


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flux")
    tiny_pipelines.flux()[0].save_pretrained(folder)
    return folder


@pytest.fixture
def copied(flux: Path, tmp_path: Path) -> Path:
    """A folder of the same pipeline that may be damaged."""
    import shutil

    return Path(shutil.copytree(flux, tmp_path / "flux"))


def tensors(pipe: Any) -> dict[str, torch.Tensor]:
    modules = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    parts = {name: {**dict(part.named_parameters()), **dict(part.named_buffers())} for name, part in modules.items()}
    return {f"{part}.{name}": tensor for part, held in parts.items() for name, tensor in held.items()}


def assert_same(loaded: Any, expected: Any) -> None:
    own, others = tensors(loaded), tensors(expected)
    assert own.keys() == others.keys()
    for name, tensor in others.items():
        assert own[name].dtype == tensor.dtype, name
        assert own[name].stride() == tensor.stride(), name
        assert torch.equal(own[name], tensor), name


@pytest.mark.fifth
@pytest.mark.few(6, quick=3)
@pytest.mark.parametrize("dtype", slow_but([torch.float16], [None, torch.float16, torch.bfloat16]))
@pytest.mark.parametrize("name", ALL)
def test_every_weight_and_buffer_is_as_from_pretrained_has_it(
    name: str, dtype: torch.dtype | None, tmp_path: Path
) -> None:
    made, _ = ALL[name]()
    made.save_pretrained(tmp_path)
    expected = type(made).from_pretrained(tmp_path, dtype=dtype)
    pipe = dovetail.load_pipeline(tmp_path, SPREAD, dtype=dtype)
    assert isinstance(pipe, type(expected))
    assert pipe.config.keys() == expected.config.keys()
    pipe.dovetail.undo()
    assert_same(pipe, expected)
    assert {part.training for part in pipe.components.values() if isinstance(part, nn.Module)} == {False}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["flux"], ALL))
def test_a_loaded_pipeline_paints_the_picture_of_the_saved_one(name: str, tmp_path: Path) -> None:
    pipe, call = ALL[name]()
    eager = paint(pipe, call)
    pipe.save_pretrained(tmp_path)
    assert torch.equal(paint(dovetail.load_pipeline(tmp_path, SPREAD), call).cpu(), eager)


@pytest.mark.fifth
def test_loading_reads_nothing_and_each_weight_goes_straight_to_its_device(flux: Path) -> None:
    _, call = tiny_pipelines.flux()
    pipe = dovetail.load_pipeline(flux, SPREAD)
    assert sum(sim.stats(index).in_use for index in range(2)) == 0
    modules = [one.module for one in pipe.dovetail.components.values()]
    assert not any(has_numbers(tensor) for module in modules for tensor in module.parameters())
    arrived = [sim.stats(index).bytes_in for index in range(2)]
    paint(pipe, {**call, "num_inference_steps": 1})
    for index in range(2):
        placed = sum(one.assigned.bytes_on()[f"sim{index}"] for one in pipe.dovetail.components.values())
        parameters = sum(
            tensor.nbytes
            for module in modules
            for tensor in module.parameters()
            if tensor.device == torch.device("sim", index) and has_numbers(tensor)
        )
        assert arrived[index] < parameters <= placed <= sim.stats(index).bytes_in
    assert not any(map(has_numbers, pipe.vae.encoder.parameters()))


@pytest.mark.fifth
def test_where_a_pipeline_computes_is_known_before_its_first_call_and_a_component_comes_there_in_it(flux: Path) -> None:
    pipe = dovetail.load_pipeline(flux, SPREAD)
    assert pipe._execution_device == torch.device("sim", 0)
    assert pipe.text_encoder_2.device == torch.device("cpu")
    assert pipe.text_encoder_2.to("sim:1") is pipe.text_encoder_2
    with pytest.raises(UsageError, match="cannot move this component"):
        pipe.text_encoder_2.to("sim:2")
    assert pipe.transformer.dtype == torch.float32
    paint(pipe, tiny_pipelines.flux()[1])
    assert pipe.text_encoder_2.device == torch.device("sim", 1)


def test_saving_a_loaded_pipeline_saves_what_was_never_read_too(flux: Path, tmp_path: Path) -> None:
    pipe = dovetail.load_pipeline(flux, SPREAD)
    pipe.save_pretrained(tmp_path)
    assert_same(diffusers.FluxPipeline.from_pretrained(tmp_path), diffusers.FluxPipeline.from_pretrained(flux))


def test_sharded_files_load_as_one(tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.flux()
    pipe.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("transformer/*.safetensors"))) > 1
    loaded = dovetail.load_pipeline(tmp_path, "cpu")
    loaded.dovetail.undo()
    assert_same(loaded, diffusers.FluxPipeline.from_pretrained(tmp_path))


def test_a_variant_is_taken_where_there_is_one(flux: Path, copied: Path) -> None:
    pipe, _ = tiny_pipelines.flux()
    pipe.transformer.half().save_pretrained(copied / "transformer", variant="fp16")
    loaded = dovetail.load_pipeline(copied, "cpu", variant="fp16")
    loaded.dovetail.undo()
    expected = diffusers.FluxPipeline.from_pretrained(copied, variant="fp16")
    assert_same(loaded, expected)
    with pytest.raises(UsageError, match=r"no file in .* is of variant 'fp8'"):
        dovetail.load_pipeline(flux, "cpu", variant="fp8")


def test_components_may_have_dtypes_of_their_own(flux: Path) -> None:
    dtypes = {"transformer": torch.bfloat16, "default": torch.float16, "vae": torch.float32}
    pipe = dovetail.load_pipeline(flux, "cpu", dtype=dtypes)
    pipe.dovetail.undo()
    assert_same(pipe, diffusers.FluxPipeline.from_pretrained(flux, dtype=dtypes))


def test_another_pipeline_class_and_other_components_may_be_given(flux: Path) -> None:
    vae = tiny_pipelines.flux()[0].vae
    pipe = dovetail.load_pipeline(
        flux, "cpu", pipeline_class=diffusers.FluxImg2ImgPipeline, components={"vae": vae, "text_encoder": None}
    )
    assert isinstance(pipe, diffusers.FluxImg2ImgPipeline)
    assert pipe.vae is vae
    assert pipe.text_encoder is None


def _rename(path: Path, change: Callable[[str], str]) -> None:
    save_file({change(name): tensor for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


def test_names_of_older_files_are_understood(tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.sd()
    pipe.save_pretrained(tmp_path)
    older = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def with_older_attention(name: str) -> str:
        head, _, tail = name.partition("attentions.0.")
        return (
            head
            + "attentions.0." * bool(tail)
            + next((tail.replace(n, o) for n, o in older.items() if n in tail), tail)
        )

    _rename(tmp_path / "vae" / "diffusion_pytorch_model.safetensors", with_older_attention)
    _rename(tmp_path / "text_encoder" / "model.safetensors", "text_model.{}".format)
    loaded = dovetail.load_pipeline(tmp_path, "cpu")
    loaded.dovetail.undo()
    assert_same(loaded, pipe)


def test_weights_without_safetensors_are_left_to_their_library_and_it_says_so(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, _ = tiny_pipelines.flux()
    (copied / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    pipe.vae.save_pretrained(copied / "vae", safe_serialization=False)
    with caplog.at_level(logging.WARNING, "dovetail"):
        loaded = dovetail.load_pipeline(copied, "cpu")
    assert "vae is loaded by its library, through host memory: it has no safetensors file" in caplog.text
    loaded.dovetail.undo()
    assert_same(loaded, pipe)


def _header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _overlap(header: dict[str, Any]) -> None:
    names = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    header[names[1]]["data_offsets"] = [0, header[names[1]]["data_offsets"][1] - header[names[1]]["data_offsets"][0]]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "has no weights"),
    "empty": (lambda path: path.write_bytes(b""), "damaged: its header would have 0 bytes"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged: it is cut short"),
    "too long": (lambda path: path.write_bytes(path.read_bytes() + b"more"), "damaged: it is too long"),
    "no header": (lambda path: path.write_bytes(b"\xff" * 4096), "damaged: its header would have"),
    "no JSON": (lambda path: path.write_bytes(struct.pack("<Q", 64) + b"{" * 128), "its header cannot be read"),
    "a list": (lambda path: path.write_bytes(struct.pack("<Q", 2) + b"[]"), "its header cannot be read"),
    "overlap": (lambda path: _header(path, _overlap), "damaged: .* begins at byte"),
    "other shape": (
        lambda path: _header(path, lambda header: header["x_embedder.bias"].update(shape=[8, 4])),
        r"has x_embedder.bias as \[8, 4\], FluxTransformer2DModel needs \[32\]",
    ),
    "wrong size": (
        lambda path: _header(path, lambda header: header["x_embedder.bias"].update(shape=[33])),
        r"damaged: x_embedder.bias is F32\[33\] in 128 bytes",
    ),
    "negative": (
        lambda path: _header(path, lambda header: header["x_embedder.bias"].update(shape=[-32])),
        "damaged: x_embedder.bias has sizes that are no sizes",
    ),
    "unknown dtype": (
        lambda path: _header(path, lambda header: header["x_embedder.bias"].update(dtype="F3")),
        "x_embedder.bias has dtype 'F3', which is not supported",
    ),
    "lost name": (
        lambda path: _header(path, lambda header: header.update({"other": header.pop("x_embedder.bias")})),
        "lacks x_embedder.bias of FluxTransformer2DModel",
    ),
}  # fmt: skip


@pytest.mark.few(5, quick=3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_clear_error_and_nothing_is_loaded(damage: str, copied: Path) -> None:
    spoil, message = DAMAGES[damage]
    spoil(copied / "transformer" / "diffusion_pytorch_model.safetensors")
    with pytest.raises(WeightError, match=message):
        dovetail.load_pipeline(copied, SPREAD)
    gc.collect()
    assert [sim.stats(index).in_use for index in range(2)] == [0, 0]


def test_a_lost_shard_is_named(tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.flux()
    pipe.save_pretrained(tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("transformer/*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(WeightError, match=f"{shard.name} is missing"):
        dovetail.load_pipeline(tmp_path, "cpu")


def test_an_index_cannot_reach_into_other_folders(tmp_path: Path) -> None:
    pipe, _ = tiny_pipelines.flux()
    pipe.save_pretrained(tmp_path, max_shard_size="60KB")
    (listing,) = tmp_path.glob("transformer/*.index.json")
    listing.write_text(
        listing.read_text().replace('"diffusion_pytorch_model-00001', '"../vae/diffusion_pytorch_model-00001')
    )
    with pytest.raises(WeightError, match="not a file beside it"):
        dovetail.load_pipeline(tmp_path, "cpu")


@pytest.mark.slow
def test_a_file_that_shrinks_after_it_was_indexed_is_one_clear_error(copied: Path) -> None:
    _, call = tiny_pipelines.flux()
    pipe = dovetail.load_pipeline(copied, SPREAD)
    path = copied / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(WeightError, match=r"has 4096 bytes now, it had \d+: load it again"):
        paint(pipe, call)


def test_what_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder is called \./nowhere"):
        dovetail.load_pipeline("./nowhere")
    with pytest.raises(UsageError, match=r"has no model_index\.json"):
        dovetail.load_pipeline(tmp_path)
    for text, told in (("{", "is the download complete"), ("[]", "is no JSON object"), ("{}", "names no class")):
        (tmp_path / "model_index.json").write_text(text)
        with pytest.raises(WeightError, match=rf"model_index.json.* {told}"):
            dovetail.load_pipeline(tmp_path)


def test_a_repository_is_downloaded_by_diffusers(flux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def download(cls: Any, name: str, *, variant: str | None = None) -> str:
        asked.append((name, variant))
        return str(flux)

    monkeypatch.setattr(diffusers.DiffusionPipeline, "download", classmethod(download))
    assert isinstance(dovetail.load_pipeline("somebody/flux", "cpu"), diffusers.FluxPipeline)
    assert asked == [("somebody/flux", None)]


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "is the download complete"), ("{", "is the download complete"), ("[]", "is no JSON object")],
)
def test_a_config_that_is_none_is_named(copied: Path, text: str, told: str) -> None:
    (copied / "transformer" / "config.json").write_text(text)
    with pytest.raises(WeightError, match=rf"transformer/config\.json.*{told}"):
        dovetail.load_pipeline(copied)


def test_a_component_without_its_config_is_named(copied: Path) -> None:
    (copied / "transformer" / "config.json").unlink()
    with pytest.raises(WeightError, match=r"cannot read .*transformer/config\.json: No such file"):
        dovetail.load_pipeline(copied)


@pytest.mark.parametrize("entry", ["_class_name", "transformer"])
def test_a_class_that_diffusers_has_not_is_named(copied: Path, entry: str) -> None:
    listing = json.loads((copied / "model_index.json").read_text())
    listing[entry] = "NopePipeline" if entry == "_class_name" else ["diffusers", "NopeModel"]
    (copied / "model_index.json").write_text(json.dumps(listing))
    told = "the pipeline is a NopePipeline" if entry == "_class_name" else "transformer is a NopeModel"
    release = re.escape(diffusers.__version__)
    with pytest.raises(WeightError, match=rf"cannot load .*: {told}, which diffusers {release} does not have: use"):
        dovetail.load_pipeline(copied)

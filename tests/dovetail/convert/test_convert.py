"""Weights converted to another type: what each of them gets, and what is in the file afterwards."""

import json
import logging
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dovetail import demo
from dovetail.cli.app import app
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES
from dovetail.compiler.errors import DovetailError, UsageError, WeightError
from dovetail.convert import plan_conversion
from dovetail.demo.check import read
from dovetail.runtime.packing import pack

ROOT = Path(__file__).resolve().parents[3]
PLAIN = ("F32", "F16", "BF16")
PACKED = [quant for quant in QUANT_TYPES if quant not in PLAIN]
BLOCK = "blocks.0.attn.weight"


def saved(folder: Path, **tensors: torch.Tensor) -> Path:
    path = folder / "in.safetensors"
    save_file({name.replace("__", "."): tensor for name, tensor in tensors.items()}, path)
    return path


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def converted(source: Path, target: Path, quant: str, *rules: str, **more: Any) -> Path:
    plan_conversion(source, target, quant, rules, **more).run()
    return target


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def numbers(tensor: Any) -> np.ndarray:
    """What the gguf package reads from a tensor of its own."""
    return dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))


def types(folder: Path, quant: str, *rules: str, target: str = "out.gguf", **tensors: torch.Tensor) -> dict[str, str]:
    plan = plan_conversion(saved(folder, **tensors), folder / target, quant, rules)
    return {weight.name: weight.type_name for weight in plan.weights}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_the_gguf_package_reads_what_was_packed(quant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weight = normal(256, 512, dtype=dtype)
    source = saved(tmp_path, blocks__0__attn__weight=weight)
    found = tensors_of(converted(source, tmp_path / "out.gguf", quant))[BLOCK]
    assert found.tensor_type.name == quant
    wanted = dequantize(pack(weight.float().numpy(), quant), GGMLQuantizationType[quant])
    assert np.array_equal(numbers(found), wanted)


@pytest.mark.parametrize("quant", QUANT_TYPES)
@pytest.mark.parametrize("wide", PLAIN)
def test_what_was_packed_becomes_plain_again(quant: str, wide: str, tmp_path: Path) -> None:
    source = saved(tmp_path, blocks__0__attn__weight=normal(256, 512), bias=normal(7))
    packed = converted(source, tmp_path / "out.gguf", quant)
    found = load_file(converted(packed, tmp_path / "out.safetensors", wide))
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[wide]
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    assert torch.equal(found[BLOCK], torch.from_numpy(numbers(tensors_of(packed)[BLOCK]).copy()).to(dtype))
    assert torch.equal(found["bias"], normal(7).to(dtype))


def test_large_matrices_of_blocks_get_the_type_and_the_rest_what_it_needs(tmp_path: Path) -> None:
    found = types(
        tmp_path, "q4_k", blocks__0__attn__weight=normal(256, 256), blocks__0__mlp__0__weight=normal(512, 256),
        blocks__0__narrow__weight=normal(256, 128), blocks__0__bias=normal(256, dtype=torch.bfloat16),
        conv__weight=normal(64, 64, 3, 3, dtype=torch.float16), time__0__weight=normal(256, 256),
        shared__weight=normal(300, 256), double=normal(2, 2).double(), blocks__0__odd__weight=normal(256, 288),
        blocks__1__odd__weight=normal(256, 300), scale=torch.tensor(2.0), position=torch.arange(5),
        eight=normal(4, 4).to(torch.float8_e4m3fn),
    )  # fmt: skip
    assert found == {
        "blocks.0.attn.weight": "Q4_K", "blocks.0.mlp.0.weight": "Q4_K", "blocks.0.narrow.weight": "F32",
        "blocks.0.bias": "F32", "conv.weight": "F16", "time.0.weight": "Q8_0", "shared.weight": "Q8_0",
        "double": "F32", "blocks.0.odd.weight": "Q8_0", "blocks.1.odd.weight": "F16", "scale": "F32",
        "position": "int64", "eight": "BF16",
    }  # fmt: skip


def test_all_of_a_safetensors_file_gets_a_plain_type(tmp_path: Path) -> None:
    given = {"bias": normal(5), "conv": normal(2, 2, 3, 3), "ids": torch.arange(3), "matrix": normal(300, 300)}
    found = types(tmp_path, "bf16", target="out.safetensors", **given)
    assert found == {"bias": "BF16", "conv": "BF16", "ids": "int64", "matrix": "BF16"}


def test_a_rule_gives_weights_another_type_and_the_last_one_counts(tmp_path: Path) -> None:
    given = {"blocks__0__a__weight": normal(256, 256), "blocks__1__b__weight": normal(256, 256)}
    assert types(tmp_path, "q4_k", r"blocks\.\d=q6_k", "1.b=bf16", **given) == {
        "blocks.0.a.weight": "Q6_K",
        "blocks.1.b.weight": "BF16",
    }
    assert types(tmp_path, "q4_k", ".*=q5_k", small=normal(2, 100)) == {"small": "F16"}


@pytest.mark.parametrize("text", ["q4_k", "Q4_K", "q4_K"])
def test_types_are_known_in_any_case(text: str, tmp_path: Path) -> None:
    assert types(tmp_path, text, blocks__0__attn__weight=normal(256, 256)) == {BLOCK: "Q4_K"}


@pytest.mark.parametrize(("typed", "meant"), [("q4_k_m", "Q4_K"), ("fp16", "F16"), ("q8", "Q8_0"), ("iq4xs", "IQ4_XS")])
def test_the_nearest_type_is_offered(typed: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"did you mean {meant}"):
        types(tmp_path, typed, x=normal(2))


def test_weights_of_every_shape_come_back(tmp_path: Path) -> None:
    given = {
        "none": torch.tensor(3.5), "one": normal(5), "four": normal(2, 3, 4, 5), "five": normal(2, 3, 2, 3, 3),
        "empty": torch.empty(0, 4), "ids": torch.arange(6).reshape(2, 3), "small": torch.ones(3, dtype=torch.int8),
    }  # fmt: skip
    packed = converted(saved(tmp_path, **given), tmp_path / "out.gguf", "q8_0")
    assert len(tensors_of(packed)["five"].shape) == 4
    index = WeightIndex.of_file(packed)
    assert {name: index[name].shape for name in given} == {name: tuple(value.shape) for name, value in given.items()}
    back = load_file(converted(packed, tmp_path / "back.safetensors", "f32"))
    assert all(torch.equal(back[name], value) for name, value in given.items())


def test_weights_of_eight_bits_are_kept_exactly(tmp_path: Path) -> None:
    given = {"a": normal(9, 4).to(torch.float8_e4m3fn), "b": normal(9, 4).to(torch.float8_e5m2)}
    back = load_file(converted(saved(tmp_path, **given), tmp_path / "out.safetensors", "f16"))
    assert all(torch.equal(back[name], value.half()) for name, value in given.items())


def test_a_shape_that_another_converter_noted_is_the_shape_of_plain_weights(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "in.gguf", "sd1")
    weight = normal(512, 256)
    writer.add_array("comfy.gguf.orig_shape.conv", [128, 4, 16, 16])
    writer.add_array("comfy.gguf.orig_shape.narrow", [1024, 128])
    for name in ("conv", "narrow"):
        writer.add_tensor(name, pack(weight.numpy(), "Q4_K"), raw_dtype=GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    back = load_file(converted(tmp_path / "in.gguf", tmp_path / "out.safetensors", "f32"))
    assert {name: tuple(tensor.shape) for name, tensor in back.items()} == {
        "conv": (128, 4, 16, 16),
        "narrow": (1024, 128),
    }


def test_bytes_that_have_their_type_already_are_copied(tmp_path: Path) -> None:
    source = saved(tmp_path, blocks__0__attn__weight=normal(256, 256), bias=normal(3))
    once = converted(source, tmp_path / "once.gguf", "q5_k")
    twice = converted(once, tmp_path / "twice.gguf", "q5_k")
    assert once.read_bytes() == twice.read_bytes()


def test_packing_twice_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = converted(saved(tmp_path, blocks__0__attn__weight=normal(256, 256)), tmp_path / "a.gguf", "q4_k")
    with caplog.at_level(logging.WARNING, "dovetail"):
        converted(source, tmp_path / "b.gguf", "q8_0")
    assert "1 weights are packed already, blocks.0.attn.weight as Q4_K" in caplog.text


def test_a_gguf_file_says_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    fields = GGUFReader(converted(demo.folder() / "transformer", out, "q4_k")).fields
    assert fields["general.architecture"].contents() == "fluxtransformer2dmodel"
    assert fields["general.file_type"].contents() == 14
    assert fields["general.quantization_version"].contents() == 2
    assert len(GGUFReader(out).tensors) == 90
    again = GGUFReader(converted(out, tmp_path / "again.gguf", "q8_0", architecture="flux")).fields
    assert again["general.architecture"].contents() == "flux"
    assert again["general.file_type"].contents() == 7
    text = GGUFReader(converted(demo.folder() / "text_encoder", tmp_path / "text.gguf", "f16")).fields
    assert text["general.architecture"].contents() == "cliptextmodel"


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_every_type_has_its_number_in_the_metadata(quant: str, tmp_path: Path) -> None:
    plan = plan_conversion(saved(tmp_path, x=normal(2)), tmp_path / "out.gguf", quant)
    assert type(plan.metadata["general.file_type"]) is int


def test_metadata_of_a_gguf_file_are_carried_over(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "in.gguf", "sd3")
    writer.add_string("general.name", "small")
    writer.add_uint32("general.alignment", 64)
    writer.data_alignment = 64
    for key, value in {"a": True, "b": -5, "c": 2**40, "d": 0.5}.items():
        writer.add_key_value(key, value, {bool: 7, int: 11, float: 12}[type(value)])
    writer.add_array("e", [1, -2, 3])
    writer.add_tensor("x", np.ones((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    told = WeightIndex.of_file(converted(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0")).metadata
    expected = {"general.architecture": "sd3", "general.name": "small", "a": True, "b": -5, "c": 2**40, "d": 0.5}
    assert {**expected, "e": (1, -2, 3)}.items() <= told.items()
    assert "general.alignment" not in told


def test_a_checkpoint_in_several_files_becomes_one(tmp_path: Path) -> None:
    save_file({"a": normal(4)}, tmp_path / "m-1.safetensors")
    save_file({"b": normal(5)}, tmp_path / "m-2.safetensors")
    listing = tmp_path / "m.safetensors.index.json"
    listing.write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    for source in (listing, tmp_path):
        back = load_file(converted(source, tmp_path.parent / "joined.safetensors", "f32"))
        assert torch.equal(back["a"], normal(4))
        assert torch.equal(back["b"], normal(5))


def test_weights_in_a_safetensors_file_are_aligned(tmp_path: Path) -> None:
    source = saved(tmp_path, a=torch.ones(3, dtype=torch.int8), b=normal(3), c=torch.arange(3))
    out = converted(source, tmp_path / "out.safetensors", "f16")
    for entry in WeightIndex.of_file(out).values():
        assert entry.pieces[0].start % entry.dtype.itemsize == 0
    with safe_open(out, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.fifth
def test_memory_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    """Of sixteen weights of 8 MiB each, no more are held than of one."""
    weight = normal(1024, 2048)
    save_file({f"blocks.{index}.attn.weight": weight + index for index in range(16)}, tmp_path / "in.safetensors")
    save_file({"blocks.0.attn.weight": weight}, tmp_path / "one.safetensors")
    code = (
        "import resource, sys\n"
        "from dovetail.convert import plan_conversion\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"def convert(name): plan_conversion('{tmp_path}/' + name, '{tmp_path}/out.gguf', 'q8_0').run()\n"
        "convert('one.safetensors'); one = peak(); convert('in.safetensors'); print(peak() - one)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(result.stdout) * 1024 < 16 * 2**20, result.stdout


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A source, and a target that is there already."""
    saved(tmp_path, **{f"w{index}": normal(64, 64) for index in range(8)})
    (tmp_path / "out.gguf").write_text("what was there before")
    return tmp_path


def left_alone(folder: Path) -> bool:
    names = sorted(path.name for path in folder.iterdir())
    return names == ["in.safetensors", "out.gguf"] and (folder / "out.gguf").read_text() == "what was there before"


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left on device"), ValueError("odd")])
def test_what_goes_wrong_midway_leaves_nothing_and_replaces_nothing(taken: Path, problem: BaseException) -> None:
    def fail() -> None:
        raise problem

    with pytest.raises(DovetailError if isinstance(problem, OSError) else type(problem)):
        plan_conversion(taken / "in.safetensors", taken / "out.gguf", "q8_0").run(fail)
    assert left_alone(taken)


@pytest.mark.parametrize("target", ["out.gguf", "out.safetensors"])
def test_a_file_that_cannot_grow_is_one_clear_error(taken: Path, target: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DovetailError, match=rf"cannot write .*{target}.* free there: nothing of it was kept"):
            plan_conversion(taken / "in.safetensors", taken / target, "f32").run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left_alone(taken)


def test_a_full_disk_is_seen_before_anything_is_written(taken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DovetailError, match=r"out.gguf needs 128.0 KiB, and its disk has 1000 B free"):
        plan_conversion(taken / "in.safetensors", taken / "out.gguf", "f32").run()
    assert left_alone(taken)


def test_a_source_that_changes_meanwhile_is_refused(taken: Path) -> None:
    plan = plan_conversion(taken / "in.safetensors", taken / "out.gguf", "f16")
    data = (taken / "in.safetensors").read_bytes()
    (taken / "in.safetensors").write_bytes(data[:-100])
    with pytest.raises(WeightError, match=r"in\.safetensors has"):
        plan.run()
    assert left_alone(taken)


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), 1e30])
def test_numbers_that_a_type_cannot_hold_are_named_with_their_weight(strange: float, tmp_path: Path) -> None:
    weight = normal(256, 256)
    weight[200, 3] = strange
    source = saved(tmp_path, blocks__0__attn__weight=weight)
    with pytest.raises(WeightError, match=r"blocks.0.attn.weight: it holds numbers"):
        converted(source, tmp_path / "out.gguf", "q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_the_source_is_never_written_to(taken: Path) -> None:
    (taken / "link.safetensors").symlink_to(taken / "in.safetensors")
    for target in ("in.safetensors", "link.safetensors"):
        with pytest.raises(UsageError, match="is what is to be converted"):
            plan_conversion(taken / "in.safetensors", taken / target, "f16")


def test_a_dtype_that_gguf_does_not_have_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(WeightError, match="mask is bool, which GGUF has no type for"):
        converted(source, tmp_path / "out.gguf", "f16")
    assert load_file(converted(source, tmp_path / "out.safetensors", "f16"))["mask"].all()


def test_sources_that_are_none_say_what_would_be_one(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    save_file({}, tmp_path / "empty.safetensors")
    (tmp_path / "model.bin").write_bytes(b"")
    expected = {
        "missing": "there is no .*missing",
        "model.bin": "pickle",
        "none": "no safetensors or GGUF file",
        "empty.safetensors": "holds no weights: there is nothing to convert",
    }
    for source, message in expected.items():
        with pytest.raises(DovetailError, match=message):
            plan_conversion(tmp_path / source, tmp_path / "out.gguf", "f16")
    with pytest.raises(UsageError, match=r"whole pipeline: convert one component at a time .*transformer, vae"):
        plan_conversion(demo.folder(), tmp_path / "out.gguf", "f16")


def test_a_target_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*missing"):
        plan_conversion(saved(tmp_path, x=normal(2)), tmp_path / "missing" / "out.gguf", "f16")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["convert", *words])


def test_the_command_says_what_became_of_the_weights(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    source = str(demo.folder() / "transformer")
    result = run(source, "-o", str(out), "--type", "q4_k")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"{out}: 10.9 MiB → 3.4 MiB"
    assert [line.split(maxsplit=4) for line in lines[1:3]] == [
        ["type", "weights", "size", "why"],
        ["Q4_K", "32", "2.8", "MiB", "as asked"],
    ]
    assert "outside the blocks" in result.stdout
    told = json.loads(run(source, "-o", str(out), "--type", "q4_k", "--json").stdout)
    assert told["file"] == str(out)
    assert told["bytes_after"] == sum(group["bytes"] for group in told["types"])
    assert sum(group["weights"] for group in told["types"]) == 90


def test_rules_may_be_listed_as_stable_diffusion_cpp_has_them(tmp_path: Path) -> None:
    source, out = str(demo.folder() / "transformer"), str(tmp_path / "out.gguf")
    result = run(source, "-o", out, "--type", "q8_0", "--tensor-type-rules", r"attn\..*weight=q6_k,proj_mlp.w=q4_0")
    assert result.exit_code == 0, result.stderr
    assert {"Q6_K", "Q4_0", "Q8_0"} < {tensor.tensor_type.name for tensor in GGUFReader(out).tensors}


def test_the_command_refuses_what_is_typed_wrongly(tmp_path: Path) -> None:
    source = str(saved(tmp_path, x=normal(2)))
    for words in (
        [source, "-o", str(tmp_path / "out.bin"), "--type", "q8_0"],
        [source, "-o", str(tmp_path / "out.safetensors"), "--type", "q8_0"],
        [source, "-o", str(tmp_path / "missing" / "out.gguf"), "--type", "q8_0"],
        [source, "-o", str(tmp_path / "out.gguf"), "--type", "q8_0", "--tensor-type", "x"],
        [source, "-o", str(tmp_path / "out.gguf"), "--type", "q8_0", "--tensor-type", "(=f16"],
        [source, "-o", str(tmp_path / "out.gguf"), "--type", "q8_0", "--tensor-type", "y=f16"],
        [source, "-o", str(tmp_path / "out.gguf")],
    ):
        result = run(*words)
        assert result.exit_code == 2, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
def test_a_packed_demo_still_paints_what_it_is_told(quant: str, tmp_path: Path) -> None:
    packed = converted(demo.folder() / "transformer", tmp_path / "packed.gguf", quant)
    words = ["a red circle above a blue square", "--weights", f"transformer={packed}", "-o", str(tmp_path / "out.png")]
    result = CliRunner().invoke(app, ["generate", *words])
    assert result.exit_code == 0, result.stderr
    seen = read(np.asarray(Image.open(tmp_path / "out.png")))
    assert seen is not None
    assert "a red circle above a blue square" in seen.captions()

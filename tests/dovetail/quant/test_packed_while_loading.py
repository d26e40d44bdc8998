"""Weights that are packed while they are loaded: what they become, where they are kept, when they are packed anew."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dovetail
from dovetail import demo
from dovetail.cli.app import app
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.errors import DovetailError, UsageError
from dovetail.convert import conversion, plan_conversion
from dovetail.convert.worker import Worker
from dovetail.quant import kept, read_quant
from dovetail.quant.asked import PACKED, by_component
from dovetail.runtime.packing import pack

FILE = "diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, of which the weights lie in `weights`."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the weights that were packed, one after another."""
    found: list[str] = []
    own = Worker.convert

    def counted(self: Worker, weight: Any) -> Any:
        found.append(weight.name)
        return own(self, weight)

    monkeypatch.setattr(Worker, "convert", counted)
    return found


def loaded(quant: Any = "transformer=q8_0", folder: Path | None = None, **options: Any) -> Any:
    return dovetail.load_pipeline(folder or demo.folder(), "cpu", quant=quant, **options)


def numbers(pipe: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pipe.transformer.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the demo that may be written to."""
    return Path(shutil.copytree(demo.folder(), tmp_path / "model"))


@pytest.mark.fifth
@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
def test_what_is_packed_while_loading_is_what_convert_packs(quant: str, tmp_path: Path) -> None:
    file = tmp_path / "whole.gguf"
    plan_conversion(demo.folder() / "transformer", file, quant).run()
    expected = numbers(dovetail.load_pipeline(demo.folder(), "cpu", weights={"transformer": file}))
    assert same(numbers(loaded({"transformer": quant})), expected)
    assert not same(numbers(loaded(None)), expected)


def test_the_second_start_packs_nothing_and_a_source_that_was_written_anew_is_packed_anew(
    copied: Path, cache: Path, packs: list[str]
) -> None:
    first = numbers(loaded(folder=copied))
    count = len(packs)
    assert count > 0
    assert same(numbers(loaded(folder=copied)), first)
    assert len(packs) == count
    source = copied / "transformer" / FILE
    held = load_file(source)
    save_file({name: (tensor * 2 if "ff" in name else tensor) for name, tensor in held.items()}, source)
    assert not same(numbers(loaded(folder=copied)), first)
    assert len(packs) == 2 * count
    assert len(list((cache / "weights").glob("*.gguf"))) == 2
    assert {file.stat().st_mode & 0o077 for file in (cache / "weights").glob("*.gguf")} == {0}


def test_a_kept_file_that_is_damaged_is_packed_anew(cache: Path, packs: list[str]) -> None:
    first, count = numbers(loaded()), len(packs)
    (file,) = (cache / "weights").glob("*.gguf")
    file.write_bytes(file.read_bytes()[:-100])
    assert same(numbers(loaded()), first)
    assert len(packs) == 2 * count


@pytest.mark.parametrize("quant", ["q8_0", "f8"])
def test_kept_data_that_was_overwritten_is_seen_and_packed_anew(
    quant: str, cache: Path, packs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, count = numbers(loaded(f"transformer={quant}")), len(packs)
    (file,) = (cache / "weights").glob("*.gguf")
    whole = file.read_bytes()
    file.write_bytes(whole[:-8192] + bytes(8192))
    assert same(numbers(loaded(f"transformer={quant}")), first)
    assert caplog.text.count("not what was packed there") == 1
    assert (len(packs), file.read_bytes()) == (2 * count, whole)


@pytest.mark.fifth
def test_a_kept_file_of_another_type_under_the_same_key_is_packed_anew(cache: Path, packs: list[str]) -> None:
    first, count = numbers(loaded()), len(packs)
    file, known = ({one.suffix: one for one in (cache / "weights").iterdir()}[end] for end in (".gguf", ".known"))
    loaded("transformer=q4_0")
    other = next(one for one in (cache / "weights").glob("*.gguf") if one != file)
    shutil.copy(other, file)
    shutil.copy(other.with_suffix(".known"), known)
    packs.clear()
    assert same(numbers(loaded()), first)
    assert len(packs) == count


def _full(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(conversion, "_free", lambda target: 0)


def _off(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "0")


def _no_folder(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.write_text("")


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("broken", "why"), [(_full, "0 B free"), (_off, "DOVETAIL_CACHE switches"), (_no_folder, "cache")]
)
def test_where_nothing_can_be_kept_that_is_said_and_weights_are_packed_into_memory(
    broken: Callable[[pytest.MonkeyPatch, Path], None], why: str,
    monkeypatch: pytest.MonkeyPatch, cache: Path, caplog: pytest.LogCaptureFixture, packs: list[str],
) -> None:  # fmt: skip
    expected = numbers(loaded())
    monkeypatch.setattr(kept, "_in_memory", {})
    shutil.rmtree(cache)
    broken(monkeypatch, cache)
    assert same(numbers(loaded()), expected)
    assert "not kept" in caplog.text
    assert why in caplog.text
    count = len(packs)
    assert same(numbers(loaded()), expected)  # what is in memory is taken again
    assert len(packs) == count


def test_without_room_anywhere_loading_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(kept, "_in_memory", {})
    _full(monkeypatch, cache)
    monkeypatch.setattr(kept, "probe_host", lambda: (0, 0))
    with pytest.raises(DovetailError, match="DOVETAIL_CACHE_DIR"):
        loaded()


def test_where_memory_cannot_be_written_either_loading_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def failing(self: conversion.Conversion, path: Path, advance: Callable[[], object]) -> None:
        raise OSError("417792 requested and 394176 written")  # as numpy has it

    monkeypatch.setattr(kept, "_in_memory", {})
    monkeypatch.setattr(conversion.Conversion, "write_to", failing)
    with pytest.raises(DovetailError, match=r"written to memory either: 417792 requested.*DOVETAIL_CACHE_DIR"):
        loaded()


def test_two_that_pack_the_same_at_once_pack_it_once(cache: Path, packs: list[str], tmp_path: Path) -> None:
    plan = plan_conversion(demo.folder() / "transformer", tmp_path / "out.gguf", "q8_0")
    weights = [one for one in plan.weights if one.quant == "Q8_0"]
    key = kept.key_of(weights)
    found: list[WeightIndex] = []
    threads = [
        threading.Thread(target=lambda: found.append(kept.made(key, "a model", weights, lambda: None)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [index.where for index in found] == [cache / "weights" / f"{key}.gguf"] * 3
    assert len(packs) == len(weights)


def test_drafts_of_a_process_that_was_killed_are_removed_by_the_next(cache: Path) -> None:
    loaded()
    (file,) = (cache / "weights").glob("*.gguf")
    draft = file.with_name(f".0123456789abcdef.{file.name}")
    draft.write_bytes(b"half")
    file.unlink()
    loaded()
    assert not draft.exists()
    assert file.exists()


def test_names_roles_and_types_are_read_as_they_are_typed() -> None:
    assert read_quant("transformer=q8_0, te=F8") == {"transformer": "Q8_0", "te": "F8_E4M3"}
    own = ["text_encoder", "text_encoder_2", "transformer", "vae"]
    assert by_component({"te": "Q8_0", "text_encoder_2": "Q4_K"}, own) == {
        "text_encoder": "Q8_0",
        "text_encoder_2": "Q4_K",
    }


@pytest.mark.parametrize(
    "given",
    ["dit=q4_k,unet=q8_0", "transformer=q8_0,dit=q4_k", "dit=q4_k,transformer=q8_0", "te=f8,clip=q8_0,text_encoder=f8"],
)
def test_a_type_that_no_component_would_have_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"both mean (transformer|text_encoder_2), and say .* one type"):
        by_component(read_quant(given), ["text_encoder", "text_encoder_2", "transformer"])


def test_names_of_one_component_that_agree_are_no_contradiction() -> None:
    assert by_component(read_quant("dit=q8_0,unet=q8_0,transformer=q8_0"), ["transformer"]) == {"transformer": "Q8_0"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("transformer=q4k", ("did you mean q4_", "q8_0", "f8")),
        ("transformer=zz", ("there are f8, q8_0",)),
        ("transformer=bf16", ("no weights are packed in 'bf16'",)),
        ("transformer", ("NAME=TYPE",)),
        ("transformer=q8_0,transformer=q4_k", ("twice",)),
        ("transfrmer=q8_0", ("did you mean 'transformer'",)),
        ("upscaler=q8_0", ("text_encoder_2",)),
    ],
)
def test_what_cannot_be_packed_is_said_with_what_can(given: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        loaded(given)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_what_is_packed_already_is_not_packed_again(tmp_path: Path) -> None:
    file = tmp_path / "packed.gguf"
    plan_conversion(demo.folder() / "transformer", file, "q8_0").run()
    with pytest.raises(UsageError, match=r"packed already.*leave out transformer=q4_k"):
        loaded("transformer=q4_k", weights={"transformer": file})


def test_numbers_that_a_type_cannot_hold_are_named(copied: Path) -> None:
    source = copied / "transformer" / FILE
    held = load_file(source)
    name = next(name for name in held if "ff.net.0.proj.weight" in name)
    save_file({**held, name: held[name] / 0}, source)
    with pytest.raises(DovetailError, match=f"transformer cannot be packed as f8: {name}"):
        loaded("transformer=f8", folder=copied)


def test_a_component_with_nothing_to_pack_is_loaded_as_it_is(caplog: pytest.LogCaptureFixture, cache: Path) -> None:
    loaded("vae=q8_0")
    assert "no weight of vae is packed" in caplog.text
    assert not list((cache / "weights").glob("*.gguf"))


def test_the_cache_command_lists_and_removes_packed_weights(cache: Path) -> None:
    loaded()
    listed = CliRunner().invoke(app, ["cache", "list"])
    assert "FluxTransformer2DModel Q8_0" in listed.stdout
    CliRunner().invoke(app, ["cache", "clear"])
    assert not list((cache / "weights").glob("*.gguf"))


@pytest.mark.fifth
def test_clearing_the_cache_takes_nothing_from_who_has_loaded(cache: Path) -> None:
    def painted(clears: bool) -> Any:
        pipe = loaded("transformer=q8_0,te=f8", dtype=torch.bfloat16)
        if clears:
            kept.clear()
            assert not list((cache / "weights").glob("*.gguf"))
        seed = torch.Generator().manual_seed(0)
        return pipe("a cat", num_inference_steps=1, height=64, width=64, generator=seed, output_type="np").images

    assert np.array_equal(painted(clears=False), painted(clears=True))


def test_what_packers_make_of_numbers_is_that_of_their_version() -> None:
    """Where this fails because a packer was changed, `kept.PACKER` and the digest here become new ones."""
    values = np.linspace(-3, 3, 4 * 512, dtype=np.float32).reshape(4, 512)
    digest = hashlib.sha256()
    for quant in PACKED:
        digest.update(pack(values, quant).tobytes())
    assert (kept.PACKER, digest.hexdigest()[:16]) == (1, "a0e6900080f4a095")


def test_one_module_is_packed_out_of_its_files_alone(packs: list[str]) -> None:
    layer, x = torch.nn.Linear(256, 256).eval(), torch.ones(1, 256)
    with pytest.raises(UsageError, match=r"quant='q8_0' packs weights in files: name these too \(weights=…\)"):
        dovetail.compile(layer, (x,), quant="q8_0")


@pytest.mark.fifth
def test_the_command_line_packs_what_it_is_told_to(packs: list[str], tmp_path: Path) -> None:
    words = ["generate", "a red circle", "--steps", "1", "--backend", "cpu", "--quant", "transformer=q8_0,te=f8"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out.png")])
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "out.png").exists()
    assert {name.partition(".")[0] for name in packs} >= {"transformer_blocks", "encoder"}

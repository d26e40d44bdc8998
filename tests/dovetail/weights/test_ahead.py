"""Which files of a saved pipeline are read ahead: those that it will be loaded from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.weights import ahead


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = {
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors": 50,
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors": 40,
        "transformer/diffusion_pytorch_model.fp16-00001-of-00001.safetensors": 45,
        "vae/diffusion_pytorch_model.safetensors": 10,
        "vae/config.json": 3,
        "text_encoder/model.safetensors": 20,
        "text_encoder/model.fp16.safetensors": 11,
        "text_encoder/other.safetensors": 30,
        "tokenizer/vocab.json": 1,
    }
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    return tmp_path


def names(files: list[Path]) -> list[str]:
    return [f"{file.parent.name}/{file.stat().st_size}" for file in files]


def test_small_components_come_first(folder: Path) -> None:
    assert names(ahead.files_of(folder)) == ["vae/10", "text_encoder/20", "transformer/50", "transformer/40"]


def test_of_a_variant_its_own_files_are_read_and_plain_ones_where_it_has_none(folder: Path) -> None:
    assert names(ahead.files_of(folder, "fp16")) == ["vae/10", "text_encoder/11", "transformer/45"]


def test_components_that_come_from_elsewhere_are_left(folder: Path) -> None:
    assert names(ahead.files_of(folder, None, {"transformer"})) == ["vae/10", "text_encoder/20"]


def test_files_larger_than_half_of_the_free_memory_are_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ahead, "warm", lambda files, most: asked.append(most))
    monkeypatch.setattr(ahead, "probe_host", lambda: (1000, 200))
    ahead.read_ahead(folder)
    ahead.read_ahead("somebody/model")
    assert asked == [100]

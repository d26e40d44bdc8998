"""Memory that runs out during a call though the plan fits, and calls that go on from their latents."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.recovery.latents import Latents, beside, read_latents, save_latents
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from .injected import Injected

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "unet=sim0&sim1,te=sim1,vae=sim0"


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def sd(size: int = 32) -> tuple[Any, dict[str, Any]]:
    pipe, call = tiny_pipelines.sd()
    return pipe, {**call, "height": size, "width": size, "num_inference_steps": 2}


@pytest.mark.slow
def test_a_component_that_runs_out_goes_on_block_by_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, call = sd()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB")
    paint(pipe, call)
    injected = Injected(monkeypatch)
    unet = pipe.dovetail.components["unet"]
    injected.fails = lambda _: bool(unet.view._users) and not unet.streams
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert torch.equal(paint(pipe, call).cpu(), expected)
    assert [one.getMessage() for one in caplog.records if "unet ran out of memory" in one.getMessage()]
    assert unet.streams
    injected.fails = lambda _: False
    assert torch.equal(paint(pipe, call).cpu(), expected)
    assert not unet.streams
    injected.fails = lambda _: bool(unet.view._users)
    with pytest.raises(DoesNotFitError):
        paint(pipe, call)
    assert not unet.streams
    injected.fails = lambda _: False
    assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.fifth
def test_a_vae_that_runs_out_decodes_in_tiles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, call = sd(64)
    dovetail.compile_pipeline(pipe, SPREAD, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB")
    injected = Injected(monkeypatch)
    vae = pipe.dovetail.components["vae"]
    injected.fails = lambda _: vae.is_decoding
    with caplog.at_level(logging.WARNING, "dovetail"):
        found = paint(pipe, call)
    assert found.shape[-1] == 64
    assert sum("decodes in tiles" in one.getMessage() for one in caplog.records) == 1
    assert not pipe.vae.use_tiling


@pytest.mark.fifth
def test_latents_survive_a_decode_that_fails_and_give_the_same_picture(tmp_path: Path) -> None:
    pipe, call = sd()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB")
    pipe.dovetail.plan(**call, output_type="pt")
    original = type(pipe.vae)._decode
    broken = pytest.MonkeyPatch()
    broken.setattr(pipe.dovetail.components["vae"], "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        paint(pipe, call)
    broken.undo()
    assert type(pipe.vae)._decode is original
    file = save_latents(beside(tmp_path / "out.png"), Latents(pipe.dovetail.latents, "StableDiffusionPipeline", call))
    read = read_latents(file)
    assert read.call["height"] == 32
    before = {name: len(one.programs) for name, one in pipe.dovetail.components.items()}
    generator = torch.Generator().manual_seed(0)
    found = pipe.dovetail.go_on(read.tensors, **call, output_type="pt", generator=generator, return_dict=False)[0]
    assert torch.equal(found.cpu(), expected)
    assert {name: len(one.programs) for name, one in pipe.dovetail.components.items()} == before
    with pytest.raises(UsageError, match="give the size"):
        pipe.dovetail.go_on(read.tensors, **{**call, "height": 64})


@pytest.mark.fifth
def test_what_a_loop_written_by_hand_decodes_is_let_go_of() -> None:
    pipe, _ = sd()
    dovetail.compile_pipeline(pipe, SPREAD, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB")
    given = []
    for _ in range(3):
        latents = torch.randn(1, 4, 8, 8).to("sim:1")
        given.append(weakref.ref(latents))
        with torch.no_grad():
            pipe.vae.decode(latents)
    del latents
    assert [one for one in given if one() is not None] == []
    assert pipe.dovetail.latents == {}


@pytest.mark.fifth
def test_a_file_that_holds_no_latents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="cannot read latents"):
        read_latents(tmp_path / "a.safetensors")

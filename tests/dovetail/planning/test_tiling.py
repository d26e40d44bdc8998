"""Tiles of VAEs: asked for by hand, or taken by a plan where the whole does not fit."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning import making
from dovetail.planning.draft import Draft
from dovetail.planning.lowered import lowered
from dovetail.planning.tiling import Tile, candidates, parse_tiling, settings, tile_vae
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

pytestmark = pytest.mark.usefixtures("clean_sims")

SMALL = {"backend": "unet=sim0,te=sim0,vae=sim1", "rig": "sim0=512MiB,sim1=1MiB,cpu=8GiB"}


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def sd(size: int = 128) -> tuple[Any, dict[str, Any]]:
    pipe, call = tiny_pipelines.sd()
    return pipe, {**call, "height": size, "width": size, "num_inference_steps": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "auto"), (True, "on"), ("OFF", "off"), ("512", Tile(512, 512)), ("512x384x16", Tile(384, 512, 16))],
)
def test_tiling_is_read_as_people_type_it(text: Any, expected: Any) -> None:
    assert parse_tiling(text) == expected


@pytest.mark.parametrize("text", ["big", "0", "5x", "512x0"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="VAE tiling"):
        parse_tiling(text)


@pytest.mark.slow
def test_a_plan_takes_the_largest_tiles_that_fit_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = sd()
    dovetail.compile_pipeline(pipe, **SMALL)
    with caplog.at_level(logging.WARNING, "dovetail"):
        plan = pipe.dovetail.plan(**call)
    assert plan is not None
    tile = plan.tiles["vae"]
    assert 16 <= tile.height < 128
    assert sum("decodes in tiles" in record.getMessage() for record in caplog.records) == 1
    larger = [one for one in candidates(pipe.vae, (1, 4, 64, 64)) if one.height > tile.height]
    pipe.dovetail.undo()
    if larger:
        refusing = dovetail.compile_pipeline(pipe, **SMALL, vae_tiling=larger[-1])
        with pytest.raises(DoesNotFitError):
            refusing.dovetail.plan(**call)
        refusing.dovetail.undo()


@pytest.mark.slow
def test_a_search_takes_tiles_where_the_whole_fits_on_the_host_alone_and_takes_much_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds, places = {}, {}
    for asked in ("off", "auto"):
        pipe, call = sd(256)
        call["num_inference_steps"] = 1
        handle = DryPipeline(pipe, {"rig": "cuda0=2926KiB,cpu=16GiB"}, vae_tiling=asked)
        with caplog.at_level(logging.WARNING, "dovetail"):
            plan = handle.plan(**call)
        assert plan is not None
        assert handle.decision is not None
        seconds[asked] = handle.decision.solution.seconds
        places[asked] = [str(device) for device in handle.components["vae"].devices]
        assert bool(plan.tiles) == (asked == "auto")
        assert ("decodes in tiles" in caplog.text) == (asked == "auto")
    assert "cpu" in places["off"]
    assert seconds["auto"] <= 0.8 * seconds["off"]


@pytest.mark.slow
def test_tiles_that_turn_out_not_to_fit_are_followed_by_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Tile] = []

    def lower(handle: Any, run: Any, draft: Draft) -> Any:
        tile = draft.plan.tiles.get("vae")
        if tile is not None and (not refused or tile in refused):
            refused.append(tile)
            return DoesNotFitError("injected")
        return lowered(handle, run, draft)

    monkeypatch.setattr(making, "lowered", lower)
    pipe, call = sd(256)
    handle = DryPipeline(pipe, {"rig": "cuda0=2926KiB,cpu=16GiB"})
    plan = handle.plan(**{**call, "num_inference_steps": 1})
    assert plan is not None
    assert len(set(refused)) == 1
    assert plan.tiles["vae"].height < refused[0].height


@pytest.mark.slow
def test_the_picture_in_tiles_is_that_of_diffusers_in_these_tiles() -> None:
    pipe, call = sd()
    dovetail.compile_pipeline(pipe, **SMALL)
    plan = pipe.dovetail.plan(**call)
    assert plan is not None
    found = paint(pipe, call).cpu()
    assert not pipe.vae.use_tiling
    pipe.dovetail.undo()
    tile_vae(pipe.vae, plan.tiles["vae"])
    assert torch.equal(found, paint(pipe, call))


@pytest.mark.slow
def test_a_smaller_picture_afterwards_is_decoded_whole() -> None:
    pipe, call = sd()
    small = {**call, "height": 32, "width": 32}
    expected = paint(pipe, small)
    dovetail.compile_pipeline(pipe, **SMALL)
    paint(pipe, call)
    assert torch.equal(paint(pipe, small).cpu(), expected)
    pipe.dovetail.undo()


@pytest.mark.slow
def test_tiling_that_is_off_refuses() -> None:
    pipe, call = sd()
    dovetail.compile_pipeline(pipe, **SMALL, vae_tiling="off")
    with pytest.raises(DoesNotFitError, match="vae needs at least"):
        pipe(**call)
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_tiles_by_hand_are_taken_and_undone() -> None:
    pipe, call = sd(64)
    before = settings(pipe.vae)
    dovetail.compile_pipeline(pipe, "sim0", vae_tiling="32")
    with pipe.dovetail:
        plan = pipe.dovetail.plan(**call)
        assert plan is not None
        assert {one.title for one in plan.calls} >= {"vae.decoder"}
    assert settings(pipe.vae) == before


def test_tiles_of_a_video_keep_the_proportion_of_their_strides() -> None:
    vae = SimpleNamespace(
        enable_tiling=None, use_tiling=False, spatial_compression_ratio=32, temporal_compression_ratio=8,
        use_framewise_decoding=False, tile_sample_min_height=512, tile_sample_min_width=512,
        tile_sample_min_num_frames=16, tile_sample_stride_height=448, tile_sample_stride_width=448,
        tile_sample_stride_num_frames=8,
    )  # fmt: skip
    tile_vae(vae, Tile(256, 320, 32))
    assert (vae.tile_sample_min_height, vae.tile_sample_stride_height) == (256, 224)
    assert (vae.tile_sample_min_width, vae.tile_sample_stride_width) == (320, 256)
    assert (vae.tile_sample_min_num_frames, vae.tile_sample_stride_num_frames) == (32, 16)
    assert vae.use_framewise_decoding


@pytest.mark.fifth
def test_a_vae_of_one_size_takes_square_tiles() -> None:
    vae = diffusers.AutoencoderKL(block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, sample_size=64)
    tile_vae(vae, Tile(48, 64))
    assert (vae.use_tiling, vae.tile_latent_min_size, vae.tile_sample_min_size) == (True, 24, 48)

"""Caches of steps that dovetail puts on: equal to diffusers' own in eager, foreseen as a range, and taken off again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail import demo
from dovetail.addons.step_cache import read_cache
from dovetail.compiler.errors import UsageError
from dovetail.conventions import libraries
from dovetail.pipelines.dryrun import DryPipeline
from testbed.pipelines import more_pipelines, tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
CONFIGS: dict[str, Callable[[], Any]] = {
    "first_block:0.12": lambda: diffusers.FirstBlockCacheConfig(threshold=0.12),
    "taylorseer:2": lambda: diffusers.TaylorSeerCacheConfig(cache_interval=2),
}


def painter() -> tuple[Any, dict[str, Any]]:
    """The demo, whose weights are trained."""
    pipe = diffusers.FluxPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    for part in (pipe.transformer, pipe.vae, pipe.text_encoder, pipe.text_encoder_2):
        for weight in part.parameters():  # those of a mapped file are not aligned, and round otherwise
            weight.data = weight.data.clone()
    return pipe, {"prompt": "a red circle", **demo.CALL_DEFAULTS}


CASES = [
    (tiny_pipelines.ltx, "first_block:0.12", 4),
    (tiny_pipelines.wan, "first_block:0.12", 4),
    (painter, "first_block:0.12", 16),
    (tiny_pipelines.flux, "taylorseer:2", 6),
    (more_pipelines.qwen, "taylorseer:2", 6),
]
"""Pipelines in which a cache leaves something out after so many steps."""


@pytest.mark.fifth
@pytest.mark.parametrize(("maker", "cache", "steps"), slow_but(CASES[:1], CASES))
def test_a_cache_computes_what_diffusers_hooks_compute_in_eager(
    maker: Callable[[], Any], cache: str, steps: int
) -> None:
    pipe, call = maker()
    call = {**call, "num_inference_steps": steps}
    eager = copy.deepcopy(pipe)
    plain = paint(eager, call)
    eager.transformer.enable_cache(CONFIGS[cache]())
    cached = paint(eager, call)
    assert not torch.equal(cached, plain)
    dovetail.compile_pipeline(pipe, SPREAD, cache=cache)
    assert [torch.equal(paint(pipe, call).cpu(), cached) for _ in range(2)] == [True, True]
    pipe.dovetail.undo()
    assert not pipe.transformer.is_cache_enabled
    assert torch.equal(paint(pipe, call), plain)


def ltx() -> tuple[Any, dict[str, Any]]:
    """A pipeline whose first block changes by little at the second of four steps."""
    pipe, call = tiny_pipelines.ltx()
    return pipe, {**call, "num_inference_steps": 4}


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("maker", "cache", "least"),
    slow_but(
        [(tiny_pipelines.ltx, "first_block:100", (1, 4))],
        [(tiny_pipelines.ltx, "first_block:100", (1, 4)), (tiny_pipelines.flux, "taylorseer:2", (15, 20))],
    ),
)
def test_a_plan_computes_all_steps_and_says_how_few_it_may_be(
    maker: Callable[[], Any], cache: str, least: tuple[int, int]
) -> None:
    pipe, call = maker()
    call = {**call, "num_inference_steps": 4}
    rig = "sim0=1GiB,sim1=1GiB,cpu=8GiB"
    dry = DryPipeline(pipe, {"backend": SPREAD, "rig": rig}, cache=cache)
    account = dry.account(dry(**call))
    times = [part.call.times for part in account.parts if "transformer_blocks" in part.call.title]
    assert set(times) == {4}
    facts: Any = account.document()["skipped"]
    found = facts["decisions"]["transformer"]
    assert (found["at_least"], found["all"]) == least
    assert 0 < facts["least_seconds_low"] <= facts["least_seconds"] < account.document()["seconds"]
    told = "\n".join(account.remarks())
    assert f"that is with all steps computed; the cache {cache} may leave some out, down to " in told
    assert "the picture may change" in told
    assert account.settings["--cache"] == cache


@pytest.mark.fifth
def test_a_plan_without_a_cache_has_no_range() -> None:
    pipe, call = ltx()
    dry = DryPipeline(pipe, {"backend": "sim0"})
    account = dry.account(dry(**call))
    assert account.document()["skipped"] is None
    assert "all steps computed" not in "\n".join(account.remarks())


def interrupt(pipe: Any, call: dict[str, Any]) -> None:
    """Has a call with another prompt end behind its second step."""

    def stop(_: Any, step: int, __: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step == 1:
            raise KeyboardInterrupt
        return values

    with pytest.raises(KeyboardInterrupt):
        paint(pipe, {**call, "prompt": "a blue square", "callback_on_step_end": stop})


@pytest.mark.fifth
def test_a_call_that_ended_early_leaves_nothing_for_the_next_one() -> None:
    pipe, call = ltx()
    dovetail.compile_pipeline(pipe, SPREAD, cache="first_block:0.12")
    expected = paint(pipe, call)
    interrupt(pipe, call)
    assert torch.equal(paint(pipe, call), expected)


def test_a_cache_that_somebody_has_put_on_meanwhile_stays() -> None:
    pipe, _ = ltx()
    dovetail.compile_pipeline(pipe, SPREAD, cache="first_block:0.12")
    pipe.transformer.disable_cache()
    pipe.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.5))
    pipe.dovetail.undo()
    assert pipe.transformer._cache_config.threshold == 0.5


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("first_blok:0.1", "none is called 'first_blok': did you mean first_block?"),
        ("first_block:-1", "a threshold, a number from 0 on, and not '-1'"),
        ("first_block:nan", "and not 'nan'"),
        ("first_block:", "and not ''"),
        ("taylorseer:2.5", "a whole number from 2 on"),
        ("taylorseer:1", "a whole number from 2 on"),
        ("\0", "none is called"),
        ("", "none is called '': there are first_block, taylorseer"),
        (0.12, "cache is a text such as 'first_block:0.12', and no float"),
    ],
)
def test_what_is_no_cache_is_refused_before_anything_is_loaded(given: Any, why: str) -> None:
    for make in (lambda: dovetail.load_pipeline("/nowhere", cache=given), lambda: read_cache(given)):
        with pytest.raises(UsageError, match=why.replace("?", r"\?")):
            make()


def test_models_that_take_no_cache_are_told_and_left_as_they_were() -> None:
    pipe, _ = tiny_pipelines.sd()
    with pytest.raises(UsageError, match=r"no diffusion model of this pipeline takes a cache .* leave out cache"):
        dovetail.compile_pipeline(pipe, "sim0", cache="first_block:0.12")
    assert not hasattr(pipe, "dovetail")
    pipe, call = ltx()
    plain = paint(pipe, call)
    own = diffusers.FirstBlockCacheConfig(threshold=0.2)
    pipe.transformer.enable_cache(own)
    with pytest.raises(UsageError, match=r"transformer has a cache already \(FirstBlockCacheConfig\)"):
        dovetail.compile_pipeline(pipe, "sim0", cache="first_block:0.12")
    assert pipe.transformer._cache_config is own
    pipe.transformer.disable_cache()
    with pytest.raises(UsageError, match="taylorseer finds no part of transformer"):
        dovetail.compile_pipeline(pipe, "sim0", cache="taylorseer")
    assert not pipe.transformer.is_cache_enabled
    pipe.transformer.transformer_blocks = pipe.transformer.transformer_blocks[:1]
    with pytest.raises(UsageError, match="first_block is not for transformer"):
        dovetail.compile_pipeline(pipe, "sim0", cache="first_block:0.12")
    assert not pipe.transformer.is_cache_enabled
    assert not hasattr(pipe, "dovetail")
    assert paint(pipe, call).shape == plain.shape


def test_pipelines_over_the_same_models_do_not_put_a_second_one_on() -> None:
    pipe, _ = ltx()
    dovetail.compile_pipeline(pipe, "sim0")
    other = type(pipe)(**pipe.components)
    with pytest.raises(UsageError, match="give cache to that one, which came first"):
        dovetail.compile_pipeline(other, cache="first_block:0.12")


@pytest.mark.parametrize("typed", ["first_block:0.1234567", "first_block:1e-300", "taylorseer:1234567", "first_block"])
def test_a_cache_is_spelled_so_that_it_reads_back(typed: str) -> None:
    assert read_cache(str(read_cache(typed))) == read_cache(typed)


def sharing_all_but_the_vae(pipe: Any) -> Any:
    return type(pipe)(**{**pipe.components, "vae": copy.deepcopy(pipe.vae)})


@pytest.mark.fifth
def test_a_borrower_of_a_cached_model_begins_anew_and_says_that_it_has_the_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, call = ltx()
    dovetail.compile_pipeline(pipe, "sim0", cache="first_block:100")
    other = sharing_all_but_the_vae(pipe)
    dovetail.compile_pipeline(other, "sim0")
    expected = paint(other, call)
    assert caplog.text.count("transformer runs by its parts, because of --cache first_block:100") == 1
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "for example by a cache" not in str(warned)
    generation = other.dovetail.planned
    account = other.dovetail.account(generation)
    assert account.settings["--cache"] == "first_block:100"
    assert [one.component for one in account.skipped] == ["transformer"]
    assert "the cache first_block:100" in "\n".join(account.remarks())
    interrupt(pipe, call)
    assert torch.equal(paint(other, call), expected)


def test_nothing_is_put_on_a_model_that_another_pipeline_has_placed() -> None:
    pipe, _ = ltx()
    dovetail.compile_pipeline(pipe, "sim0")
    for option in ({"cache": "first_block:0.12"}, {"attention": "_native_math"}):
        other = sharing_all_but_the_vae(pipe)
        with pytest.raises(UsageError, match=f"give {next(iter(option))} to that one, which came first"):
            dovetail.compile_pipeline(other, "sim0", **option)
    assert not pipe.transformer.is_cache_enabled
    assert {one._attention_backend for one in libraries.attention_processors(pipe.transformer)} == {None}


def test_a_model_that_takes_the_place_of_another_gets_what_that_had(caplog: pytest.LogCaptureFixture) -> None:
    pipe, _ = ltx()
    old, new, third = pipe.transformer, copy.deepcopy(pipe.transformer), copy.deepcopy(pipe.transformer)
    dovetail.compile_pipeline(pipe, "sim0", cache="first_block:100", attention="_native_math")
    pipe.transformer = new
    assert (old.is_cache_enabled, new.is_cache_enabled) == (False, True)
    backends = [{one._attention_backend for one in libraries.attention_processors(model)} for model in (old, new)]
    assert backends[0] == {None} != backends[1]
    assert not caplog.records
    third.transformer_blocks = third.transformer_blocks[:1]
    pipe.transformer = third
    assert "the new transformer goes without --cache first_block:100" in caplog.text
    assert pipe.dovetail.addons.settings([third]) == {"--attention": "_native_math"}
    pipe.dovetail.undo()
    assert not third.is_cache_enabled

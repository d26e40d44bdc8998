"""A call is planned as a whole before anything is read or computed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import demo
from dovetail.compiler.errors import DoesNotFitError
from dovetail.components import call_compiler
from dovetail.runtime.store import store as stores
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def saved(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    pipe, call = tiny_pipelines.PIPELINES[name]()
    pipe.save_pretrained(folder)
    return folder, call


SMALL = {"backend": "unet=sim0,te=sim0,vae=sim1", "rig": "sim0=512MiB,sim1=1MiB,cpu=8GiB", "vae_tiling": "off"}
FORESEEN = [name for name in tiny_pipelines.PIPELINES if name != "sd_img2img"]
"""Not the one of which a tiny convolution, of too few numbers for its usual kernel, leaves strides of its own."""


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The first argument of each call of a function from now on that raises nothing."""
    seen: list[Any] = []
    original = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(args[0])
        return result

    monkeypatch.setattr(owner, name, count)
    return seen


@pytest.mark.slow
def test_a_vae_that_does_not_fit_is_refused_before_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, call = saved("sd", tmp_path)
    fetched = counted(monkeypatch, stores, "fetched_weight")
    pipe = dovetail.load_pipeline(folder, **SMALL)
    pipe.set_progress_bar_config(disable=True)
    steps: list[int] = []

    def told(_pipe: Any, step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
        steps.append(step)
        return state

    before = len(fetched)
    with pytest.raises(DoesNotFitError, match="vae needs at least"):
        pipe(**{**call, "height": 128, "width": 128, "num_inference_steps": 3}, callback_on_step_end=told)
    assert (steps, len(fetched)) == ([], before)


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(["sd"], tiny_pipelines.PIPELINES))
def test_the_picture_is_the_same_with_the_plan_first(name: str, tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.PIPELINES[name]()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, SPREAD)
    with pipe.dovetail:
        assert torch.equal(paint(pipe, call).cpu(), expected)
        torch.manual_seed(3)
        first = torch.rand(1)
        torch.manual_seed(3)
        pipe.dovetail.plan(**{**call, "num_inference_steps": 3})
        assert torch.equal(torch.rand(1), first)


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(["sd"], FORESEEN))
def test_nothing_is_traced_or_lowered_twice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, call = saved(name, tmp_path)
    everywhere = f"sim0,{SPREAD}"  # nothing is left open, for which placements would be tried
    pipe = dovetail.load_pipeline(folder, everywhere, rig="sim0=1GiB,sim1=1GiB,cpu=8GiB")
    traced = counted(monkeypatch, call_compiler, "trace")
    lowered = counted(monkeypatch, dovetail.pipelines.placed.PassManager, "run")
    plan = pipe.dovetail.plan(**call)
    assert plan is not None
    planned = len(traced), len(lowered)
    programs = {id(one) for some in pipe.dovetail.programs.values() for one in some}
    assert len(plan.calls) == planned[1] == len(programs)
    paint(pipe, call)
    kinds = pipe.dovetail._planner.planned
    paint(pipe, call)
    assert pipe.dovetail._planner.planned == kinds
    assert (len(traced), len(lowered)) == planned
    assert {id(one) for some in pipe.dovetail.programs.values() for one in some} == programs


@pytest.mark.fifth
def test_a_plan_leaves_no_trace_in_the_pipeline(tmp_path: Path) -> None:
    folder, call = saved("sd", tmp_path)
    pipe = dovetail.load_pipeline(folder, SPREAD, rig="sim0=1GiB,sim1=1GiB,cpu=8GiB")
    own, scheduler = dict(vars(pipe)), dict(vars(pipe.scheduler))
    generator = torch.Generator().manual_seed(4)
    state = generator.get_state()
    called: list[Any] = []
    pipe.dovetail.plan(**{**call, "generator": generator}, callback_on_step_end=lambda *args: called.append(args) or {})
    assert vars(pipe) == own
    assert vars(pipe.scheduler) == scheduler
    assert torch.equal(generator.get_state(), state)
    assert not called


@pytest.mark.slow
def test_a_refused_call_leaves_everything_for_a_smaller_one(tmp_path: Path) -> None:
    folder, call = saved("sd", tmp_path)
    pipe = dovetail.load_pipeline(folder, **SMALL)
    with pytest.raises(DoesNotFitError):
        pipe.dovetail.plan(**{**call, "height": 128, "width": 128})
    assert pipe.dovetail.programs == {}
    eager = tiny_pipelines.sd()[0]
    assert torch.equal(paint(pipe, call).cpu(), paint(eager, call))


@pytest.mark.slow
def test_prepare_plans_and_brings_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, call = saved("sd", tmp_path)
    pipe = dovetail.load_pipeline(folder, SPREAD, rig="sim0=1GiB,sim1=1GiB,cpu=8GiB")
    pipe.dovetail.prepare(**call)
    fetched = counted(monkeypatch, stores, "fetched_weight")
    paint(pipe, call)
    assert fetched == []


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["_settle", "_known_of"])
def test_an_interrupt_after_lowering_leaves_nothing_of_the_plan(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    pipe = dovetail.load_pipeline(demo.folder(), rig="sim0=64MiB,sim1=64MiB,cpu=4GiB")
    placed = pipe.dovetail
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 1}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    owner = {"_settle": type(placed), "_known_of": type(placed._planner)}[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            placed.plan("a circle", **call)
    assert not placed.programs
    assert placed._is_open
    assert placed.decision is None
    assert not placed._planner.held
    assert placed.plan("a circle", **call) is not None
    assert placed.programs
    pipe.dovetail.undo()

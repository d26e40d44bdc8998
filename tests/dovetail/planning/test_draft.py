"""Plans are made on drafts: what is tried leaves nothing in the pipeline, which adopts a draft that fits as one."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.components.compiled import CompiledModule
from dovetail.components.decisions import Decisions
from dovetail.components.dry import dry_run
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.draft import Draft, _why
from dovetail.progress.refusals import telling
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

TIGHT = {"backend": "unet=sim0,te=sim0,vae=sim1", "rig": "sim0=512MiB,sim1=1MiB,cpu=8GiB"}


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def compiled(**options: Any) -> tuple[Any, dict[str, Any]]:
    pipe, call = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, **options)
    return pipe, {**call, "num_inference_steps": 1}


def at(call: dict[str, Any], size: int) -> dict[str, Any]:
    return {**call, "height": size, "width": size}


def state_of(pipe: Any) -> Any:
    """What is decided of a pipeline and of all weights, and what is known of calls."""
    handle = pipe.dovetail
    planner = handle._planner
    placed = {
        name: (
            str(one.plan),
            {kept.name: (kept.home, kept.bounds, kept.residency) for kept in one.view.weights()},
            [(list(call.programs.values()), list(call.traced)) for call in one.calls],
            one.assigned.bytes_on(),
        )
        for name, one in handle.components.items()
    }
    known = dict(planner.values), dict(planner.held), planner.phases, dict(planner.spared), list(planner._known)
    return placed, known, handle._is_open, handle.decision, handle.hook.execution_device, planner.tiles.now


@pytest.mark.slow
@pytest.mark.parametrize("refused", [1, 2, 3])
def test_an_adoption_that_ends_early_leaves_all_as_it_was(refused: int) -> None:
    pipe, call = compiled(rig="sim0=700KiB,sim1=1GiB,cpu=1GiB")
    with pytest.MonkeyPatch.context() as patch:
        hold, count = Decisions.hold, list[Decisions]()

        def interrupted(decided: Decisions) -> None:
            count.append(decided)
            if len(count) == refused:
                raise KeyboardInterrupt
            hold(decided)

        patch.setattr(Decisions, "hold", interrupted)
        before = state_of(pipe)
        with pytest.raises(KeyboardInterrupt):
            pipe.dovetail.plan(**call)
        after = state_of(pipe)
    traced = [[keys for _, keys in calls] for _, _, calls, _ in after[0].values()]
    assert any(keys for calls in traced for keys in calls)  # traces stay
    for name, (plan, weights, calls, nbytes) in before[0].items():
        assert (plan, weights, nbytes) == (*after[0][name][:2], after[0][name][3])
        assert [programs for programs, _ in calls] == [programs for programs, _ in after[0][name][2]]
    assert before[1:] == after[1:]
    assert pipe.dovetail.plan(**call) is not None
    pipe.dovetail.undo()


@pytest.mark.slow
def test_a_refusal_keeps_nothing_of_what_was_tried() -> None:
    pipe, call = compiled(**TIGHT, vae_tiling="off")
    gc.collect()
    gc.disable()
    try:
        others = {id(one) for one in gc.get_objects() if isinstance(one, (Draft, CompiledModule))}
        with pytest.raises(DoesNotFitError):
            pipe.dovetail.plan(**at(call, 128))
        left = [one for one in gc.get_objects() if isinstance(one, (Draft, CompiledModule)) and id(one) not in others]
    finally:
        gc.enable()
    assert left == []
    pipe.dovetail.undo()


@pytest.mark.slow
def test_a_refusal_is_told_before_what_fits_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, call = compiled(**TIGHT, vae_tiling="off")
    said: list[str] = []

    def looked_for(_: Any, error: DoesNotFitError, *__: Any) -> DoesNotFitError:
        assert said == [error.problem]
        return DoesNotFitError(f"{error.problem}: nothing fits")

    monkeypatch.setattr(type(pipe.dovetail), "refused", looked_for)
    with telling(said.append), pytest.raises(DoesNotFitError, match="nothing fits"):
        pipe.dovetail.plan(**at(call, 128))
    assert len(said) == 1
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_devices_are_decided_though_the_dry_run_meets_no_call() -> None:
    """The first component has no room on the first device, where all would be without a search."""
    pipe, call = tiny_pipelines.sd()

    class Own(type(pipe)):  # type: ignore[misc]
        def encode_prompt(self, *args: Any, **kwargs: Any) -> Any:
            if dry_run() is not None:
                raise RuntimeError("zeros are no prompt")
            return super().encode_prompt(*args, **kwargs)

    pipe.__class__ = Own
    dovetail.compile_pipeline(pipe, rig="sim0=300KiB,sim1=1GiB,cpu=1GiB")
    pipe(**{**call, "num_inference_steps": 1})
    assert pipe.dovetail.decision is not None
    assert [one.name for one in pipe.dovetail.components["unet"].devices] == ["sim1"]
    pipe.dovetail.undo()


@pytest.mark.slow
def test_a_plan_that_is_made_within_a_call_in_tiles_is_whole() -> None:
    pipe, call = compiled(**TIGHT)
    seen: list[Any] = []

    def note(pipe: Any, *_: Any) -> dict[str, Any]:
        seen.append(pipe.dovetail.plan(**{**at(call, 64), "num_inference_steps": 3}).tiles)
        return {}

    pipe(**at(call, 128), callback_on_step_end=note)
    assert seen == [{}]
    pipe.dovetail.undo()


@pytest.mark.slow
def test_a_later_size_is_not_compared_with_tiles_as_the_search_compares() -> None:
    """The VAE of the first call decodes on the host; a smaller picture is planned as that has placed all."""
    pipe, call = tiny_pipelines.sd()
    handle = DryPipeline(pipe, {"rig": "cuda0=2926KiB,cpu=16GiB"})
    first = handle.plan(**{**at(call, 256), "num_inference_steps": 4})
    assert first is not None
    assert not first.tiles
    assert handle.components["vae"].devices[0].is_host
    second = handle.plan(**{**at(call, 96), "num_inference_steps": 1})
    assert second is not None
    assert not second.tiles


@pytest.mark.parametrize(
    ("taken", "by_pipeline", "words"),
    [
        (2048, 0, "2.0 KiB are held by other components, or parts of this one: vae 2.0 KiB"),
        (0, 1024, "1.0 KiB are held by what the pipeline computes itself"),
        (2048, 1024, "2.0 KiB are held by other components, or parts of this one: vae 2.0 KiB, and 1.0 KiB by what "
                     "the pipeline computes itself"),
    ],
)  # fmt: skip
def test_each_who_holds_something_is_named_and_nobody_else(taken: int, by_pipeline: int, words: str) -> None:
    held = {"vae": Counter({"sim0": taken}), "text_encoder": Counter[str]()}
    assert _why("sim0", held, by_pipeline) == words

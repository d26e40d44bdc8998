"""The making of one plan: what is tried where it does not fit, of which a refusal leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.spec.residency import Residency
from dovetail.conventions.request import Request
from dovetail.planning.draft import Draft
from dovetail.planning.lowered import Lowered
from dovetail.planning.making import Making, PlanRequest
from dovetail.planning.pipeline_plan import PipelinePlan
from dovetail.planning.quicker import InTiles, NotQuicker

NAMES = ("text_encoder", "text_encoder_2")
REQUEST = Request.parse(backend="sim0", rig="sim0=1GiB,cpu=1GiB", components={"vae": "vae"})


class Decided(SimpleNamespace):
    """What is decided of a component whose weights rest in host memory."""

    def draft(self, *_: Any) -> Decided:
        return Decided(**vars(self))


def base(spared: int = 0) -> Draft:
    plan = SimpleNamespace(residency=Residency.HOST)
    decided: Any = {name: Decided(component=SimpleNamespace(name=name), plan=plan) for name in NAMES}
    return Draft(PipelinePlan(REQUEST, {}, spared=Counter({"sim0": spared}) if spared else Counter()), decided)  # type: ignore[arg-type]


def _ran(*names: str) -> Any:
    calls = {name: SimpleNamespace(component=SimpleNamespace(name=name)) for name in names}
    return SimpleNamespace(calls=calls, moments=[])


def test_a_smaller_size_that_the_pipeline_refuses_is_no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code ends a dry run of such a size before anything is called, and nothing fits everywhere."""
    sizes: list[dict[str, str]] = [{"--size": "48x48"}, {"--size": "32x32"}, {"--size": "16x16"}]
    monkeypatch.setattr("dovetail.planning.making.smaller_calls", lambda *_: [(size, {}) for size in sizes])
    runs = [_ran(), _ran("text_encoder", "vae"), _ran("text_encoder")]
    planner: Any = SimpleNamespace(tiles=SimpleNamespace(asked="off"), trace=lambda *_: runs.pop(0))
    handle: Any = SimpleNamespace(pipe=None, components={})
    making = Making(planner, handle, PlanRequest("", (), {}), base())
    assert [size for size, _ in making._smaller(_ran("text_encoder", "vae"))] == sizes[1:2]


class Refusing:
    """Refuses attempts, each as it is told, and notes what they were made with."""

    def __init__(self, refusals: list[tuple[str, int]]) -> None:
        self.seen: list[tuple[set[str], bool, int]] = []
        self._refusals = refusals
        self.making: Any = None

    def attempt(self, draft: Draft) -> Any:
        phases = draft.plan.phases
        going = {name for name in NAMES if not phases.keeps(name)}
        self.seen.append((going, phases(NAMES[0]) == NAMES[0], draft.plan.spared["sim0"]))  # type: ignore[index]
        if not self._refusals:
            return Lowered(draft, "a plan", None)  # type: ignore[arg-type]
        self.making._alone, over = self._refusals.pop(0)
        return DoesNotFitError("too large", {"sim0": over})


def made(refusals: list[tuple[str, int]], spared: int = 0) -> tuple[Lowered | None, Refusing, Draft]:
    refusing, start = Refusing(refusals), base(spared)
    planner: Any = SimpleNamespace(tiles=SimpleNamespace(asked="off"))
    refusing.making = Making(planner, SimpleNamespace(pipe=None, components={}), PlanRequest("", (), {}), start)  # type: ignore[arg-type]
    refusing.making._attempt, refusing.making._alone = refusing.attempt, NAMES[0]
    return refusing.making._apart(DoesNotFitError("too large"), start), refusing, start


def test_components_that_do_not_fit_apart_keep_no_weights_for_their_phase_one_after_another() -> None:
    plan, planner, _ = made([(NAMES[0], 1), (NAMES[1], 1)])
    assert plan is not None
    assert planner.seen == [(set(), True, 0), ({NAMES[0]}, True, 0), (set(NAMES), True, 0)]


def test_a_plan_that_exceeds_a_device_by_little_is_made_again_with_less_of_it() -> None:
    plan, planner, _ = made([("", 5), ("", 2)])
    assert plan is not None
    assert planner.seen == [(set(), True, 0), (set(), True, 5), (set(), True, 7)]


def test_attempts_that_were_all_refused_leave_the_draft_as_it_was() -> None:
    plan, planner, start = made([("", 5)] * 20, spared=3)
    assert plan is None
    assert 3 < len(planner.seen) < 12
    assert {start.plan.phases(name) for name in NAMES} == {"conditioning"}
    assert all(map(start.plan.phases.keeps, NAMES))
    assert start.plan.spared == {"sim0": 3}


@pytest.mark.parametrize("fits", [True, False])
def test_tiles_that_turn_out_no_quicker_are_not_taken_with_weights_elsewhere_either(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search as asked refuses, or says a time; what is tried then with weights elsewhere must be quicker too."""
    lowered: list[Any] = []
    refused = DoesNotFitError("too large")
    start, slow = base(), SimpleNamespace(solution=SimpleNamespace(seconds=9.0))
    planner: Any = SimpleNamespace(
        tiles=SimpleNamespace(asked="auto"),
        traced_somewhere=lambda *_: (_ran(), None),
    )
    handle: Any = SimpleNamespace(
        name="pipe", components={}, programs={}, rig=REQUEST.rig, main_of=lambda _: None,
        kinds=lambda: ({"vae": "vae"}, {"vae": True}), under=lambda draft, _: draft.copy(),
    )  # fmt: skip
    searches: list[Any] = []

    def fitted(_: Any, __: Any, request: Request, ___: Any, lower: Any) -> Any:
        searches.append(request)
        return lower(request, slow) if fits or len(searches) > 1 else refused

    monkeypatch.setattr("dovetail.planning.making.fitted", fitted)
    monkeypatch.setattr("dovetail.planning.making.lowered", lambda *given: lowered.append(given) or refused)  # type: ignore[func-returns-value]
    start.plan = PipelinePlan(REQUEST, {}, is_open=True)
    making = Making(planner, handle, PlanRequest("", (), {}), start)
    assert making._quicker(InTiles({}, 0, 5.0)) == NotQuicker()
    assert searches
    assert not lowered

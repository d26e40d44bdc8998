"""The making of one plan: what is tried where it does not fit, of which a refusal leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.spec.residency import Residency
from dovetail.conventions.request import Request
from dovetail.fitting.eased import first_that_fits
from dovetail.pipelines.phases import Phases
from dovetail.planning.making import Making, PlanRequest
from dovetail.planning.quicker import InTiles, NotQuicker

NAMES = ("text_encoder", "text_encoder_2")


def test_an_interrupt_while_components_of_a_phase_are_planned_apart_has_them_together_again() -> None:
    phases = Phases()
    planner: Any = Refusing([])
    planner.phase_of, planner.refused = phases, NAMES[0]
    view = SimpleNamespace(residency=Residency.HOST)
    handle: Any = SimpleNamespace(pipe=None, components={name: SimpleNamespace(view=view) for name in NAMES})
    making = Making(planner, handle, PlanRequest("", (), {}))
    seen: list[set[str]] = []

    def interrupted(_: Any) -> None:
        seen.append({phases(name) for name in NAMES})
        raise KeyboardInterrupt

    making._attempt = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        making._apart(DoesNotFitError("too large"))
    assert seen == [set(NAMES)]
    assert {phases(name) for name in NAMES} == {"conditioning"}


def _ran(*names: str) -> Any:
    calls = {name: SimpleNamespace(component=SimpleNamespace(name=name)) for name in names}
    return SimpleNamespace(calls=calls)


def test_a_smaller_size_that_the_pipeline_refuses_is_no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code ends a dry run of such a size before anything is called, and nothing fits everywhere."""
    sizes: list[dict[str, str]] = [{"--size": "48x48"}, {"--size": "32x32"}, {"--size": "16x16"}]
    monkeypatch.setattr("dovetail.planning.making.smaller_calls", lambda *_: [(size, {}) for size in sizes])
    runs = [_ran(), _ran("text_encoder", "vae"), _ran("text_encoder")]
    planner: Any = Refusing([])
    planner.trace = lambda *_: runs.pop(0)
    handle: Any = SimpleNamespace(pipe=None, components={})
    making = Making(planner, handle, PlanRequest("", (), {}))
    assert [size for size, _ in making._smaller(_ran("text_encoder", "vae"))] == sizes[1:2]


class Refusing:
    """A planner whose plans are refused, each as it is told, and which notes what they were made with."""

    def __init__(self, refusals: list[tuple[str, int]]) -> None:
        self.phase_of, self.tiles = Phases(), SimpleNamespace(asked="off")
        self.refused, self.spared = "", Counter[Any]()
        self.seen: list[tuple[set[str], bool, int]] = []
        self._refusals = refusals

    def spare(self, nbytes: Any) -> Any:
        before, self.spared = self.spared, Counter(nbytes)
        return lambda: setattr(self, "spared", before)

    def attempt(self, _: Any) -> str:
        going = {name for name in NAMES if not self.phase_of.keeps(name)}
        self.seen.append((going, self.phase_of(NAMES[0]) == NAMES[0], self.spared["sim0"]))
        if not self._refusals:
            return "a plan"
        self.refused, over = self._refusals.pop(0)
        raise DoesNotFitError("too large", {"sim0": over})


def made(refusals: list[tuple[str, int]], spared: int = 0) -> tuple[Any, Refusing]:
    planner: Any = Refusing(refusals)
    planner.spared = Counter({"sim0": spared})
    view = SimpleNamespace(residency=Residency.HOST)
    handle: Any = SimpleNamespace(pipe=None, components={name: SimpleNamespace(view=view) for name in NAMES})
    making = Making(planner, handle, PlanRequest("", (), {}))
    making._attempt = planner.attempt  # type: ignore[method-assign]
    planner.refused = NAMES[0]
    return making._apart(DoesNotFitError("too large")), planner


def test_components_that_do_not_fit_apart_keep_no_weights_for_their_phase_one_after_another() -> None:
    plan, planner = made([(NAMES[0], 1), (NAMES[1], 1)])
    assert plan == "a plan"
    assert planner.seen == [(set(), True, 0), ({NAMES[0]}, True, 0), (set(NAMES), True, 0)]


def test_a_plan_that_exceeds_a_device_by_little_is_made_again_with_less_of_it() -> None:
    plan, planner = made([("", 5), ("", 2)])
    assert plan == "a plan"
    assert planner.seen == [(set(), True, 0), (set(), True, 5), (set(), True, 7)]


def test_what_was_changed_for_plans_that_were_all_refused_is_as_before() -> None:
    plan, planner = made([("", 5)] * 20, spared=3)
    assert plan is None
    assert 3 < len(planner.seen) < 12
    assert {planner.phase_of(name) for name in NAMES} == {"conditioning"}
    assert all(map(planner.phase_of.keeps, NAMES))
    assert planner.spared == {"sim0": 3}


@pytest.mark.parametrize("fits", [True, False])
def test_tiles_that_turn_out_no_quicker_are_not_taken_with_weights_elsewhere_either(fits: bool) -> None:
    """The search as asked refuses, or says a time; what is tried then with weights elsewhere must be quicker too."""
    planner: Any = Refusing([])
    planner.tiles = SimpleNamespace(asked="auto", put=lambda *_: None, put_back=lambda: None)
    lowered: list[Any] = []
    planner.lower = lambda *given: lowered.append(given)

    def attempt(handle: Any, asked: Any, lower: Any, keeps: bool, note: Any) -> Any:
        slow: Any = SimpleNamespace(solution=SimpleNamespace(seconds=9.0))

        def searched(_: Any) -> Any:
            if not fits and not lowered:
                lowered.append("refused")
                raise DoesNotFitError("too large")
            return lower(None, slow)

        request = Request.parse(backend="sim0", rig="sim0=1GiB,cpu=1GiB", components={"vae": "vae"})
        placed, refused = (lambda _: lower(None, None)), DoesNotFitError("too large")
        return first_that_fits(request, {"vae": "vae"}, {"vae": True}, searched, placed, refused)

    planner.attempt = attempt
    making = Making(planner, SimpleNamespace(pipe=None, components={}), PlanRequest("", (), {}))  # type: ignore[arg-type]
    assert making._quicker(InTiles({}, 0, 5.0)) == NotQuicker()
    assert not [one for one in lowered if one != "refused"]

"""The making of one plan: an interrupt leaves nothing of it behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.spec.residency import Residency
from dovetail.pipelines.plan import Phases
from dovetail.planning.making import Making, PlanRequest

NAMES = ("text_encoder", "text_encoder_2")


def test_an_interrupt_while_components_of_a_phase_are_planned_apart_has_them_together_again() -> None:
    phases = Phases()
    planner: Any = SimpleNamespace(phase_of=phases, tiles=SimpleNamespace(asked="off"))
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

"""A plan that computes blocks of the denoiser on the host says so before all else, and names what is quicker."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.durations import seconds_text
from dovetail.compiler.spec.residency import Residency
from dovetail.explain.sentences import explain_plan
from dovetail.fitting.decide import Decision
from dovetail.passes.fit.plan import plan_of, settings_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.ways_out import line_of
from dovetail.passes.fit.workload import Asked
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.on_host import _cure
from dovetail.planning.table import Account
from testbed.pipelines import tiny_pipelines
from tests.passes.fit.test_search import CPU, FAST, SLOW, budgets, machine, pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")


def account(backend: str | None, rig: str = "cuda0=64MiB,cpu=1GiB") -> Account:
    pipe, call = tiny_pipelines.wide_flux()
    dry = DryPipeline(pipe, {"backend": backend, "rig": rig})
    generation = dry(**call)
    assert generation is not None
    return dry.account(generation)


@pytest.mark.fifth
def test_blocks_that_were_put_on_the_host_are_warned_of_with_a_line_that_was_searched() -> None:
    """The decoder was left open, so that a search was made, which knows the way out."""
    told = account("diffusion=cuda0&cpu,te=cuda0")
    (warning,) = told.warnings
    assert re.match(
        r"\d of 5 blocks of transformer are computed on cpu, which takes [^–]+–.* of the [^–]+–.* s of a picture: ",
        warning,
    )
    assert next(explain_plan(told)) == f"Warning: {warning}."
    assert told.document()["warnings"] == [warning]


@pytest.mark.fifth
def test_where_nothing_was_searched_it_says_what_to_leave_out() -> None:
    (warning,) = account("diffusion=cuda0&cpu,te=cuda0,vae=cuda0").warnings
    assert "leave transformer out of --backend to have a placement searched" in warning


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(("backend", "rig"), [("te=cpu", "cuda0=64MiB,cpu=1GiB"), ("cpu", "cpu=1GiB")])
def test_encoders_on_the_host_and_a_machine_of_a_host_alone_are_not_warned_of(backend: str, rig: str) -> None:
    assert not account(backend, rig).warnings


@pytest.mark.fifth
def test_the_warning_stands_above_the_tables() -> None:
    said = (
        "plan",
        "--steps",
        "2",
        "--rig",
        "cuda0=64MiB,cpu=1GiB",
        "--backend",
        "diffusion=cuda0&cpu,te=cuda0,vae=cuda0",
    )
    result = CliRunner().invoke(app, list(said))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("warning: ")
    assert "component" in result.stdout.splitlines()[2]
    assert json.loads(CliRunner().invoke(app, [*said, "--json"]).stdout)["warnings"]


def test_a_cure_places_all_otherwise_where_that_is_much_quicker_than_the_denoiser_alone() -> None:
    """Encoders that were told to stay on the card leave the denoiser no room there."""
    stays = Asked((FAST,), Residency.DEVICE)
    on_both = Asked((FAST, CPU), Residency.DEVICE)
    loads = pipeline(te=stays, diffusion=on_both, vae=stays)
    given, there = budgets(155, 0, 1000), machine((FAST, CPU))
    solution = search(loads, there, given)
    assert solution is not None
    assert CPU in solution.ways["diffusion"].devices
    plan = plan_of(solution, loads, given)
    decision = Decision(plan, 0.0, tuple(loads), there, given, solution, given)
    alone = search([replace(one, asked=Asked()) if one.name == "diffusion" else one for one in loads], there, given)
    every = search([replace(one, asked=Asked()) for one in loads], there, given)
    assert alone is not None
    assert every is not None
    assert every.seconds < 0.8 * alone.seconds
    assert f"it takes {seconds_text(every.seconds)} s" in _cure("diffusion", decision)


def test_a_cure_names_the_line_that_was_searched_and_not_rows_that_were_asked_of_others() -> None:
    stays = Asked((FAST,), Residency.DEVICE)
    loads = pipeline(te=Asked((FAST, SLOW), mode="row"), diffusion=Asked((FAST, CPU), Residency.DEVICE), vae=stays)
    given, there = budgets(155, 30, 1000), machine((FAST, SLOW, CPU))
    solution = search(loads, there, given)
    assert solution is not None
    plan = plan_of(solution, loads, given)
    told = _cure("diffusion", Decision(plan, 0.0, tuple(loads), there, given, solution, given))
    alone = [replace(one, asked=Asked()) if one.name == "diffusion" else one for one in loads]
    every = [replace(one, asked=Asked()) for one in loads]
    lines = []
    for some in (alone, every):
        found = search(some, there, given)
        assert found is not None
        lines.append(f"with {line_of(settings_of(found, some))} it takes {seconds_text(found.seconds)} s")
    assert told in lines

"""What a refusal names was tried: typed, it works."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.conventions.request import Request
from dovetail.fitting import decide
from dovetail.fitting.decide import Member, TracedCall, loads_of
from dovetail.passes.fit.lacking import lacking
from dovetail.passes.fit.ways_out import FITS

RIG = ("--rig", "cuda0=23MiB,cuda1=14.3MiB,cpu=4GiB")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def lines_in(message: str) -> list[list[str]]:
    """The options of each way out of a message."""
    _, _, fits = message.partition(FITS)
    return [shlex.split(options) for options in re.findall(r"\((--[^()]*?): [\d.e+–-]+ s\)", fits)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(("--backend", "cuda1", "--max-vram", "cuda1=1MiB"), id="one card that is too small"),
        pytest.param(("--backend", "cuda0", "--max-vram", "cuda0=1MiB"), id="a budget"),
        pytest.param(("--backend", "cuda0&cuda1", "--max-vram", "1MiB"), id="two cards"),
    ],
)
def test_every_line_that_a_refusal_names_works(said: tuple[str, ...]) -> None:
    refused = run("plan", "--steps", "2", *RIG, *said)
    assert refused.exit_code == 3, refused.output
    lines = lines_in(refused.output + str(refused.stderr))
    assert lines
    for line in lines:
        result = run("generate", "a circle", "--steps", "2", "--dry-run", *RIG, *line)
        assert result.exit_code == 0, (line, result.output, str(result.stderr))


@pytest.mark.slow
def test_a_dry_run_and_a_plan_print_the_same_table() -> None:
    said = (*RIG, "--backend", "te=cpu", "--steps", "2")
    plan, dry = run("plan", *said), run("generate", "a cat", "--dry-run", *said)
    assert plan.exit_code == dry.exit_code == 0
    shown = [re.sub(r"the search took .*", "", one.stdout) for one in (plan, dry)]
    assert shown[0] == shown[1]


def test_a_module_is_spread_over_the_cards_that_it_needs() -> None:
    """18 MiB of weights, which none of the cards has room for."""
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(18))).eval()
    x = torch.randn(1, 512)
    alone = dovetail.compile(module, (x,), rig="sim0=64MiB,sim1=64MiB")
    assert len(alone.program.devices) == 1
    spread = dovetail.compile(module, (x,), rig="sim0=12MiB,sim1=12MiB,cpu=1GiB")
    assert {device.kind for device in spread.program.devices} == {"sim"}
    assert len(spread.program.devices) == 2
    assert torch.equal(spread(x), module(x))
    with pytest.raises(DoesNotFitError, match="Sequential"):
        dovetail.compile(module, (x,), rig="sim0=2MiB,sim1=2MiB,cpu=4MiB")


def test_what_a_refusal_says_is_searched_when_it_is_read_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def counted(*given: Any) -> Any:
        searched.append(len(given[0]))
        return lacking(*given)

    monkeypatch.setattr(decide, "lacking", counted)
    traced, request = trace(nn.Linear(512, 512).eval(), (torch.ones(1, 512),)), Request.parse(rig="cuda0=1KiB,cpu=4KiB")
    loads = loads_of({"": Member("", "all", 2**20)}, [TracedCall("", traced)], request)
    refused = decide.decide("Linear", loads, request)
    assert isinstance(refused, DoesNotFitError)
    assert searched == []
    assert refused.problem.startswith("Linear does not fit:")
    assert str(refused).startswith("Linear does not fit:")
    assert searched == [1]
    assert repr(refused).startswith("DoesNotFitError('Linear does not fit:")


@pytest.mark.fifth
def test_a_refusal_keeps_its_ways_out_where_what_decodes_in_tiles_has_no_room_for_its_own() -> None:
    said = ("--rig", "sim0=2500KiB,cpu=4GiB", "--max-vram", "sim0=500KiB", "--backend", "sim0", "--size", "256")
    refused = run("generate", "a circle", "--steps", "1", *said, "-o", "never.png")
    assert refused.exit_code == 3
    assert FITS in refused.output + str(refused.stderr)

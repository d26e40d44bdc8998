"""`--split-mode auto`: the quickest of all modes that fit, in whole pipelines and modules."""

from __future__ import annotations

import gc
import logging
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.devices import speeds
from dovetail.fitting import decide
from dovetail.passes.batches.divide import micro_batches_of
from dovetail.passes.states.states import split_mode_of
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux, paint, sd
from testbed.sharing import slowed
from tests.cases import slow_but

from .test_open_devices import ROOMY, asked_by
from .test_pictures import NEAR, off, programs_of
from .test_table import ByParts, Stack, X

NAMED = "diffusion=sim0&sim1,te=sim0,vae=sim0"


@pytest.fixture(autouse=True)
def _slow_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards so slow that a tiny model takes as long on them as a large one does on real ones, beside their links."""
    gc.collect()
    sim.enable()
    real, host = speeds.of_card, slowed(speeds.HOST_SPEED, 1e-8, 1e-5)
    monkeypatch.setattr(speeds, "of_card", lambda card: slowed(real(card), 1e-6, 1e-3))
    monkeypatch.setattr(decide, "measured_host", lambda: host)


@cache
def account_of(**request: str) -> tuple[dict[str, str], Account]:
    """The schedule of each program on a rig, and what is told of the plan."""
    pipe, call = flux()
    dry = DryPipeline(pipe, dict(request))
    try:
        account = dry.account(dry(**call))
        return {title: str(made.program.schedule) for title, made in dry.plans().items()}, account
    finally:
        dry.undo()


def mode_of(account: Account, component: str = "transformer") -> str:
    return next(split_mode_of(part.call.program) for part in account.parts if part.call.component == component)


CASES: list[dict[str, str]] = [
    {"split_mode": "auto"},
    {"split_mode": "diffusion=auto", "backend": NAMED},
    {"split_mode": "auto", "max_vram": "sim0=250KiB,sim1=250KiB"},
    {"split_mode": "auto", "rig": "sim0=1GiB,sim1=1GiB,sim2=1GiB,sim3=1GiB,cpu=8GiB"},
]


@pytest.mark.fifth
@pytest.mark.parametrize("asked", slow_but(CASES[:1], CASES))
def test_a_mode_is_found_and_its_command_asks_for_the_same(asked: dict[str, str]) -> None:
    rig = {"rig": asked.get("rig", ROOMY)}
    made, account = account_of(**{**rig, **asked})
    assert mode_of(account) in ("sequence", "tensor")
    assert "auto" not in " ".join(account.settings.values())
    again, _ = account_of(**rig, **asked_by(dict(account.settings)))
    assert again == made


@pytest.mark.fifth
def test_what_each_mode_takes_is_told() -> None:
    _, account = account_of(rig=ROOMY, split_mode="auto")
    told, document = account.told(), account.document()
    every: list[dict[str, Any]] = document["modes"]  # type: ignore[assignment]
    modes = [one for one in every if one["component"] == "transformer"]
    (taken,) = (one for one in modes if one["taken"])
    assert taken["mode"] == mode_of(account)
    assert [one["mode"] for one in modes] == [
        "one device", "layer", "sequence", "batch", "batch+sequence", "tensor", "batch+tensor", "spatial", "row",
    ]  # fmt: skip
    assert all(one["seconds"] >= taken["seconds"] / 1.003 for one in modes if "seconds" in one)
    why = {one["mode"]: one["why_not"] for one in modes if "why_not" in one}
    assert why["batch"] == "the inputs are of one picture"
    assert [row[1] for row in told["choices"]] == [one["mode"] + " (taken)" * one["taken"] for one in every]
    assert all(one["seconds_low"] <= one["seconds"] <= one["seconds_high"] for one in modes if "seconds" in one)
    assert taken["seconds_low"] < taken["seconds_high"]
    assert document["auto"] is None
    assert account.decision is not None
    assert account.seconds == pytest.approx(account.decision.solution.seconds, rel=0.01)
    assert "its mode's row" not in " ".join(account.remarks())
    more = [replace(one, seconds=1.1 * account.seconds) for one in account.decision.choices if one.is_taken]
    decision = replace(account.decision)
    vars(decision)["choices"] = more
    above = replace(account, decision=decision)
    assert "once loaded, less than its mode's row, which adds exchanges to computing; the" in " ".join(above.remarks())


@pytest.mark.fifth
def test_without_a_mode_a_line_says_what_it_would_gain_and_nothing_changes() -> None:
    _, plain = account_of(rig=ROOMY)
    _, chosen = account_of(rig=ROOMY, split_mode="auto")
    assert mode_of(plain) == "layer"
    assert plain.quicker is not None
    assert plain.quicker.seconds < plain.quicker.instead
    assert chosen.decision is not None
    assert plain.decision is not None
    assert plain.decision.quicker is not None
    assert chosen.decision.solution.seconds <= plain.decision.quicker.seconds * 1.003
    assert plain.quicker.instead == plain.seconds
    assert [line for line in plain.remarks() if line.startswith("`--split-mode auto`: ")] == [str(plain.quicker)]
    assert plain.told()["choices"] == []
    assert chosen.quicker is None


@pytest.mark.fifth
def test_nothing_is_said_of_auto_to_who_asks_for_layers() -> None:
    _, said = account_of(rig=ROOMY, split_mode="layer")
    assert said.quicker is None


@pytest.mark.slow
@pytest.mark.parametrize("rig", ["sim0=1GiB,cpu=8GiB", "sim0=1GiB,cuda0=1GiB,cpu=8GiB"])
def test_without_like_devices_nothing_is_said(rig: str) -> None:
    _, plain = account_of(rig=rig)
    assert plain.quicker is None
    _, chosen = account_of(rig=rig, split_mode="auto")
    assert mode_of(chosen) == "layer"


@pytest.mark.slow
def test_a_picture_of_what_was_found_is_near_eager() -> None:
    made, call = sd()
    expected = paint(made, call)
    pipe = dovetail.compile_pipeline(made, rig=ROOMY, split_mode="auto")
    with pipe.dovetail:
        assert off(paint(pipe, call), expected) < NEAR
        assert {split_mode_of(one) for one in programs_of(pipe)} & {"batch", "sequence", "tensor"}


@pytest.mark.parametrize("backend", [None, "sim0&sim1"])
def test_a_module(backend: str | None) -> None:
    torch.manual_seed(0)
    module = Stack().eval()
    compiled = dovetail.compile(module, (X,), backend=backend, rig=ROOMY, split_mode="auto")
    assert split_mode_of(compiled.program) != "layer"
    assert len(compiled.program.devices) == 2
    assert torch.allclose(compiled(X).cpu(), module(X), rtol=1e-4, atol=1e-5)


def test_beside_what_excludes_modes_all_is_placed_by_layers(caplog: pytest.LogCaptureFixture) -> None:
    module = Stack().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    with caplog.at_level(logging.WARNING):
        dynamic = dovetail.compile(
            module, (X,), rig=ROOMY, split_mode="auto", dynamic_shapes={"x": {0: batch}}, backend="sim0&sim1"
        )
        mapped = dovetail.compile(module, (X,), split_mode="auto", device_map={"": "sim0", "blocks.1": "sim1"})
    assert [split_mode_of(one.program) for one in (dynamic, mapped)] == ["layer", "layer"]
    assert "cannot be split otherwise than by layers, for its sizes are dynamic" in caplog.text
    assert "a device map places each weight whole" in caplog.text


def test_a_module_by_its_parts_is_placed_by_layers() -> None:
    module = ByParts().eval()
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", split_mode="auto")
    assert torch.allclose(compiled(X).cpu(), module(X), atol=1e-6)


@pytest.mark.parametrize("wide", [False, True])
def test_pictures_of_a_call_go_through_layers_in_turn_where_that_is_quickest(wide: bool) -> None:
    """Neither device holds all blocks, and what devices exchange under modes takes long beside what they compute."""
    torch.manual_seed(0)
    module = Stack(depth=8).eval()
    room = 2000 if wide else 950  # KiB; all blocks have 1034
    rig = f"sim0={room}KiB,sim1={room}KiB,cpu=8GiB;sim0-sim1=0.0001GB/s"
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", rig=rig, split_mode="auto")
    assert micro_batches_of(compiled.program) == (1 if wide else 2)
    assert split_mode_of(compiled.program) in (("batch", "sequence") if wide else ("layer",))
    assert torch.allclose(compiled(X).cpu(), module(X), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_generate_says_what_was_taken(tmp_path: Path) -> None:
    words = ("--split-mode", "diffusion=auto", "--backend", NAMED, "--steps", "1", "-o", str(tmp_path / "a.png"))
    result = CliRunner().invoke(app, ["generate", "a red circle", *words])
    assert result.exit_code == 0, result.stderr
    assert re.search(r"`--split-mode auto` took (tensor|sequence) for transformer \(sim0 & sim1\)", result.stderr)


def mode_asked(account: Account) -> str:
    return account.settings["--split-mode"].partition("diffusion=")[2].partition(",")[0]


@pytest.mark.slow
def test_calls_that_take_turns_are_a_way_of_auto() -> None:
    pipe, call = flux()
    call |= {"negative_prompt": "none", "true_cfg_scale": 3.0}
    dry = DryPipeline(pipe, {"rig": ROOMY, "split_mode": "auto"})
    try:
        account = dry.account(dry(**call))
        assert mode_asked(account) == "batch"
        assert any("take turns on" in line for line in account.remarks())
    finally:
        dry.undo()

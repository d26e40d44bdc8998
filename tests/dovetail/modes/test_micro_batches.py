"""What goes with micro-batches: each cell of their table in docs/modes.md, and what a person is told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.errors import SpecError
from dovetail.conventions.request import Request, _tell_alone
from dovetail.passes.batches.divide import _tell, micro_batches_of
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.pipelines.plan import component_plans
from dovetail.plans.folder import Plans
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import paint, sd
from tests.command_line import done

from .test_table import ByParts, Stack, X

PARTS = "cannot be computed in micro-batches"


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


def stack(depth: int = 2) -> Stack:
    torch.manual_seed(0)
    return Stack(depth=depth).eval()


def in_parts(backend: str | None = "sim0&sim1", **more: Any) -> Any:
    return dovetail.compile(stack(), (X,), backend=backend, micro_batches=2, **more)


def is_close(compiled: Any) -> bool:
    return torch.allclose(compiled(X).cpu(), stack()(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "sim0&cpu"},
        {"backend": None, "device_map": {"": "sim0", "blocks.1": "sim1"}},
        {"tensor_split": "1,3"},
        {"chunk": 2},
        {"rig": "sim0=8MiB,sim1=8MiB", "max_vram": "sim0=1MiB,sim1=1MiB"},
    ],
    ids=str,
)
def test_what_goes_with_them(options: dict[str, Any]) -> None:
    compiled = in_parts(**options)
    assert micro_batches_of(compiled.program) == 2
    assert is_close(compiled)


def test_inductor_compiles_blocks_or_says_why_it_does_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = in_parts(inductor=True)
    assert "is not compiled by Inductor" in caplog.text
    assert is_close(compiled)


def test_what_runs_by_its_parts_runs_whole_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    module = ByParts().eval()
    with caplog.at_level(logging.WARNING):
        compiled = dovetail.compile(module, (X,), backend="sim0&sim1", micro_batches=2)
    assert "runs by its parts, each of them whole, and not in micro-batches" in caplog.text
    assert torch.allclose(compiled(X).cpu(), module(X), atol=1e-6)


@pytest.mark.fifth
def test_a_plan_file_is_read_back_and_shown(tmp_path: Path) -> None:
    compiled, plan = in_parts(), tmp_path / "plan.json"
    compiled.save(plan)
    again = dovetail.load(plan, weights=stack())
    assert (str(again), str(again.schedule)) == (str(compiled), str(compiled.schedule))
    assert torch.equal(again(X).cpu(), compiled(X).cpu())
    for kind in ("text", "html", "svg", "json", "graphml", "trace"):
        done("show", str(plan), "--as", kind, "-o", str(tmp_path / "shown"))
        assert (tmp_path / "shown").stat().st_size > 0
    assert "kept" in done("verify", "--deep", str(plan))


def test_the_passes_have_texts() -> None:
    steps = default_passes(micro_batches=3)
    text = ",".join(map(str, steps))
    assert "micro-batches{parts=3}" in text
    assert "interleave" in text
    assert parse_passes(text) == steps


@pytest.mark.parametrize("given", ["two", "0", "1000", True, "diffusion=x"])
def test_what_is_no_number_of_parts_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"in how many parts the pictures of a call are computed: 2 to 64"):
        dovetail.compile(stack(), (X,), backend="sim0&sim1", micro_batches=given)


@pytest.mark.fifth
def test_a_plan_says_what_is_asked_and_that_calls_of_one_picture_run_whole() -> None:
    _tell.cache_clear()  # it is said once a process
    asked = ("--backend", "diffusion=sim0&sim1,te=sim1,vae=sim0", "--micro-batches", "diffusion=2", "--steps", "1")
    result = CliRunner().invoke(app, ["plan", *asked])
    assert "for its inputs are of one picture: it runs whole" in result.stderr
    assert "--micro-batches diffusion=2" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("counts", "said"), [("2", []), ("unet=2", []), ("vae=2", ["vae"]), ("2,te=4", ["text_encoder"])]
)
def test_of_a_component_on_one_device_they_say_nothing_unless_its_name_is_said(
    counts: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    _tell_alone.cache_clear()
    modules = {name: stack() for name in ("unet", "text_encoder", "vae")}
    roles = {"unet": "diffusion", "text_encoder": "te", "vae": "vae"}
    request = Request.parse(
        backend="sim0,unet=sim0&sim1", micro_batches=counts, rig="sim0=1GiB,sim1=1GiB,cpu=1GiB", components=roles
    )
    with caplog.at_level(logging.WARNING):
        plans = component_plans(request, modules, roles, lambda device: device, list(roles))
    assert [name for name in roles if f"says nothing of {name}" in caplog.text] == said
    asked = request.micro_batches.count_for("unet", "diffusion")
    assert {name: plan.micro_batches for name, plan in plans.items()} == {"unet": asked, "text_encoder": 1, "vae": 1}


@pytest.mark.slow
def test_a_pipeline_plans_and_keeps_them(tmp_path: Path) -> None:
    pipe, call = sd()
    dovetail.compile_pipeline(pipe, "sim0,unet=sim0&sim1", micro_batches="unet=2")
    with pipe.dovetail as handle:
        assert "Its pictures go through the devices in 2 micro-batches" in handle.explain(**call)
        paint(pipe, call)
        (one,) = handle.programs["unet"]
        one.save(tmp_path / "unet.json", "unet")
    assert Plans(tmp_path).completed({})["micro_batches"] == {"unet": 2}

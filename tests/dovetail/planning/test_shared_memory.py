"""Plans for GPUs that share the host's memory, and of rigs that do not say how much of that there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.compiler.devices.device import Device
from dovetail.compiler.units import GIB, MIB
from dovetail.conventions.request import Request
from dovetail.fitting.asked import budgets_of
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

MAC = "mps=16GiB@Apple M3,cpu=16GiB"


def account(rig: str, **more: str) -> Account:
    pipe, call = tiny_pipelines.wide_flux()
    dry = DryPipeline(pipe, {"rig": rig, **more})
    generation = dry(**call)
    assert generation is not None
    return dry.account(generation)


@pytest.mark.parametrize(("budget", "most"), [({}, 14), ({"max_vram": "cpu=10"}, 10), ({"max_vram": "mps=5"}, 5)])
def test_what_the_host_keeps_of_one_memory_is_no_ones_else(budget: dict[str, str], most: int) -> None:
    """A component fills what it may use of its device: more than the host may use was then refused."""
    request, mps = Request.parse(rig=MAC, backend="mps", **budget), Device("mps")
    assert request.rig_for()[mps].free == request.granted[mps].free == most * GIB
    budgets, free = budgets_of(request)
    assert budgets.of(mps) == most * GIB
    assert free[mps] == 14 * GIB
    assert bool(budgets.why[mps].startswith("max_vram=")) == bool(budget)


def document(*words: str) -> dict[str, Any]:
    return dict(json.loads(CliRunner().invoke(app, ["plan", *words, "--json"]).stdout))


@pytest.mark.slow
def test_a_mac_of_less_memory_than_the_weights_gets_a_plan_on_its_gpu_with_all_that_it_may_use() -> None:
    told = document("--rig", "mps=20MiB@Apple M3,cpu=20MiB")
    assert told["options"]["--backend"] == "mps"
    assert any("mps has the host's memory, of which 15.0 MiB may be used" in note for note in told["notes"])
    assert 12 * MIB < sum(told["peak_bytes"].values()) <= 15 * MIB


@pytest.mark.fifth
def test_the_memory_beside_an_integrated_gpu_may_be_larger_than_its_own() -> None:
    """Weights rest in the whole of the host's memory, of which the integrated GPU may use a part."""
    told = account("xpu0=8MiB@iGPU,cuda0=24MiB@RTX 3070,cpu=1GiB", backend="cuda0", params_backend="cpu")
    assert told.devices()["cpu"]["peak"] > 8 * MIB


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("rig", "is_said"), [("cuda0=1GiB", True), ("cuda0=1GiB,cpu=4GiB", False), ("mps=1GiB", False)]
)
def test_whose_memory_the_hosts_is_is_said_where_a_rig_does_not(rig: str, is_said: bool) -> None:
    assert any("so that of this machine counts" in note for note in account(rig).notes) == is_said


@pytest.mark.fifth
def test_data_say_all_places_in_which_weights_rest() -> None:
    places = "diffusion=device:4MiB&cpu,text_encoder_2=cpu:1MiB&disk,text_encoder=cpu"
    words = ["--rig", "cuda0=1GiB,cpu=4GiB", "--backend", "cuda0", "--params-backend", places]
    assert {name: one["rests"] for name, one in document(*words)["components"].items()} == {
        "text_encoder": "cpu", "text_encoder_2": "cpu&disk", "transformer": "device&cpu", "vae": "device",
    }  # fmt: skip

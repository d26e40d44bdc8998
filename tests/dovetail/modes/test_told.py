"""What is said of plans in which devices compute together: what host memory holds, and the words for each mode."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.compiler.devices.device import Device
from dovetail.compiler.spec.modes import TOGETHER
from dovetail.compiler.spec.residency import Residency
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account
from testbed.pipelines.tiny_pipelines import flux, sd

RIG = "sim0=18MiB,sim1=18MiB,cpu=140MiB"
DEVICES = "diffusion=sim0&sim1,te=sim0,vae=sim0"


def account_of(mode: str, **options: Any) -> Account:
    """What is planned for a picture, of which one component is split under a mode."""
    pipe, call = sd() if mode == "batch" else flux()
    dry = DryPipeline(pipe, {"rig": RIG, "backend": DEVICES, "split_mode": {"diffusion": mode}, **options})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    return account


@pytest.mark.parametrize("mode", TOGETHER)
def test_host_memory_holds_a_weight_once_for_all_devices(mode: str) -> None:
    account = account_of(mode, params_backend={"diffusion": "cpu"})
    (part,) = [one for one in account.shown if one.call.role == "diffusion"]
    whole = sum(weight.nbytes for weight in part.call.program.weights.values())
    host = Device("cpu")
    assert account.generation.resident[host] == {part.call.component: whole}


@pytest.mark.parametrize("mode", TOGETHER)
def test_weights_rest_in_host_memory_for_every_device(mode: str) -> None:
    account = account_of(mode, params_backend={"diffusion": "cpu"})
    (part,) = [one for one in account.shown if one.call.role == "diffusion"]
    assert len(part.rows) == 2
    assert all(set(row.rests) == {Residency.HOST} for row in part.rows)

"""What is said of plans in which devices compute together: what host memory holds, and the words for each mode."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import SPREAD
from dovetail.compiler.durations import duration
from dovetail.compiler.spec.modes import TOGETHER, inner_mode
from dovetail.compiler.spec.residency import Residency
from dovetail.draw.text.reasons import reason_for
from dovetail.explain.states import states_in_words
from dovetail.passes.simulate.timeline import timeline
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account
from testbed.pipelines.tiny_pipelines import flux, sd

RIG = "sim0=18MiB,sim1=18MiB,sim2=18MiB,sim3=18MiB,cpu=140MiB"
DEVICES = "diffusion=sim0&sim1,te=sim0,vae=sim0"


def account_of(mode: str, **options: Any) -> Account:
    """What is planned for a picture, of which one component is split under a mode."""
    pipe, call = sd() if mode.startswith("batch") else flux()
    several = {"backend": "diffusion=sim0&sim1&sim2&sim3,te=sim0,vae=sim0"} if inner_mode(mode) else {}
    asked = {"rig": RIG, "backend": DEVICES, "split_mode": {"diffusion": mode}, **several, **options}
    dry = DryPipeline(pipe, asked)
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    return account


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", TOGETHER)
def test_weights_rest_in_host_memory_once_for_all_devices(mode: str) -> None:
    account = account_of(mode, params_backend={"diffusion": "cpu"})
    (part,) = [one for one in account.shown if one.call.role == "diffusion"]
    whole = sum(weight.nbytes for weight in part.call.program.weights.values())
    host = Device("cpu")
    assert account.generation.resident[host] == {part.call.component: whole}
    assert len(part.rows) == (4 if inner_mode(mode) else 2)
    assert all(set(row.rests) == {Residency.HOST} for row in part.rows)


@pytest.mark.slow
def test_a_mode_is_said_to_be_unused_where_a_search_puts_each_component_on_one_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe, call = flux()
    dry = DryPipeline(pipe, {"rig": "sim0=64MiB,sim1=64MiB,cpu=8GiB", "split_mode": "tensor"})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    assert len({row.device for part in account.shown for row in part.rows}) == 1
    said = "--split-mode tensor is not used, for each component is on one device (sim0): name several in --backend"
    assert sum(said in one for one in caplog.messages) == 1


@pytest.mark.slow
def test_a_mode_that_is_not_possible_is_not_said_to_be_as_asked() -> None:
    pipe, call = flux()
    dry = DryPipeline(pipe, {"rig": RIG, "backend": DEVICES, "split_mode": "batch"})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    told = {part.call.component: reason_for(account, part) for part in account.parts}
    split = "split by blocks over sim0 & sim1."
    assert told.pop("transformer") == f"In place of split mode batch, which is not possible here: {split}"
    assert all(one.startswith("As asked: ") for one in told.values())


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
def test_each_part_is_told_with_its_mode(mode: str) -> None:
    account = account_of(mode)
    components: Any = account.document()["components"]
    assert {name: one["split_mode"] for name, one in components.items()} == {
        "text_encoder": "layer", "text_encoder_2": "layer", "transformer": mode, "vae": "layer",
    }  # fmt: skip
    (part,) = [one for one in account.parts if one.call.role == "diffusion"]
    assert reason_for(account, part) == f"As asked: split by {mode} over sim0 & sim1."
    told = list(states_in_words(part.call.program))
    assert any("a call in" in one for one in told)
    assert not any("exchange 0 B" in one for one in told)


@pytest.mark.parametrize("mode", ["layer", "row", "sequence"])
def test_a_compiled_pipeline_says_how_a_component_is_split(mode: str) -> None:
    pipe, _ = flux()
    pipe = dovetail.compile_pipeline(pipe, rig=RIG, backend=DEVICES, split_mode={"diffusion": mode})
    with pipe.dovetail as handle:
        (line,) = [one for one in str(handle).splitlines() if "(diffusion)" in one]
        assert ("split by" in line) == (mode != "layer")
        assert mode == "layer" or f"sim0 & sim1, split by {mode}" in line


@pytest.mark.slow
def test_a_mode_that_takes_longer_than_one_device_is_told_once_with_both_times(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.passes.states.states._TOLD", set())
    accounts = [account_of("sequence", params_backend={"diffusion": rest}) for rest in ("device", "cpu")]
    (told,) = [one for one in caplog.messages if "though one device alone" in one]
    (part,) = [one for one in accounts[0].parts if one.call.role == "diffusion"]
    seconds = timeline(part.call.program, accounts[0].speeds).seconds
    assert f"split by sequence as asked ({duration(seconds, SPREAD)} a call)" in told

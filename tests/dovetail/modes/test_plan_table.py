"""What the table of a plan, and its JSON, say of a component that devices compute together."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.cli.output.tables import table_text
from dovetail.explain.states import states_in_words
from dovetail.passes.simulate.timeline import timeline
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.shared_work import HEAD_OF_BLOCKS, HEAD_OF_GROUPS, RIGHT_OF_BLOCKS, RIGHT_OF_GROUPS
from dovetail.planning.table import Account
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux
from tests.cases import slow_but


def account_of(request: dict[str, Any]) -> Account:
    sim.enable()
    pipe, call = flux()
    dry = DryPipeline(pipe, request)
    try:
        return dry.account(dry(**call))
    finally:
        dry.undo()


@pytest.mark.fifth
@pytest.mark.parametrize("mode", slow_but(["tensor"], ["tensor", "sequence"]))
def test_mode_states_exchanges_and_busy_shares_are_told(mode: str) -> None:
    backend = {"backend": "diffusion=sim0&sim1,te=sim0,vae=sim0", "split_mode": f"diffusion={mode}"}
    account = account_of({"rig": "sim0=1GiB,sim1=1GiB,cpu=4GiB", **backend})
    (program,) = (part.call.program for part in account.parts if part.title == "transformer")
    told = account.told()
    facts = account.document()["components"]["transformer"]["together"]  # type: ignore[index]
    words, line = " ".join(states_in_words(program)), timeline(program, account.speeds)

    assert [row[:3] for row in told["groups"][:2]] == [["transformer", mode, "sim0"], ["", "", "sim1"]]
    assert facts["mode"] == mode
    assert facts["seconds_a_call"] == line.seconds
    assert sum(one["sent_bytes"] for one in facts["devices"].values()) == sum(
        one["bytes"] for one in facts["exchanges"].values()
    )
    for row, (device, of_device) in zip(told["groups"], facts["devices"].items(), strict=False):
        assert row[2:4] == [device, f"{of_device['busy']:.0%}"]
        assert 0 < of_device["busy"] <= 1
    for row in told["groups"]:
        assert not row[5] or f"Devices exchange {row[6]} a call in {row[5]}." in words
    assert sum(int(row[2]) for row in told["blocks"]) == len(list(program.ops()))
    for row in told["blocks"]:
        assert f"Of the {row[2]} operations of {row[1]} " in words
        assert int(row[2]) == sum(int(count) for count in row[3:] if count != "-")
    for head, rows, right in (
        (HEAD_OF_GROUPS, told["groups"], RIGHT_OF_GROUPS), (HEAD_OF_BLOCKS, told["blocks"], RIGHT_OF_BLOCKS),
    ):  # fmt: skip
        assert max(map(len, table_text(head, rows, right).splitlines())) <= 80


@pytest.mark.fifth
@pytest.mark.parametrize("mode", slow_but(["layer"], ["layer", "row"]))
def test_other_modes_have_no_such_table(mode: str) -> None:
    backend = {"backend": "diffusion=sim0&sim1,te=sim0,vae=sim0", "split_mode": f"diffusion={mode}"}
    account = account_of({"rig": "sim0=1GiB,sim1=1GiB,cpu=4GiB", **backend})
    told = account.told()
    assert not told["groups"]
    assert not told["blocks"]
    assert "together" not in account.document()["components"]["transformer"]  # type: ignore[index]

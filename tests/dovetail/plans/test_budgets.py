"""A plan whose devices have less memory than it takes is refused by verify, and show says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app

TOLD = (
    "net takes 4.1 MiB of sim0 at its fullest moment, and the devices that it was planned for give it 1.0 MiB there: "
    "compile it again for these devices, or for more of sim0 (--rig, --max-vram)"
)


@pytest.fixture(params=['"rig": "sim0=100MiB"', '"devices sim0=100MiB"'], ids=["of all", "left to it"])
def edited(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "net.json"
    net = nn.Linear(1024, 1024)
    dovetail.compile(net, (torch.ones(8, 1024),), backend="sim0", rig="sim0=100MiB").save(file)
    text = file.read_text()
    assert CliRunner().invoke(app, ["verify", str(file)]).exit_code == 0
    assert request.param in text
    file.write_text(text.replace(request.param, request.param.replace("100MiB", "1MiB")))
    return file


def test_verify_refuses_a_plan_that_takes_more_than_its_devices_have(edited: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(edited)])
    assert (result.exit_code, result.stderr) == (3, f"error: {TOLD}\n")


def test_show_says_that_a_plan_takes_more_than_its_devices_have(edited: Path) -> None:
    result = CliRunner().invoke(app, ["show", str(edited)])
    assert result.exit_code == 0
    assert result.stderr == f"warning: {TOLD}\n"

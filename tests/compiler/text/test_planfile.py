"""Plan files: saved, loaded, and refused when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DovetailError, NotHereError, PlanFileError, WeightError


class Rope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("angles", torch.linspace(0, 1, 8), persistent=False)
        self.wave = torch.polar(torch.ones(4), torch.linspace(0, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * self.angles
        turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * self.wave
        return torch.view_as_real(turned).flatten(-2) + torch.tensor([0.25])


@pytest.fixture
def module() -> Rope:
    torch.manual_seed(0)
    return Rope().eval()


X = torch.linspace(-1, 1, 16).reshape(2, 8)


@pytest.fixture
def plan(module: Rope, tmp_path: Path) -> Path:
    dovetail.compile(module, (X,), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB").save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def weights_as(kind: str, module: Rope, folder: Path) -> Any:
    if kind == "module":
        return module
    if kind == "state dict":
        return module.state_dict()
    save_file(module.state_dict(), folder / "model.safetensors")
    return folder if kind == "folder" else folder / "model.safetensors"


@pytest.mark.parametrize("kind", ["module", "state dict", "file", "folder"])
def test_a_loaded_plan_runs_as_the_module_did(module: Rope, plan: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "weights").mkdir()
    loaded = dovetail.load(plan, weights=weights_as(kind, module, tmp_path / "weights"))
    with torch.no_grad():
        assert torch.equal(loaded(X), module(X))


def test_saving_and_loading_gives_the_same_program_and_schedule(module: Rope, plan: Path) -> None:
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB")
    loaded = dovetail.load(plan)
    assert str(loaded) == str(compiled)
    assert str(loaded.schedule) == str(compiled.schedule)
    assert loaded.rig == compiled.rig


@pytest.mark.parametrize(
    ("backend", "rig"),
    [
        ("sim0&1/sim0", "sim0=1GiB,1/sim0=1GiB;r0-r1=10Gbit"),
        ("1/cuda0&cuda1&2/cpu", "1/cuda0=1GiB,cuda1=1GiB,2/cpu=1GiB"),
        ("cuda0&cuda1", "2x RTX 3090;cuda0-cuda1=NVLink;cuda0+cuda1@root0"),
    ],
)
def test_a_plan_for_devices_of_other_processes_and_their_links_reads_back(
    module: Rope, tmp_path: Path, backend: str, rig: str
) -> None:
    compiled = dovetail.compile(module, (X,), backend=backend, rig=rig)
    compiled.save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json")
    assert (str(loaded), str(loaded.schedule)) == (str(compiled), str(compiled.schedule))
    assert loaded.rig == compiled.rig == Rig.parse(rig)
    assert loaded.program.rig.links == compiled.program.rig.links
    for one in (compiled, loaded):
        with pytest.raises(NotHereError, match="which is not this machine: it can be printed"):
            one(X)


def test_saving_twice_gives_the_same_bytes_with_one_node_a_line(module: Rope, plan: Path, tmp_path: Path) -> None:
    dovetail.load(plan, weights=module).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == plan.read_bytes()
    lines = plan.read_text().splitlines()
    assert sum("aten.linear.default" in line for line in lines) == 4


def test_a_plan_without_weights_says_so_when_it_is_called(plan: Path) -> None:
    with pytest.raises(NotHereError, match="no data for"):
        dovetail.load(plan)(X)


def test_weights_of_another_shape_are_refused(module: Rope, plan: Path) -> None:
    wrong = {**module.state_dict(), "blocks.0.weight": torch.zeros(8, 9)}
    with pytest.raises(WeightError, match=r"blocks.0.weight is torch.float32\[8, 9\]"):
        dovetail.load(plan, weights=wrong)(X)


def change(plan: Path, **fields: Any) -> None:
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **fields}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan.write_text(""),
        lambda plan: plan.write_text("{"),
        lambda plan: plan.write_text("[]"),
        lambda plan: plan.write_text('{"format": "dovetail plan", "torch": ' + 5000 * "9" + "}"),
        lambda plan: plan.write_bytes(b"\x80\x02}q\x00."),
        lambda plan: plan.unlink(),
        lambda plan: change(plan, version=99),
        lambda plan: change(plan, surprise=1),
        lambda plan: change(plan, program=["return []"]),
        lambda plan: change(plan, program=["program \"A\"", "%a: f32[1]~0 = os.system(\"x\")", "return [%a]"]),
        lambda plan: change(plan, rig="cuda0=lots"),
        lambda plan: plan.with_suffix(".safetensors").write_bytes(b"rubbish"),
        lambda plan: plan.with_suffix(".safetensors").unlink(),
    ],
)  # fmt: skip
def test_a_spoiled_plan_gets_one_clear_error(plan: Path, spoil: Any) -> None:
    spoil(plan)
    with pytest.raises(DovetailError) as caught:
        dovetail.load(plan)
    assert str(caught.value)


def test_a_plan_that_cannot_be_written_leaves_what_was_there(module: Rope, tmp_path: Path) -> None:
    compiled = dovetail.compile(module, (X,), backend="cpu")
    with pytest.raises(PlanFileError, match="cannot write the plan"):
        compiled.save(tmp_path / "nowhere" / "plan.json")
    compiled.save(tmp_path / "plan.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "plan.safetensors"]

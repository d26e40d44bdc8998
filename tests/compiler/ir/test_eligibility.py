"""Weights that a row split slices are marked in every program, and of each other one is said why it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import PlanFileError, ProgramTextError
from dovetail.compiler.ir.eligibility import BIAS, marks_by_name
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.draw import document, page
from dovetail.draw.text.marks import lines_of_marks


class Block(nn.Module):
    """Weights of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 384), nn.Linear(384, 256, bias=False)
        self.short, self.norm = nn.Linear(256, 255), nn.LayerNorm(256)
        self.turned = nn.Parameter(torch.randn(256, 256).t() / 16)
        self.added = nn.Parameter(torch.randn(256, 256) / 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.gelu(self.up(self.norm(x)))) + F.linear(x, self.turned)
        return y + F.linear(x, self.added) + self.added.sum() + F.pad(self.short(x), (0, 1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


REASONS = {
    "up.weight": "",
    "up.bias": BIAS,
    "down.weight": "",
    "short.weight": "a side below 256: 255",
    "short.bias": "1-D",
    "norm.weight": "1-D",
    "norm.bias": "1-D",
    "turned": "not contiguous",
}
EXPECTED = {f"blocks.{n}.{name}": reason for n in range(2) for name, reason in REASONS.items()}
EXPECTED |= {"head.weight": "in no block", "head.bias": "1-D"}
BACKENDS = [("sim0", "layer"), ("sim0&sim1", "layer"), ("sim0&sim1", "row")]


def compiled(backend: str = "sim0&sim1", mode: str = "layer") -> CompiledModule:
    torch.manual_seed(0)
    return dovetail.compile(
        Model().eval(), (torch.ones(3, 256),), backend=backend, split_mode=mode, rig="sim0=1GiB,sim1=1GiB"
    )


@pytest.mark.parametrize(("backend", "mode"), BACKENDS)
def test_every_weight_is_eligible_or_has_a_reason_whatever_the_mode(backend: str, mode: str) -> None:
    program = compiled(backend, mode).program
    marks = marks_by_name(program)
    added = [marks.pop(f"blocks.{n}.added") for n in range(2)]
    assert all(reason.startswith("read otherwise: by %") for reason in added)
    assert marks == EXPECTED
    sliced = {name for name in program.bounds if len(program.weights[name].shape) == 2}
    assert sliced == ({name for name, reason in marks.items() if not reason} if mode == "row" else set())


@pytest.mark.parametrize(("backend", "mode"), BACKENDS)
def test_the_text_says_which_and_why_not_and_is_read_back(backend: str, mode: str) -> None:
    program = compiled(backend, mode).program
    text = print_program(program)
    lines = {line.split('"')[1]: line for line in text.splitlines() if " = parameter " in line}
    for name, reason in marks_by_name(program).items():
        assert (" eligible in " in lines[name]) == (not reason)
        assert lines[name].endswith(f"  // not eligible: {reason}") == bool(reason)
    assert print_program(parse_program(text)) == text


def test_a_false_mark_is_refused_and_none_before_blocks_were_looked_for() -> None:
    one = compiled()
    text = print_program(one.program)
    for said in ('parameter "blocks.0.short.weight"', 'parameter "head.weight"', 'parameter "blocks.0.norm.bias"'):
        with pytest.raises(ProgramTextError, match="is said to be eligible for a row split"):
            parse_program(text.replace(said, f"{said} eligible"))
    assert one.base is not None
    assert "eligible" not in print_program(one.base)


def test_a_plan_keeps_the_marks_and_one_of_before_is_refused(tmp_path: Path) -> None:
    one, path = compiled(), tmp_path / "plan.json"
    one.save(path)
    assert str(dovetail.load(path)) == str(one)
    plan = json.loads(path.read_text())
    path.write_text(json.dumps({**plan, "version": 5}))
    with pytest.raises(PlanFileError, match="version should be 7, and is 5: compile it again"):
        dovetail.load(path)


def test_data_the_page_and_the_screen_say_it_too() -> None:
    program = compiled().program
    nodes = {one["weight"]: one for one in document(program)["nodes"] if one["weight"]}
    marks = marks_by_name(program)
    assert {name: (one["eligible"], one["why_not"]) for name, one in nodes.items()} == {
        name: (not reason, reason) for name, reason in marks.items()
    }
    (line,) = lines_of_marks({"model": program})
    assert line == (
        "model: 4 of 20 weights are eligible for a row split, 1.5 MiB; not eligible: 7 1-D, 2 not contiguous, "
        "2 read otherwise, 2 bias of a sliced matrix, 2 a side below 256, 1 in no block."
    )
    shown = page({"model": program})
    assert "blocks.0.up.weight [384, 256] float32, eligible for a row split" in shown
    assert "blocks.0.norm.bias [256] float32, not eligible for a row split (1-D)" in shown
    assert line[len("model: ") : 60] in shown


class ReadOtherwise(nn.Module):
    """Blocks whose matrices are read by more than a matmul, in an order that a pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            y, a, b = block(x), block.weight.sum(), block.weight.mean()
            x = (y.unsqueeze(0).expand(8, -1, -1) * b).sum(0) + a * y
        return x


@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_marks_read_the_same_where_an_order_of_readers_was_changed(backend: str) -> None:
    compiled = dovetail.compile(ReadOtherwise(), (torch.randn(4, 256),), backend=backend, rig="sim0=1GiB,sim1=1GiB")
    text = print_program(compiled.program)
    assert "read otherwise" in text
    assert print_program(parse_program(text)) == text

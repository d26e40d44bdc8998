"""A trace whose operations are read late is the trace, and what is known of it before is what it says afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import nn
from torch.export import Dim

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import ProgramTextError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.text.late import LateProgram, parse_late
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from tests.laws.graphs import Case, cases


class Several(nn.Module):
    """Returns a weight, an input, a constant, and results of several kinds; one weight is read by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unread = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, text: str = "%p_unread_weight  // %p_unread_bias") -> Any:
        left, right = self.layer(x).chunk(2, dim=-1)
        return {"weight": self.layer.weight, "x": x, "parts": (right, left * 2), "text": text, "none": None}


def traced(dynamic: bool = False) -> Program:
    shapes = {"x": {0: Dim("rows", min=2, max=64)}} if dynamic else None
    return trace(Several(), (torch.ones(6, 4),), dynamic_shapes=shapes)


def check_late(text: str) -> None:
    late, whole = parse_late(text), parse_program(text)
    if not list(whole.ops()):
        assert type(late) is Program  # all of it was read
        return
    assert isinstance(late, LateProgram)
    assert (late.results(), late.weights_read()) == (whole.results(), whole.weights_read())
    assert (late.name, late.weights, late.signature, late.symbols) == (
        whole.name, whole.weights, whole.signature, whole.symbols,
    )  # fmt: skip
    assert not late.is_read
    assert print_program(late) == text
    assert late.is_read
    assert (late.results(), late.weights_read()) == (whole.results(), whole.weights_read())


@given(cases())
def test_what_is_said_of_a_late_program_is_what_it_is(case: Case) -> None:
    check_late(print_program(case.program))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_of_all_kinds_are_known_before_operations_are_read(dynamic: bool) -> None:
    check_late(print_program(traced(dynamic)))
    assert "unread.weight" not in parse_late(print_program(traced())).weights_read()


def test_a_late_program_is_lowered_and_copied_as_the_trace_is() -> None:
    program = traced()
    texts = []
    for one in (program, parse_late(print_program(program))):
        one.rig = Rig.parse("sim0=1GiB,sim1=1GiB")
        texts.append(print_program(PassManager(default_passes()).run(one.copy())))
    assert texts[0] == texts[1]


def test_what_passes_changed_is_read_at_once() -> None:
    program = traced()
    program.rig = Rig.parse("sim0=1GiB,sim1=1GiB")
    assert type(parse_late(print_program(PassManager(default_passes()).run(program)))) is Program


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return [", "return "),
        ("return [", "return [%nobody, "),
        ("parameter", "parametre"),
        ("program", "prog"),
        ("aten.linear.default", "aten.linaer.default"),
        ("return [", "[".join(["return "] * 2)),
    ],
)
def test_a_text_that_is_no_program_is_refused_at_once(old: str, new: str) -> None:
    with pytest.raises(ProgramTextError):
        parse_late(print_program(traced()).replace(old, new))


def test_arguments_that_are_none_are_refused_when_they_are_read() -> None:
    late = parse_late(print_program(traced()).replace("aten.linear.default(", "aten.linear.default(%nobody, "))
    with pytest.raises(ProgramTextError, match="nobody"):
        _ = late.graph
    with pytest.raises(AttributeError):
        _ = late.grapes  # type: ignore[attr-defined]

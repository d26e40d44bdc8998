"""What a trace of dynamic shapes took for granted is kept, and a call where it does not hold is refused."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

import dovetail
from dovetail.compiler.errors import CallError, ProgramTextError, TraceError
from dovetail.compiler.frontend.guards import expression_text
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.sizes import evaluate, holds, with_numbers
from dovetail.compiler.text.parser import parse_program


class Of(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def longer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum(0) + y.sum(0) if x.shape[0] > y.shape[0] else x.sum(0) - y.sum(0)


def even(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] % 2 == 0 else x * 3


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b = x.shape[0]
    return x.view(b // 2, 2, 4).sum(1) * (1 if b > 8 else 10)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x if x.shape[0] * y.shape[0] > 20 or y.shape[0] == x.shape[0] + 3 else -x


def rounded_up(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x if math.ceil(x.shape[0] / 4) * 4 == x.shape[0] else -x


def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] != 7)
    return x * 2


def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y])[: max(x.shape[0], y.shape[0])] * 2


def compiled_for(function: Callable[..., Any], kind: str, first: int, second: int) -> dovetail.CompiledModule:
    example = torch.ones(first, 4), torch.ones(second, 4)
    trace(Of(function), example, dynamic_shapes=KINDS[kind])  # raises where compile would go on by parts
    return dovetail.compile(Of(function), example, backend="cpu", dynamic_shapes=KINDS[kind])


B, C = Dim("b", min=3, max=64), Dim("c", min=2, max=63)
KINDS: dict[str, Any] = {
    "named": {"x": {0: B}, "y": {0: C}},
    "dynamic": {"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}},
    "auto": {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [longer, even, halves, product, rounded_up, checked, joined])
def test_a_call_gives_what_eager_gives_or_says_which_relation_does_not_hold(
    function: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    module = Of(function)
    try:
        compiled = compiled_for(function, kind, 8, 5)
    except TraceError as error:  # a named dimension stands for every size within its bounds
        assert kind == "named"
        assert "Constraints violated (" in str(error)
        return
    compiled.save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json", weights=module)
    assert str(loaded) == str(compiled)
    outcomes = set()
    for first in range(3, 17):
        for second in range(2, 12):
            x, y = torch.randn(first, 4), torch.randn(second, 4)
            for program in (compiled, loaded):
                try:
                    assert torch.equal(program(x, y), module(x, y)), (first, second)
                    outcomes.add("equal")
                except (CallError, RuntimeError) as error:
                    assert isinstance(error, CallError), error
                    outcomes.add("refused")
    assert "equal" in outcomes


def test_a_refused_call_names_the_relation_and_both_numbers() -> None:
    compiled = compiled_for(longer, "dynamic", 5, 3)
    relation = (
        r"holds where (s\d+) > (s\d+) \(3 > 5\), which is false for this call; .*is x\.shape\[0\].*is y\.shape\[0\]"
    )
    with pytest.raises(CallError, match=relation):
        compiled(torch.ones(3, 4), torch.ones(5, 4))
    assert "\nguard s" in str(compiled)


def test_a_refused_size_names_its_bounds_and_asks_for_no_dynamic_shapes_again() -> None:
    for kind, bounds in (("named", r"\d+ ≤ s\d+ ≤ 64"), ("dynamic", r"s\d+ ≥ \d+")):
        compiled = compiled_for(longer, kind, 8, 3)
        with pytest.raises(
            CallError, match=rf"argument x was traced as .* for {bounds}, got .*: compile for this shape$"
        ):
            compiled(torch.ones(2, 4), torch.ones(3, 4))


def test_dynamic_shapes_are_traced_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        compiled_for(longer, "dynamic", 5, 3)


def test_what_ranges_imply_is_no_guard() -> None:
    module = Of(lambda x, y: x if x.shape[0] < 100 else -x)
    compiled = dovetail.compile(
        module, (torch.ones(5, 4), torch.ones(3, 4)), backend="cpu", dynamic_shapes=KINDS["named"]
    )
    assert "guard" not in str(compiled)


def test_the_bounds_of_named_dimensions_are_kept() -> None:
    compiled = compiled_for(longer, "named", 8, 3)
    for rows in (2, 66):
        with pytest.raises(CallError, match="argument x"):
            compiled(torch.ones(rows, 4), torch.ones(3, 4))


def test_a_relation_that_cannot_be_written_down_refuses_the_trace() -> None:
    with pytest.raises(TraceError, match="cannot be checked when it is called"):
        compiled_for(lambda x, y: x if x.shape[0] / 2 > 1.7 else -x, "auto", 8, 3)


def test_a_trace_with_dimensions_that_cannot_be_so_proposes_what_torch_does() -> None:
    with pytest.raises(TraceError, match=r"(?s)Suggested fixes:.*change dynamic_shapes so that") as caught:
        compiled_for(lambda x, y: x + y, "named", 8, 8)
    assert "independent of tensor values" not in str(caught.value)


@pytest.mark.parametrize(
    ("relation", "truth"),
    [
        ("a > b", True), ("a % 2 == 0", False), ("a % 2 == 0 or b == 2", True), ("not (a == 3) and b < 5", False),
        ("Max(a, b) >= 3", True), ("(-(-a//2)) == 2", True), ("a**2 != 9", False), ("FloorDiv(a, b) <= 1", True),
    ],
)  # fmt: skip
def test_relations_are_evaluated(relation: str, truth: bool) -> None:
    assert holds(relation, {"a": 3, "b": 2}) is truth
    assert relation in with_numbers(relation, {"a": 3, "b": 2})


P, Q = (sympy.Symbol(name, integer=True, positive=True) for name in "pq")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (FloorDiv(P, 2) * FloorDiv(Q, 3), FloorDiv(P, 2) * (P + Q)),
        (Mod(P, Q + 1) * Mod(P, 5), P * Q),
        ((P + 1) * (Q + 2), (P + 3) ** 2),
    ],
)
def test_an_expression_is_written_so_that_it_reads_back_as_the_same(left: sympy.Expr, right: sympy.Expr) -> None:
    written = expression_text(sympy.Ne(PythonMod(left, right), 0))
    for p, q in itertools.product(range(2, 20), range(3, 20)):
        values = {P: p, Q: q}
        assert holds(written, {"p": p, "q": q}) is (int(left.subs(values)) % int(right.subs(values)) != 0), written


@pytest.mark.parametrize(
    "text", ["a", "a < b < 4", "print(a)", "a is b", "a == 'x'", "[a] == [a]", "a and b", "", "a >"]
)
def test_what_is_no_relation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"relation|expression"):
        holds(text, {"a": 3, "b": 2})


@pytest.mark.parametrize(
    "text", ["9**9**9", "2**-1", "1//0", "Mod(1, 0)", "1 << 99", "0.5", "a.b", "a[0]", "Max()", "-" * 900 + "1"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"64 bits|zero|expression"):
        evaluate(text, {"a": 3})


def test_a_guard_that_its_own_example_breaks_is_refused() -> None:
    compiled = dovetail.compile(
        Of(longer), (torch.ones(5, 4), torch.ones(3, 4)), backend="cpu", dynamic_shapes=KINDS["dynamic"]
    )
    text = str(compiled)
    with pytest.raises(ProgramTextError, match="example"):
        parse_program(text.replace(" > ", " < "))

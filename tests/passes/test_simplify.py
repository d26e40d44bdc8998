from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.rewrites.simplify import Simplify

Tensor = torch.Tensor


class Applies(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def simplified(module: nn.Module, *args: Tensor) -> Program:
    return PassManager([Simplify()]).run(trace(module, args))


def names(program: Program) -> list[str]:
    return [node.target.overloadpacket.__name__ for node in program.ops()]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.dropout(x * 2, 0.5, False),
        lambda x: (x * 2).to(torch.float32),
        lambda x: (x * 2).clone() + 0,
        lambda x: (x * 2).detach(),
        lambda x: (x * 2).reshape(2, 3),
        lambda x: (x * 2).expand(2, 3),
        lambda x: (x * 2)[:, :],
        lambda x: (x * 2).permute(0, 1),
        lambda x: (x * 2).view(-1, 3),
        lambda x: (x * 2).type_as(x),
    ],
    ids="dropout to clone detach reshape expand slice permute view type_as".split(),
)
def test_what_repeats_its_operand_is_dropped(function: Callable[[Tensor], Tensor]) -> None:
    program = simplified(Applies(lambda x: function(x) + 1), torch.ones(2, 3))
    assert set(names(program)) <= {"mul", "add"}


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: (x * 2).to(torch.float64), "to"),
        (lambda x: (x * 2).t().contiguous(), "contiguous"),
        (lambda x: (x * 2).contiguous(), "contiguous"),  # x may come in other strides
        (lambda x: (x * 2).clone(memory_format=torch.contiguous_format) + 1, "clone"),
        (lambda x: (x * 2).to(memory_format=torch.contiguous_format) + 1, "to"),
        (lambda x: torch.matmul(x, x.mT).clone() + 1, "clone"),
        (lambda x: (x * 2)[None].reshape(1, 2, 3).sin(), "reshape"),  # may give the first dimension another stride
        (lambda x: (x * 2)[:1], "slice"),
        (lambda x: (x * 2).reshape(3, 2), "reshape"),
        (lambda x: torch.view_as_complex(x[:, :2].contiguous()).conj() * 1j, "_conj"),
    ],
    ids=[
        "to",
        "contiguous",
        "needless contiguous",
        "clone to a format",
        "to a format",
        "clone of a kernel's",
        "reshape of one row",
        "slice",
        "reshape",
        "conj",
    ],
)
def test_what_changes_type_layout_or_elements_is_kept(function: Callable[[Tensor], Tensor], kept: str) -> None:
    module, x = Applies(function), torch.randn(2, 3)
    assert kept in names(simplified(module, x))
    assert torch.equal(dovetail.compile(module, (x,), backend="sim0")(x), module(x))


class Conjugates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x)
        return torch.view_as_real((z.conj().clone() * z.conj()).resolve_conj())


def test_a_conjugate_is_no_repetition_though_layout_and_memory_are_its_operands() -> None:
    x = torch.randn(3, 2)
    assert torch.equal(dovetail.compile(Conjugates(), (x,), backend="sim0")(x), Conjugates()(x))


class WritesCopy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = y.clone()
        z.add_(1)
        return y + z


class ReturnsCopies(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y.clone()


def test_a_copy_that_is_written_stays_a_copy() -> None:
    x = torch.randn(3)
    assert "clone" in names(simplified(WritesCopy(), x))
    assert torch.equal(dovetail.compile(WritesCopy(), (x,), backend="sim0")(x), WritesCopy()(x))


def test_copies_that_are_handed_out_stay_apart() -> None:
    x = torch.randn(3)
    first, second = dovetail.compile(ReturnsCopies(), (x,), backend="sim0")(x)
    first.add_(1)
    assert not torch.equal(first, second)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.dead = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.dead(x).relu()
        return self.used(x)


def test_a_copy_of_a_part_is_kept_for_it_lets_go_of_the_rest() -> None:
    assert "clone" in names(simplified(Applies(lambda x: (x * 2)[:1].clone() + 1), torch.ones(100, 3)))


def test_dead_code_and_unused_weights_are_dropped() -> None:
    program = simplified(Unused(), torch.ones(1, 2))
    assert set(program.weights) == {"used.weight", "used.bias"}
    assert names(program) == ["linear"]


def test_inputs_are_kept_even_if_nothing_reads_them() -> None:
    class Ignores(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + 1

    program = PassManager([Simplify()]).run(trace(Ignores(), (torch.ones(1), torch.ones(2))))
    assert len(list(program.inputs())) == 2


def test_simplifying_twice_changes_nothing_more() -> None:
    program = simplified(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)), torch.ones(1, 2))
    before = print_program(program)
    assert not Simplify().run(program)
    assert print_program(program) == before

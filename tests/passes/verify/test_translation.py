"""The manager checks passes that keep values by what every op reads, whatever the passes say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from dovetail.compiler.errors import PassError, VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager

from ..sample import program_of

aten = torch.ops.aten
Spoil = Callable[[Program], None]


@dataclass(frozen=True)
class Spoils(Pass):
    """A pass that says that it keeps values, and does something else."""

    name: ClassVar[str] = "spoils"
    keeps_values: ClassVar[bool] = True
    spoil: Spoil = lambda program: None

    def run(self, program: Program) -> Change:
        self.spoil(program)
        return Change(1, "thing spoilt")


class Varied(nn.Module):
    """A value read twice, memory written between views and between copies, layouts, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y.sigmoid() + y
        notes = torch.zeros_like(y)
        before = notes.reshape(-1)
        notes.add_(y)
        after = notes.reshape(-1)
        kept = notes.clone()
        notes.mul_(2)
        noise = torch.rand_like(y) - torch.randn_like(y)
        return self.second(y.t().contiguous().t()).flatten() * before + after + (kept + noise).flatten()


def op(program: Program, name: str, index: int = 0) -> Node:
    """The op of a name, counted from the first or the last."""
    return [node for node in program.ops() if getattr(node.target, "_opname", "") == name][index]


def overwrite_what_is_read_later(program: Program) -> None:
    op(program, "sigmoid").target = aten.sigmoid_.default


def compute_over_what_is_read_later(program: Program) -> None:
    node = op(program, "sigmoid")
    storage = tensors_of(node.args[0])[0].storage  # type: ignore[arg-type]
    node.meta["value"] = replace(node.meta["value"], storage=storage)


def move_a_possible_copy_over_a_write(program: Program) -> None:
    op(program, "add_").prepend(op(program, "reshape", 1))


def merge_possible_copies_over_a_write(program: Program) -> None:
    op(program, "reshape", 1).replace_all_uses_with(op(program, "reshape", 0))


def read_what_is_copied_in_place_of_the_copy(program: Program) -> None:
    node = op(program, "clone")
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]


def drop_a_layout(program: Program) -> None:
    node = op(program, "contiguous")
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]


def write_later(program: Program) -> None:
    op(program, "mul_").append(op(program, "clone"))


def draw_in_another_order(program: Program) -> None:
    op(program, "rand_like").prepend(op(program, "randn_like"))


def read_another_value(program: Program) -> None:
    op(program, "linear", 1).replace_input_with(op(program, "t", 1), op(program, "add"))


def hand_out_another_value(program: Program) -> None:
    (result,) = program.output.all_input_nodes
    program.output.replace_input_with(result, result.args[0])  # type: ignore[arg-type]


MUTANTS: list[Spoil] = [
    overwrite_what_is_read_later,
    compute_over_what_is_read_later,
    move_a_possible_copy_over_a_write,
    merge_possible_copies_over_a_write,
    read_what_is_copied_in_place_of_the_copy,
    drop_a_layout,
    write_later,
    draw_in_another_order,
    read_another_value,
    hand_out_another_value,
]


def varied(passes: str = "") -> Program:
    return program_of(Varied().eval(), (torch.randn(3, 8),), passes)


@pytest.mark.parametrize("passes", ["", "simplify,blocks,place{shares=1},pin,hoist,cut,reuse"])
@pytest.mark.parametrize("spoil", MUTANTS, ids=lambda spoil: spoil.__name__)
def test_a_pass_that_changes_what_an_op_reads_is_refused(spoil: Spoil, passes: str) -> None:
    program = varied(passes)
    with pytest.raises(VerificationError, match=r"^rule spoils: After a pass that") as caught:
        PassManager([Spoils(spoil)]).run(program)
    assert caught.value.exit_code == 4
    assert "spoils" not in program.history


def drop_what_nobody_reads(program: Program) -> None:
    program.graph.eliminate_dead_code()


@pytest.mark.parametrize("spoil", [lambda program: None, drop_what_nobody_reads])
def test_a_pass_that_keeps_what_ops_read_is_believed(spoil: Spoil) -> None:
    PassManager([Spoils(spoil)]).run(varied())


@dataclass(frozen=True)
class Claims(Pass):
    name: ClassVar[str] = "claims"
    ensures: ClassVar[frozenset[str]] = frozenset({"placed", "pinned", "cut", "scheduled"})

    def run(self, program: Program) -> Change:
        return Change(0, "things done")


def test_a_pass_that_does_not_do_what_it_ensures_is_refused() -> None:
    program = trace(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(
        PassError, match="pass claims ensures cut and pinned and placed and scheduled, which the program"
    ):
        PassManager([Claims()]).run(program)
    assert not program.facts

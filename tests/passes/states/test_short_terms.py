"""Terms of float32 sums that cross in bfloat16: half the bytes, the same bits on all devices, and no other sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError, VerificationError
from dovetail.compiler.ir.ops import SUM_TERMS, TERMS
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.compiler.ir.split import source_of
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split
from dovetail.compiler.states.parts import sent
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.draw.text.reproduce import settings_of
from dovetail.explain.sentences import explain_programs
from dovetail.explain.states import states_in_words
from dovetail.passes.states.exchanges import flow_of
from dovetail.passes.states.short_terms import can_be_short
from dovetail.passes.states.states import has_short_terms, split_mode_of
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from testbed.sharing import slow_group
from testbed.spatial import run

RIG = "sim0=1GiB,sim1=1GiB"


class Narrow(nn.Module):
    """A wide layer between narrow ones, whose product devices of a tensor split have terms of."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Narrow(), Narrow())


X = torch.randn(512, 256, generator=torch.Generator().manual_seed(1))


def compiled(module: nn.Module, x: torch.Tensor = X, is_short: bool = True) -> dovetail.CompiledModule:
    return dovetail.compile(module, (x,), backend="sim0&sim1", rig=RIG, split_mode="tensor", bf16_partials=is_short)


def bytes_of_terms(program: Program) -> int:
    of_terms = [one for one in program.transfers() if TERMS in _makers(one)]
    return sum(nbytes for one in of_terms for _, _, nbytes in sent(program, one))


def _makers(transfer: torch.fx.Node) -> list[object]:
    made = source_of(transfer)
    return [made.target, *(one.target for one in made.all_input_nodes)]


def test_terms_take_half_the_bytes_and_what_is_planned_is_what_comes(module: nn.Module) -> None:
    program, whole = compiled(module).program, compiled(module, is_short=False).program
    assert bytes_of_terms(program) * 2 == bytes_of_terms(whole) > 0
    assert has_short_terms(program)
    assert not has_short_terms(whole)
    said = [" ".join(explain_programs({"model": one})) for one in (program, whole)]
    assert [one.count("cross in bfloat16 (--bf16-partials), which changes bits") for one in said] == [1, 0]
    assert "bfloat16" not in " ".join(states_in_words(program)), "a plan says it in a note"
    assert settings_of({"model": program})["--bf16-partials"] == ""
    assert "--bf16-partials" not in settings_of({"model": whole})
    assert verify_deep(program) > 0
    text = print_program(program)
    assert print_program(parse_program(text)) == text


def test_terms_are_shorter_within_groups_too(module: nn.Module) -> None:
    x = torch.cat([X, X]) if X.shape[0] == 1 else X
    four = "sim0&sim1&sim2&sim3"
    found = [
        dovetail.compile(module, (x,), backend=four, split_mode="batch+tensor", bf16_partials=is_short).program
        for is_short in (True, False)
    ]
    assert [split_mode_of(one) for one in found] == ["batch+tensor"] * 2
    assert [has_short_terms(one) for one in found] == [True, False]
    assert bytes_of_terms(found[0]) * 2 == bytes_of_terms(found[1]) > 0


def test_a_call_sends_and_takes_what_is_planned(module: nn.Module) -> None:
    found = run(module, {"input": X}, compiled(module).program)
    assert found.sent == found.planned
    assert found.measured == found.predicted
    eager = module(X)
    error = (found.yielded[0] - eager).abs().max() / eager.abs().max()
    assert 0 < error < 2**-8


class Pictured(nn.Module):
    """Tokens that are computed as a picture, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.picture = Narrow(), nn.Conv2d(256, 256, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tokens(x).transpose(1, 2).unflatten(-1, (16, -1))
        return x + self.picture(torch.nn.functional.silu(y)).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("is_short", [False, True])
def test_sums_are_laid_out_as_wide_ones_are(is_short: bool) -> None:
    torch.manual_seed(0)
    module, x = Pictured().eval(), torch.randn(2, 256, 256)
    program = compiled(module, x, is_short).program
    assert has_short_terms(program) == is_short
    found = run(module, {"x": x}, program)
    assert found.measured == found.predicted
    assert found.sent == found.planned


def test_statistics_cross_as_they_are_however_many_there_are() -> None:
    assert not can_be_short((64, 4096, 1), torch.float32)
    assert can_be_short((64, 4096, 64), torch.float32)


def test_no_bit_changes_where_it_is_not_asked_for(module: nn.Module) -> None:
    program = compiled(module, is_short=False).program
    assert all(tensors_of(one)[0].dtype == torch.float32 for one in program.transfers())
    assert not any(one.kwargs for one in program.ops() if one.target is SUM_TERMS)


def test_bytes_that_are_solved_for_are_those_of_short_terms() -> None:
    group, shape = slow_group((1, 1)), (512, 256)
    half = Split(0, (((0, 256), (256, 512)),))
    short = replace(group, has_short_terms=True)
    for target in (WHOLE, half):
        size = short.term_size(shape, torch.float32)
        terms = flow_of(short, PARTIAL, target, shape, 4, size)[0][1]
        back = 256 * 256 * 4 if target == WHOLE else 0
        assert terms == 256 * 256 * 2 + back
    assert [short.term_size(one, torch.float32) for one in ((4, 8), shape)] == [4, 2]
    assert short.term_size(shape, torch.bfloat16) == 2
    assert group.term_size(shape, torch.float32) == 4


def test_it_is_refused_where_there_is_nothing_to_halve(module: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"bfloat16 values.*leave it out"):
        compiled(nn.Sequential(Narrow(), Narrow()).to(torch.bfloat16), X.to(torch.bfloat16))
    with pytest.raises(UsageError, match="add split_mode='tensor'"):
        dovetail.compile(module, (X,), backend="sim0&sim1", rig=RIG, split_mode="sequence", bf16_partials=True)
    with pytest.raises(UsageError, match="sums are small"):
        compiled(module, X[:16])


def test_terms_that_cross_otherwise_than_is_said_are_refused(module: nn.Module) -> None:
    program = compiled(module).program
    transfer = next(one for one in program.transfers() if TERMS in _makers(one))
    (short,), kept = transfer.all_input_nodes, transfer.args
    transfer.args = short.args[:1]
    with pytest.raises(VerificationError):
        verify(program)
    transfer.args = kept
    total = next(one for one in program.ops() if one.target is SUM_TERMS)
    for dtype in (None, torch.bfloat16):
        wide, total.kwargs = total.kwargs, {"dtype": dtype} if dtype else {}
        with pytest.raises(VerificationError):
            verify_deep(program)
        total.kwargs = wide
    verify(program)
    assert verify_deep(program) > 0

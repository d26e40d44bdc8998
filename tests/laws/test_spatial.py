"""Autoencoders whose pictures are split in space yield what the module does, and no device holds the picture whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils import _pytree as pytree

from dovetail.compiler.errors import FailedPassError, VerificationError
from dovetail.compiler.ir.ops import GROUP_NORM_BY, GROUP_STATISTICS, TERMS
from dovetail.compiler.ir.program import Program, place_node, state_of
from dovetail.compiler.ir.split import source_of
from dovetail.compiler.ir.state import Halo
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from testbed.spatial import DECODERS, enlarged, run, split
from testbed.zoo.everything import TINY
from tests.cases import drawn, slow_but

LEAST = {(1, 1): 0.6, (1, 1, 1, 1): 0.35}
"""The part of the values of the whole that a device may hold at most."""
QUICK = "AutoencoderKL-decode", (1, 1)
CELLS = [(name, shares) for name in DECODERS for shares in LEAST if (name, shares) != QUICK]
ENCODERS = ["AutoencoderKL-encode", "AutoencoderKLWan-encode", "AutoencoderDC-encode"]
NEAR = 1e-5
"""How far results may be off, as a part of the largest: some models compute in float32 inside."""


@pytest.mark.fifth
@pytest.mark.parametrize(("name", "shares"), slow_but([QUICK], [QUICK, *drawn(CELLS, 4)]))
def test_a_decoder_that_is_split_in_space_is_the_whole_on_less_memory(name: str, shares: tuple[int, ...]) -> None:
    module, call = enlarged(name, torch.float64, (32, 16))
    with torch.no_grad():
        eager = [one for one in pytree.tree_leaves(module(**call)) if isinstance(one, torch.Tensor)]
    alone = run(module, call, split(module, call, (1,)))
    program = split(module, call, shares)
    assert any(isinstance(state_of(one), Halo) for one in program.transfers())
    gathered = [source_of(one).target for one in program.transfers()]
    norms = sum(one.target is GROUP_NORM_BY for one in program.ops())
    assert gathered.count(GROUP_STATISTICS) <= norms == sum(one.target is GROUP_STATISTICS for one in program.ops())
    terms = [source_of(one) for one in program.transfers() if source_of(one).target is TERMS]
    assert {one.args[0].target for one in terms} <= {torch.ops.aten.matmul.default}  # as of linear attention; no norm's
    found = run(module, call, program)
    for mine, theirs in zip(found.yielded, eager, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=NEAR * max(1.0, theirs.abs().max().item()))
    assert found.measured == found.predicted
    assert found.sent == found.planned
    assert max(found.measured) <= LEAST[shares] * max(alone.measured)
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    assert verify_deep(program) > 0


@pytest.mark.fifth
@pytest.mark.few(quick=1)
@pytest.mark.parametrize("name", slow_but(["AutoencoderKL-encode"], ENCODERS))
@pytest.mark.parametrize("shares", [(5, 3, 2), (1, 0, 1)])
def test_an_encoder_that_is_split_unevenly_is_the_whole(name: str, shares: tuple[int, ...]) -> None:
    module, call = enlarged(name, torch.float64, (32, 16))
    with torch.no_grad():
        eager = [one for one in pytree.tree_leaves(module(**call)) if isinstance(one, torch.Tensor)]
    program = split(module, call, shares)
    found = run(module, call, program)
    for mine, theirs in zip(found.yielded, eager, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=NEAR * max(1.0, theirs.abs().max().item()))
    assert found.measured == found.predicted
    assert found.sent == found.planned


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", drawn(DECODERS, 1))
def test_what_statistics_take_beside_values_is_planned(name: str, dtype: torch.dtype) -> None:
    """The largest moment of a decoder is a norm's, where nothing else holds as much; short floats are made longer."""
    module, call = enlarged(name, dtype, (16, 8))
    found = run(module, call, split(module, call, (2, 1)))
    assert found.measured == found.predicted


@pytest.fixture(scope="module")
def program() -> Program:
    module, call = enlarged("AutoencoderKL-decode", torch.float64, (16, 8))
    found = split(module, call, (3, 2, 1))
    verify(found)
    return found


def narrow(state: Halo) -> Halo:
    """A border of a device is left out."""
    start, stop = state.bounds[1]
    return replace(state, bounds=(state.bounds[0], (start + 1, stop), *state.bounds[2:]))


def shift(state: Halo) -> Halo:
    """The border is on the wrong side."""
    start, stop = state.bounds[1]
    return replace(state, bounds=(state.bounds[0], (start + 1, stop + 1), *state.bounds[2:]))


def turn(state: Halo) -> Halo:
    """Zeros stand behind what they are to stand before."""
    return replace(state, zeros=tuple((after, before) for before, after in state.zeros))


def beyond(state: Halo) -> Halo:
    """A range reaches beyond its axis."""
    *others, (start, stop) = state.bounds
    return replace(state, bounds=(*others, (start, stop + 1)))


@pytest.mark.fifth
@pytest.mark.parametrize("broken", [narrow, shift, turn, beyond])
def test_another_halo_than_windows_read_is_refused(program: Program, broken: Callable[[Halo], Halo]) -> None:
    transfers = [one for one in program.transfers() if isinstance(state_of(one), Halo)]
    assert transfers
    for transfer in transfers[:4]:
        kept, state = transfer.meta["placement"], state_of(transfer)
        assert isinstance(state, Halo)
        place_node(transfer, states=((broken(state),),))
        with pytest.raises(VerificationError):
            verify(program)
        transfer.meta["placement"] = kept
    verify(program)


@pytest.mark.fifth
def test_a_program_without_pictures_is_not_split_in_space() -> None:
    module, call = TINY["T5EncoderModel"].make(torch.float64)
    with pytest.raises(FailedPassError, match="none of the inputs is a picture"):
        split(module, call, (1, 1))

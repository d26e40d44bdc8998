"""States that are solved send no more than plans that are written by hand, with no more of the weights."""

from __future__ import annotations

import pytest

from dovetail.compiler.ir.program import tensors_of
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from testbed.hand_written import ENTRIES, kinds_of, most_weights, sent_by_hand
from testbed.published_states import card_group, traced
from tests.cases import drawn

UNKNOWN = {"LTX2VideoTransformer3DModel": "its plan does not run", "QwenImage21Transformer2DModel": "no trace takes it"}
CASES = [(name, kind) for name in ENTRIES if name not in UNKNOWN for kind in kinds_of(name)]
LINKS = (None, 4)
"""GB/s between two cards: those of a peer, over which least seconds may take more bytes, and a slot's of four lanes."""

TEXT = 512
"""So many rows of a prompt have their keys and values computed by all devices there; over quick links each computes a
part of them here."""


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("name", "kind"), drawn(CASES, 3))
def test_no_more_is_sent_than_by_hand(name: str, kind: str, link: float | None) -> None:
    program, mode = traced(ENTRIES[name]), "tensor" if kind == "tensor" else "sequence"
    for count in (2, 4):
        theirs = sent_by_hand(name, kind, count)
        found = solve(program, card_group("L20", (1,) * count, link), mode, most_weights(program, mode, count))
        assert isinstance(found, Solution)
        of_prompts = [
            max(one.sent) * one.count
            for one in found.account.changes
            if link is None and kind != "tensor" and TEXT in tensors_of(one.tensor[0])[one.tensor[1]].sizes
        ]
        assert max(found.account.sent) - sum(of_prompts) <= theirs.nbytes
        total = sum(weight.nbytes for weight in program.weights.values())
        assert max(found.account.weights) <= theirs.weights * total

"""Rules of states are tested by execution: operands are cut as they say, and the parts that are run are the whole."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.state import Split
from dovetail.compiler.states.reshapes import reshaped
from dovetail.compiler.states.strategy import name_of
from dovetail.compiler.states.table import rule_of, strategies
from testbed.zoo.everything import TINY
from tests.cases import drawn

from .parts import can_be_terms, cut, is_near, offered, run_in_parts, values_in

SHARES = [(1, 1), (3, 1), (5, 3, 2), (1, 0), (0, 1, 1), (1, 1, 1, 1)]
OWN_PYTHON = {"CosmosTransformer3DModel"}
"""What no trace takes in float64."""
MOST = 6
"""So many strategies of each operation are run."""


def broken(name: str, seed: int) -> tuple[Counter[str], list[str]]:
    """How many strategies of each kind of operation of a model were run, and those whose parts are not the whole."""
    choice = random.Random(f"{name} {seed}")
    module, call = TINY[name].make(torch.float64)
    program = trace(module, (), call)
    shares = choice.choice(SHARES)
    offers, count, wrong = offered(shares, choice), Counter[str](), []
    with torch.no_grad():
        for node, values in values_in(program, module, (), call):
            if rule_of(node) is None:
                continue
            known = list(strategies(node, offers))[1:]
            for chosen in choice.sample(known, min(MOST, len(known))):
                if not can_be_terms(chosen, values):
                    continue
                count[name_of(node)] += 1
                whole = values[node] if isinstance(values[node], (tuple, list)) else [values[node]]
                try:
                    found = run_in_parts(node, chosen, len(shares), values)
                    if name_of(node) == "empty_like":  # whose numbers are whatever lay in its memory
                        found = [part.copy_(one) for part, one in zip(found, whole, strict=True)]
                    why = (
                        ""
                        if all(is_near(*both, values.values()) for both in zip(found, whole, strict=True))
                        else "differs"
                    )
                except Exception as error:  # whatever a kernel raises that is given such parts
                    why = str(error)
                if why:
                    wrong.append(f"%{node.name} {name_of(node)} over {shares}: {chosen}: {why}")
    return count, wrong


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn([one for one in TINY if one not in OWN_PYTHON], 2))
@pytest.mark.parametrize("seed", [int(os.environ["DOVETAIL_TEST_SEED"]) % 1000])
def test_the_parts_of_every_operation_are_the_whole(name: str, seed: int) -> None:
    count, wrong = broken(name, seed)
    assert count.total() > 100
    assert wrong == []


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["FluxTransformer2DModel", "UNet2DConditionModel", "AutoencoderKL-decode", "T5EncoderModel"]
)
def test_each_matmul_convolution_and_attention_can_be_split(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    program = trace(module, (), call)
    offers = offered((1, 1), random.Random(0))
    for node in program.ops():
        if name_of(node) in ("linear", "conv2d", "scaled_dot_product_attention", "matmul"):
            assert len(list(strategies(node, offers))) > 1, node.name


SPLITS = st.integers(1, 3).flatmap(
    lambda count: st.lists(
        st.lists(st.integers(0, 4), min_size=2, max_size=2).filter(any), min_size=count, max_size=count
    )
)


@given(SPLITS, st.lists(st.sampled_from([2, 3]), max_size=2), st.lists(st.sampled_from([2, 3]), max_size=2))
def test_what_devices_have_is_the_same_after_a_reshape(
    each: list[list[int]], before: list[int], after: list[int]
) -> None:
    """The axis that is split stands among others, all of which become one, and are taken apart again."""
    size, segments = 0, []
    for lengths in each:
        ends = [size, *(size + sum(lengths[: at + 1]) for at in range(2))]
        segments.append(tuple(pairwise(ends)))
        size = ends[-1]
    old, state = (*before, size, *after), Split(len(before), tuple(segments))
    flat = reshaped(state, old, (math.prod(old),)) if size > 1 else None
    back = reshaped(flat, (math.prod(old),), old)
    value = torch.arange(math.prod(old)).reshape(old)
    for member in (0, 1) if flat else ():
        part = cut(value.reshape(-1), flat, member, 2)
        assert torch.equal(part, cut(value, state, member, 2).reshape(-1))
        assert back is None or torch.equal(part, cut(value, back, member, 2).reshape(-1))

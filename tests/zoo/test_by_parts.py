"""Real models that no trace takes whole: over two and three devices they compute the bits of eager all the same."""

from __future__ import annotations

from collections import Counter

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from testbed.zoo.tiny import Draw, draw_weights
from testbed.zoo.untraceable import UNTRACEABLE
from tests.cases import slow_but

from .test_bit_equality import assert_meaningful, assert_same


class Pipe:
    """What a pipeline has to have."""

    def __init__(self, module: nn.Module) -> None:
        self.components = {"transformer": module}
        self.transformer = module


@pytest.mark.fifth
@pytest.mark.parametrize("backend", [pytest.param("sim0&sim1", marks=pytest.mark.slow), "sim0&sim1&sim2"])
@pytest.mark.parametrize("name", slow_but(["HiDreamImageTransformer2DModel"], UNTRACEABLE))
def test_a_model_that_no_trace_takes_whole_is_split_and_computes_the_bits_of_eager(name: str, backend: str) -> None:
    torch.manual_seed(0)
    config, call = UNTRACEABLE[name](Draw(torch.float32))
    module = getattr(diffusers, name)(**config).eval()
    draw_weights(module)
    with torch.no_grad():
        expected = module(**call)
        assert_meaningful(expected)
        pipe = dovetail.compile_pipeline(Pipe(module), backend)
        assert_same(module(**call), expected)
        assert_same(module(**call), expected)
    assert_shared_out(module, len(pipe.dovetail.components["transformer"].devices))


def assert_shared_out(module: nn.Module, count: int) -> None:
    """Each device holds about as much; only what lies outside all blocks may be too much for the first one."""
    placed: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for name, tensor in module.named_parameters():
        placed[str(tensor.device)] += tensor.nbytes
        inside[str(tensor.device)] += tensor.nbytes if any(part.isdigit() for part in name.split(".")) else 0
    assert placed.keys() == {f"sim:{index}" for index in range(count)}
    if placed["sim:0"] - inside["sim:0"] > placed.total() / count:
        del placed["sim:0"]
    assert max(placed.values()) < 2.5 * min(placed.values())

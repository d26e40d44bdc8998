"""A model that asks whether two of its arguments are one tensor is answered as in eager."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

import dovetail
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace

from .small_pipeline import WIDTH, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")


class Attending(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Attention, which multiplies by one packed matrix where it attends to itself."""

    @register_to_config
    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.last, self.counts = nn.Linear(WIDTH, WIDTH), counts

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.counts and query.sum() > 1e9:  # so that the attention is compiled as a part
            return query
        found: Tensor = self.last(self.attention(query, key, value, need_weights=False)[0])
        return found


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.last(self.first(x) + y)
        return z


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("counts", [False, True])
def test_attention_to_itself_is_computed_as_in_eager(counts: bool) -> None:
    torch.manual_seed(0)
    model = Attending(counts).eval()
    eager, pipe = copy.deepcopy(model), Pipeline(unet=model)
    x, y = torch.randn(2, 2, 33, WIDTH)
    calls: list[Any] = [(x, y, y.clone()), (x, x, x), (x, y, y), (x, x.clone(), x.clone()), (x, x, x)]
    dovetail.compile_pipeline(pipe, "unet=sim0&sim1")
    for call in calls:
        with torch.no_grad():
            assert torch.equal(pipe(*call), eager(*call))


@pytest.mark.fifth
def test_a_model_that_asks_is_refused_whole_and_another_is_not() -> None:
    x = torch.randn(2, 5, WIDTH)
    with pytest.raises(TraceError, match="query and key and value are one tensor"):
        trace(Attending().eval(), (x, x, x))
    assert isinstance(dovetail.compile(Attending().eval(), (x, x, x), backend="sim0&sim1"), CompiledByParts)
    plain, y = Plain(), torch.randn(2, 5, WIDTH)
    compiled = dovetail.compile(plain, (x, x), backend="sim0&sim1")
    assert not isinstance(compiled, CompiledByParts)
    with torch.no_grad():
        assert torch.equal(compiled(x, y), plain(x, y))
        assert torch.equal(compiled(x, x), plain(x, x))

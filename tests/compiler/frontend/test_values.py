"""What a trace makes of numbers that a module reads from its tensors, and of what fails in libraries meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend import trace as tracing
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


class Scales(TwoLayers):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.second(self.first(x) * by.max().item())  # type: ignore[no-any-return]


class Fills(TwoLayers):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.second(self.first(x) + torch.full((2, 4), by.min().item()))  # type: ignore[no-any-return]


class Returns(TwoLayers):
    def forward(self, x: Tensor, by: Tensor) -> tuple[Tensor, Any]:
        return self.second(self.first(x)), by.max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("kind", [Scales, Fills, Returns])
def test_a_number_that_a_module_reads_from_a_tensor_is_read_by_each_call(
    kind: type[TwoLayers], dtype: torch.dtype
) -> None:
    module, x = kind(), torch.randn(2, 4)
    compiled = dovetail.compile(module, (x, torch.tensor([1, 2], dtype=dtype)), backend="sim0&sim1")
    for values in ([1, 2], [3, -1]):
        by = torch.tensor(values, dtype=dtype)
        found, expected = compiled(x, by), module(x, by)
        if kind is Returns:
            assert found[1] == expected[1]
            found, expected = found[0], expected[0]
        assert torch.equal(found, expected)
    text = print_program(compiled.program)
    assert print_program(parse_program(text)) == text


class Cuts(TwoLayers):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.second(self.first(x)[: by[0]])  # type: ignore[no-any-return]


def test_a_length_that_a_module_reads_from_a_tensor_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        TraceError, match=r"Cuts cannot be traced past .*(depends on the values of tensors|data-dependent)"
    ) as caught:
        trace(Cuts(), (torch.randn(2, 4), torch.tensor([1])))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "step",
    ["parameters_of", "noted_changes", "inline_regions", "read_guards", "annotate", "part_views", "_bind_weights"],
)
def test_whatever_fails_while_a_module_is_traced_is_one_sentence_of_the_module(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("'Infinity' object has no attribute '_mpf_'\nand more of it")

    monkeypatch.setattr(tracing, step, fail)
    with pytest.raises(TraceError, match=r"Scales cannot be traced.*: AttributeError: 'Infinity' object") as caught:
        trace(Scales(), (torch.randn(2, 4), torch.ones(2)))
    assert "\n" not in str(caught.value)

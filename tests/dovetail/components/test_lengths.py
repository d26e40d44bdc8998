from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.components import call_compiler

SPREAD = "sim0&sim1"


class Encoder(nn.Module):
    """Attends over a sequence of any length, with arguments that its signature does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, **more: Any) -> Any:
        for block in self.blocks:
            x = x + nn.functional.scaled_dot_product_attention(block(x), x, x) * more["mask"][..., None]
        return {"last": x, "scaled": x * 2 if more.get("scaled") else None}


class Fixed(nn.Module):
    """Makes a number of the length, so that each needs a program."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.table = nn.Parameter(torch.randn(64, 8))

    def forward(self, x: Tensor, **more: Any) -> Any:
        x = x + self.table[: int(x.shape[1])]
        for block in self.blocks:
            x = block(x)
        return {"last": x * more["mask"][..., None]}


class Pipe(diffusers.DiffusionPipeline):  # type: ignore[misc]
    def __init__(self, text_encoder: nn.Module) -> None:
        super().__init__()
        self.register_modules(text_encoder=text_encoder)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The dynamic shapes of each trace."""
    done: list[Any] = []
    own = call_compiler.trace

    def counted(*args: Any, **kwargs: Any) -> Any:
        done.append(kwargs.get("dynamic_shapes"))
        return own(*args, **kwargs)

    monkeypatch.setattr(call_compiler, "trace", counted)
    return done


def call(module: nn.Module, length: int, batch: int = 2, **more: Any) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(batch, length, 8, generator=generator)
    with torch.no_grad():
        result: Tensor = module(x, mask=torch.ones(batch, length), **more)["last"]
    return result


@pytest.mark.fifth
def test_prompts_of_any_length_cost_two_traces_and_no_bit(traces: list[Any]) -> None:
    module, lengths = Encoder().eval(), (5, 7, 9, 11, 13, 5, 4)
    expected = [call(module, length) for length in lengths]
    pipe = dovetail.compile_pipeline(Pipe(module), SPREAD)
    assert all(torch.equal(call(module, length), want) for length, want in zip(lengths, expected, strict=True))
    assert len(traces) == 2
    assert len(pipe.dovetail.programs["text_encoder"]) == 2


@pytest.mark.fifth
def test_a_call_that_differs_in_more_than_lengths_is_traced_as_it_is(traces: list[Any]) -> None:
    module = Encoder().eval()
    expected = call(module, 5), call(module, 7, scaled=True), call(module, 7)
    dovetail.compile_pipeline(Pipe(module), SPREAD)
    assert torch.equal(call(module, 5), expected[0])
    assert torch.equal(call(module, 7, scaled=True), expected[1])
    assert traces == [None, None]
    assert torch.equal(call(module, 7), expected[2])
    assert traces[2:] == [{"x": {1: torch.export.Dim.AUTO}, "mask": {1: torch.export.Dim.AUTO}}]


@pytest.mark.fifth
def test_a_length_of_one_is_traced_by_itself(traces: list[Any]) -> None:
    module = Encoder().eval()
    expected = [call(module, length) for length in (1, 5, 1)]
    dovetail.compile_pipeline(Pipe(module), SPREAD)
    assert all(torch.equal(call(module, n), want) for n, want in zip((1, 5, 1), expected, strict=True))
    assert traces == [None, None]


@pytest.mark.fifth
def test_a_model_that_fixes_its_lengths_has_a_program_for_each(traces: list[Any]) -> None:
    module, lengths = Fixed().eval(), (5, 7, 9, 5, 9)
    expected = [call(module, length) for length in lengths]
    pipe = dovetail.compile_pipeline(Pipe(module), SPREAD)
    assert all(torch.equal(call(module, length), want) for length, want in zip(lengths, expected, strict=True))
    assert len(pipe.dovetail.programs["text_encoder"]) == 3
    assert [shapes is not None for shapes in traces] == [False, True, False]


@pytest.mark.fifth
def test_programs_are_kept_in_a_bounded_number_and_forgotten_ones_are_made_again(
    monkeypatch: pytest.MonkeyPatch, traces: list[Any]
) -> None:
    monkeypatch.setattr(call_compiler, "_MANY", 3)
    module, lengths = Fixed().eval(), (5, 6, 7, 5, 8, 5, 6)
    expected = [call(module, length) for length in lengths]
    pipe = dovetail.compile_pipeline(Pipe(module), SPREAD)
    for length, want in zip(lengths, expected, strict=True):
        assert torch.equal(call(module, length), want)
        assert len(pipe.dovetail.programs["text_encoder"]) <= 3
    assert len(traces) == 5  # 6 was forgotten for 8, 5 was used meanwhile

"""The option that has wide parts computed in chunks: off unless asked for, and named in what was compiled."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.components.compiled import CompiledModule
from dovetail.passes.rewrites.chunk import chunks_of
from tests.dovetail.components.small_pipeline import WIDTH, Model, Pipeline
from tests.measured import measured, predicted

X = torch.randn(1, 8, WIDTH)


def test_a_module_in_chunks_says_so_and_without_the_option_none_is() -> None:
    model = Model().eval()
    whole, parts = (dovetail.compile(model, (X,), backend="sim0", chunk=chunk) for chunk in (None, "2"))
    assert "chunk{parts=2}" in parts.program.history
    assert not any(step.startswith("chunk") for step in whole.program.history)
    with torch.no_grad():
        assert torch.equal(whole(X), model(X))
        torch.testing.assert_close(parts(X), model(X))


def test_the_components_of_a_pipeline_are_computed_in_chunks() -> None:
    pipe = Pipeline(Model().eval())
    expected = pipe(X)
    dovetail.compile_pipeline(pipe, "sim0", chunk=2)
    with pipe.dovetail:
        found = pipe(X)
        programs = [made.program for call in pipe.dovetail.components["unet"].calls for made in call.programs.values()]
    assert programs
    assert all("chunk{parts=2}" in program.history for program in programs)
    torch.testing.assert_close(found, expected)


class Wide(nn.Module):
    """Ten feed-forward parts of 0.5 MiB each, whose values are 0.5 MiB wide."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


WIDE_X = torch.randn(1, 1024, 128)


def wide(**asked: Any) -> CompiledModule:
    torch.manual_seed(0)
    return dovetail.compile(Wide().eval(), (WIDE_X,), **asked)


RIG = "sim0=1GiB,sim1=1GiB,cpu=1GiB"


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1", None])
def test_a_module_that_a_budget_does_not_hold_otherwise_is_held_in_the_chunks_that_its_refusal_names(
    backend: str | None,
) -> None:
    on = backend or "sim0&sim1"
    peaks = [max(predicted(wide(backend=on, rig=RIG, chunk=chunk).program).values()) for chunk in (None, 4)]
    room = (peaks[0] + 3 * peaks[1]) // 4
    budget = f"sim0={room}B,sim1={room}B,cpu=1MiB"
    with pytest.raises(DoesNotFitError, match=r"in chunks, with which it fits \(chunk=\d, --chunk \d\)") as caught:
        wide(backend=backend, rig=RIG, max_vram=budget)
    named = re.search(r"chunk=(\d)", str(caught.value))
    assert named is not None
    made = wide(backend=backend, rig=RIG, chunk=named[1], max_vram=budget)
    assert chunks_of(made.program) == int(named[1])
    assert max(predicted(made.program).values()) <= room
    assert measured(made, (WIDE_X,), {}) == predicted(made.program)
    with torch.no_grad():
        torch.testing.assert_close(made(WIDE_X).cpu(), wide(backend="cpu")(WIDE_X))


def test_a_refusal_names_the_fewest_chunks_with_which_a_module_fits() -> None:
    peaks = [predicted(wide(backend="sim0", rig=RIG, chunk=chunk).program)["sim0"] for chunk in (1, 2)]
    budget = f"sim0={(peaks[0] + 3 * peaks[1]) // 4}B"
    with pytest.raises(DoesNotFitError, match=r"in chunks, with which it fits \(chunk=2, --chunk 2\)"):
        wide(backend="sim0", rig=RIG, max_vram=budget)


@pytest.mark.parametrize("chunk", [8, None])
def test_a_module_that_fits_in_no_chunks_is_refused_without_a_word_of_them(chunk: int | None) -> None:
    with pytest.raises(DoesNotFitError, match="on sim0") as caught:
        wide(backend="sim0", rig=RIG, chunk=chunk, max_vram="sim0=3MiB")
    assert "chunk" not in str(caught.value)

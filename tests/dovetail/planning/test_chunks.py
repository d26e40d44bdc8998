"""The option that has wide parts computed in chunks: off unless asked for, and named in what was compiled."""

from __future__ import annotations

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


@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1", None])
def test_a_module_that_a_budget_does_not_hold_otherwise_is_computed_in_chunks(backend: str | None) -> None:
    on = backend or "sim0&sim1"
    peaks = [max(predicted(wide(backend=on, rig=RIG, chunk=chunk).program).values()) for chunk in (None, 4)]
    room = (peaks[0] + 3 * peaks[1]) // 4
    with pytest.raises(DoesNotFitError):
        wide(backend=on, rig=RIG, max_vram=f"sim0={room}B,sim1={room}B")
    auto = wide(backend=backend, rig=RIG, chunk="auto", max_vram=f"sim0={room}B,sim1={room}B,cpu=1MiB")
    assert chunks_of(auto.program) > 1
    assert max(predicted(auto.program).values()) <= room
    assert measured(auto, (WIDE_X,), {}) == predicted(auto.program)
    with torch.no_grad():
        torch.testing.assert_close(auto(WIDE_X).cpu(), wide(backend="cpu")(WIDE_X))


def test_a_module_is_computed_in_the_fewest_chunks_with_which_it_fits_and_a_refusal_names_them() -> None:
    peaks = [predicted(wide(backend="sim0", rig=RIG, chunk=chunk).program)["sim0"] for chunk in (1, 2, 4)]
    budget = f"sim0={(peaks[0] + 3 * peaks[1]) // 4}B"
    assert chunks_of(wide(backend="sim0", rig=RIG, chunk="auto", max_vram=budget).program) == 2
    with pytest.raises(DoesNotFitError, match=r"in chunks, with which it fits \(chunk=2, --chunk 2\)"):
        wide(backend="sim0", rig=RIG, max_vram=budget)


def test_a_module_that_fits_is_left_whole_and_one_that_fits_in_no_chunks_is_refused() -> None:
    assert chunks_of(wide(backend="sim0", rig=RIG, chunk="auto").program) == 1
    for chunk in ("auto", None):
        with pytest.raises(DoesNotFitError, match="on sim0") as caught:
            wide(backend="sim0", rig=RIG, chunk=chunk, max_vram="sim0=3MiB")
        assert "chunk" not in str(caught.value)


def test_a_call_that_is_lowered_again_stays_in_its_chunks_whatever_was_planned_since() -> None:
    pipe = Pipeline(Model().eval())
    dovetail.compile_pipeline(pipe, "sim0", chunk="auto", rig="sim0=1GiB,cpu=1GiB")
    with pipe.dovetail:
        component = pipe.dovetail.components["unet"]
        pipe(X)
        ((first, program),) = [item for call in component.calls for item in call.programs.items()]
        assert isinstance(program, CompiledModule)
        (call,) = [call for call in component.calls if first in call.programs]
        assert program.base is not None
        call.programs[first] = component.compiler._finish(component, program.base, call.module, 2)
        pipe(torch.randn(1, 16, WIDTH))
        assert component.stream()
        assert [chunks_of(one.program) for one in component.programs] == [2, 1]

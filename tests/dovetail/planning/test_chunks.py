"""The option that has wide parts computed in chunks: off unless asked for, and named in what was compiled."""

from __future__ import annotations

import torch

import dovetail
from tests.dovetail.components.small_pipeline import WIDTH, Model, Pipeline

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
    with dovetail.compile_pipeline(pipe, "sim0", chunk=2) as handle:
        found = handle(X)
        programs = [made.program for call in handle.components["unet"].calls for made in call.programs.values()]
    assert programs
    assert all("chunk{parts=2}" in program.history for program in programs)
    torch.testing.assert_close(found, expected)

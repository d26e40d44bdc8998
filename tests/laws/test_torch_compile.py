"""Law 1 through torch.compile: what Dynamo gives is compiled by dovetail and equals eager bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given

from dovetail.torch_compile.backend import compile_graph
from tests.cases import examples

from .modules import ModuleCase, module_cases
from .test_modules import equal


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Lets go of what Dynamo keeps, and of the weights with it."""
    yield
    torch.compiler.reset()
    gc.collect()


few = examples(2, 5)


@pytest.mark.fifth
@few
@given(module_cases())
def test_law_1_a_model_that_torch_compiles_with_dovetail_changes_no_bit(case: ModuleCase) -> None:
    gc.collect()
    torch.compiler.reset()
    options = {"backend": case.backend, "rig": case.rig, "tensor_split": case.shares, "params_backend": case.rests}
    compiled = torch.compile(case.module, backend=compile_graph, options=options)
    with torch.no_grad():
        assert equal(compiled(*case.args, **case.kwargs), case.expected())

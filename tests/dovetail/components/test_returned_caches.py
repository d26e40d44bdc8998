"""What a language model keeps for the next token: returned at home where it is asked for, else named in one line."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

import dovetail
from testbed.results import differences
from testbed.zoo.of_transformers import CASES


@pytest.fixture(scope="module")
def model() -> transformers.LlamaModel:
    torch.manual_seed(0)
    config = {**CASES["LlamaModel"].config, "num_hidden_layers": 2}
    return transformers.LlamaModel(transformers.LlamaConfig(**config)).eval()


@pytest.mark.fifth
def test_a_cache_that_is_asked_for_lies_where_the_first_tensor_of_the_call_lay(model: transformers.LlamaModel) -> None:
    call = {**CASES["LlamaModel"].call(1, 0), "use_cache": True}
    with torch.no_grad():
        compiled = dovetail.compile(model, (), call, backend="sim0&sim1")
        for _ in range(2):
            found, expected = compiled(**call), model(**call)
            assert expected.past_key_values is not None
            assert not list(differences(found, expected))
        following = {"input_ids": call["input_ids"][:, :1], "use_cache": True}
        more = [model(**following, past_key_values=one.past_key_values) for one in (found, expected)]
    assert torch.equal(more[0].last_hidden_state, more[1].last_hidden_state)


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("given", [{}, {"use_cache": None}], ids=["left out", "none"])
def test_a_cache_that_is_not_returned_is_named_in_one_line(
    given: dict[str, Any], model: transformers.LlamaModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Models hand None on to their parts."""
    call = {**CASES["LlamaModel"].call(1, 0), **given}
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        compiled = dovetail.compile(model, (), call, backend="sim0&sim1")
        found = [compiled(**call) for _ in range(2)][-1]
        expected = model(**{**call, "use_cache": False})
        assert not list(differences(dict(found), {k: v for k, v in expected.items() if v is not None}))
        (line,) = [one.getMessage() for one in caplog.records if "past_key_values" in one.getMessage()]
        assert "use_cache=True" in line
        caplog.clear()
        dovetail.compile(model, (), {**call, "use_cache": False}, backend="sim0&sim1")
    assert not caplog.records

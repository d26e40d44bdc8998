from __future__ import annotations

import re
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace
from testbed.zoo.tiny import Draw
from testbed.zoo.tiny_video import COGVIDEO
from testbed.zoo.untraceable import hidream, lumina2, mochi, omnigen


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("HiDreamImageTransformer2DModel", hidream),
        ("Lumina2Transformer2DModel", lumina2),
        ("OmniGenTransformer2DModel", omnigen),
        ("MochiTransformer3DModel", mochi),
    ],
)
def test_a_model_that_looks_at_values_is_refused_with_its_line_and_a_way_out(name: str, example: Any) -> None:
    config, call = example(Draw(torch.float32))
    with pytest.raises(TraceError) as caught:
        trace(getattr(diffusers, name)(**config).eval(), (), call)
    message = str(caught.value)
    assert message.startswith(name)
    assert re.search(r"\w+\.py:\d+ \(.+\)", message)
    assert "compile a submodule" in message
    assert "\n" not in message


@pytest.mark.fifth
def test_a_table_that_a_model_computes_and_writes_while_it_is_called_gets_its_values() -> None:
    module = diffusers.CogVideoXTransformer3DModel(**COGVIDEO).eval()
    draw = Draw(torch.float32)
    call = dict(
        hidden_states=draw(1, 3, 4, 8, 8), encoder_hidden_states=draw(1, 8, 8), timestep=draw.ids(1000, 1)
    )  # one frame more than the model's own table has
    with torch.no_grad():
        expected = module(**call).sample
    for backend in ("sim0", "sim0&sim1"):
        assert torch.equal(dovetail.compile(module, (), call, backend=backend)(**call).sample, expected)

"""A plan leaves no trace in objects of the user's that a pipeline or its call holds."""

from __future__ import annotations

import logging
import threading
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "unet=sim0&sim1,te=sim1,vae=sim0"


class State:
    """Counts calls, and refers to what it is the state of."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.calls, self.seen = pipe, 0, [torch.zeros(())]
        self.of = {"unet": pipe.unet, "scheduler": pipe.scheduler}

    def __call__(self) -> int:
        self.calls += 1
        self.seen[0] += 1
        assert self.of["unet"] is self.pipe.unet
        assert self.of["scheduler"] is self.pipe.scheduler
        return self.calls


class Counting(diffusers.StableDiffusionPipeline):
    """A pipeline whose text counts for more in each call."""

    def encode_prompt(self, *args: Any, **kwargs: Any) -> Any:
        """Encodes the text, and counts."""
        count = self.state()
        self.nested["counts"].append(count)
        self.total += 1
        found = super().encode_prompt(*args, **kwargs)
        return found[0] * (count + float(self.total)), *found[1:]


def _counting() -> tuple[Any, dict[str, Any]]:
    pipe, call = tiny_pipelines.sd()
    made: Any = Counting(**pipe.components)
    made.set_progress_bar_config(disable=True)
    made.state, made.nested, made.total = State(made), {"counts": []}, torch.zeros(())
    return made, {**call, "num_inference_steps": 2, "output_type": "pt"}


def _picture(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    return torch.as_tensor(pipe(**{**call, "generator": torch.Generator().manual_seed(1)})[0]).cpu()


@pytest.mark.fifth
def test_a_plan_does_not_count_as_a_call_for_objects_of_the_user() -> None:
    eager, call = _counting()
    pipe, _ = _counting()
    dovetail.compile_pipeline(pipe, SPREAD)
    for _ in range(2):
        assert torch.equal(_picture(pipe, call), _picture(eager, call))
    assert pipe.dovetail.plan(**call) is not None
    assert pipe.nested == {"counts": [1, 2]}
    assert pipe.state.calls == float(pipe.total) == float(pipe.state.seen[0]) == 2


@pytest.mark.fifth
def test_a_call_is_not_planned_where_an_object_of_the_user_cannot_be_copied(caplog: pytest.LogCaptureFixture) -> None:
    eager, call = _counting()
    pipe, _ = _counting()
    pipe.state.lock = threading.Lock()
    dovetail.compile_pipeline(pipe, SPREAD)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert pipe.dovetail.plan(**call) is None
    assert "state, of State, cannot be copied" in caplog.text
    assert torch.equal(_picture(pipe, call), _picture(eager, call))
    assert pipe.state.calls == 1

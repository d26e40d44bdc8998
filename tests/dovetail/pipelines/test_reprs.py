"""What an interpreter and a notebook print of a compiled pipeline, and what is said of devices that get nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import dovetail
from dovetail.compiler.devices.rig import Rig
from testbed.pipelines import tiny_pipelines

IDLE = "diffusion=sim0&sim1&sim2&sim3&sim4&sim5&sim6&sim7&sim8,te=sim0,vae=sim0"


@pytest.fixture(scope="module")
def planned() -> Any:
    """A pipeline, its call, and the plan of it."""
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, backend="diffusion=sim0&sim1,te=cpu,vae=sim0", params_backend="te=cpu")
    return pipe, call, pipe.dovetail.plan(**call)


def test_whatever_is_public_has_a_short_repr_that_names_what_it_is(planned: Any) -> None:
    pipe, _, generation = planned
    handle = pipe.dovetail
    account = handle.account(generation)
    made = next(iter(handle.programs.values()))[0]
    shown = [handle, generation, account, *account.parts, made, made.program, handle.rig, *generation.calls]
    shown += handle.components.values()
    for one in shown:
        assert len(repr(one)) < 400, repr(one)
        assert "object at 0x" not in repr(one)
    assert repr(handle).startswith("<CompiledPipeline: FluxPipeline on ")
    assert "4 components" in repr(handle)
    assert "1 segments" not in repr(handle.programs)
    assert "vae.decode" in repr(generation)


def test_the_table_of_a_notebook_has_bytes_and_seconds(planned: Any) -> None:
    pipe, _, _ = planned
    html = pipe.dovetail._repr_html_()
    assert "a picture takes" in html
    assert "KiB" in html
    assert "<th>peak</th>" in html
    assert "1 programs" not in html + str(pipe.dovetail)


def test_a_mistyped_name_is_answered_with_the_one_that_is_meant(planned: Any) -> None:
    with pytest.raises(AttributeError, match="did you mean 'explain'"):
        _ = planned[0].dovetail.explan
    assert not hasattr(planned[0].dovetail, "__nothing__")


def test_the_line_of_a_page_paints(planned: Any) -> None:
    pipe, call, _ = planned
    assert "dovetail generate 'a cat' --model MODEL_FOLDER --backend" in pipe.dovetail.show(**call)


@pytest.mark.fifth
def test_a_device_that_gets_nothing_is_said_alike(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, backend=IDLE)
    generation = pipe.dovetail.plan(**call)
    (blocks,) = {len(one.program.blocks) for one in generation.calls if one.component == "transformer"}
    idle = [f"sim{index}" for index in range(9)][blocks:]
    line = (
        f"{', '.join(idle)} {'get' if len(idle) > 1 else 'gets'} nothing of transformer: it has {blocks} blocks for 9"
    )
    assert line in "\n".join(pipe.dovetail.account(generation).remarks())
    told = pipe.dovetail.explain(**call)
    assert line in told
    assert "has values" not in told
    with caplog.at_level(logging.WARNING, "dovetail"):
        pipe(**call)
        pipe(**{**call, "num_inference_steps": 1})
    assert [one.getMessage() for one in caplog.records if "nothing of transformer" in one.getMessage()] == [
        next(one for one in pipe.dovetail.account(generation).remarks() if line in one)
    ]


def test_a_rig_prints_as_it_is_written() -> None:
    assert repr(Rig.parse("cuda0=24GiB@RTX 3090,cpu=8GiB")) == "<Rig cuda0=24GiB@RTX 3090,cpu=8GiB>"

"""A pipeline runs by plans that were made before: without tracing, placed as they say, and never by a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail import demo
from dovetail.cli.options.shared import Where
from dovetail.compiler.errors import PlanFileError, ProgramTextError, UsageError
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.plan_file import load_plan
from dovetail.passes.pipeline import default_passes
from dovetail.passes.rewrites.chunk import chunks_of
from dovetail.passes.states.solve import Solver
from dovetail.passes.states.states import has_short_terms, split_mode_of
from dovetail.plans.folder import Plans
from testbed.pipelines.tiny_pipelines import flux
from tests.command_line import done
from tests.dovetail.components.small_pipeline import WIDTH, Model

BACKEND = "sim0&sim1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny FLUX."""
    place = tmp_path_factory.mktemp("model")
    flux()[0].save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def plans(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its plans for two devices."""
    place = tmp_path_factory.mktemp("plans")
    done("compile", str(folder), "--backend", BACKEND, "-ts", "3,1", "--size", "16", "-o", str(place))
    return place


CALL = {"prompt": "a picture", "height": 16, "width": 16, "num_inference_steps": 2}


def painted(pipe: Any, **more: Any) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return pipe(**{**CALL, "output_type": "pt", "generator": generator, **more}).images


def homes(pipe: Any) -> dict[str, dict[str, str]]:
    return {
        name: {weight: str(home) for one in programs for weight, home in one.program.home.items()}
        for name, programs in pipe.dovetail.programs.items()
    }


@pytest.mark.fifth
def test_a_pipeline_runs_by_plans_without_tracing(folder: Path, plans: Path, traced: list[str]) -> None:
    wanted = dovetail.load_pipeline(folder, BACKEND, tensor_split="3,1")
    picture = painted(wanted)
    assert traced
    traced.clear()
    pipe = dovetail.load_pipeline(folder, plans=plans)
    assert torch.equal(painted(pipe), picture)
    assert traced == []
    assert homes(pipe) == homes(wanted)
    assert {str(device) for one in pipe.dovetail.components.values() for device in one.devices} == {"sim0", "sim1"}


@pytest.mark.fifth
def test_a_dry_run_says_what_runs_by_the_plans(folder: Path, plans: Path, traced: list[str]) -> None:
    words = ("generate", "a picture", "--model", str(folder), "--plans", str(plans), "--size", "16", "--steps", "2")
    plan = json.loads(done(*words, "--dry-run", "--json"))
    assert traced == []
    there = {name: [one["device"] for one in part["devices"]] for name, part in plan["components"].items()}
    assert there["transformer"] == ["sim0", "sim1"]
    assert plan["options"]["--plans"] == str(plans)


@pytest.mark.slow
def test_a_pipeline_in_memory_takes_plans_too(folder: Path, plans: Path, traced: list[str]) -> None:
    import diffusers

    pipe = diffusers.FluxPipeline.from_pretrained(folder)
    dovetail.compile_pipeline(pipe, plans=plans)
    with pipe.dovetail:
        painted(pipe)
        assert not {"FluxTransformer2DModel", "AutoencoderKL"} & {*traced}
        assert "sim1" in set(homes(pipe)["transformer"].values())


@pytest.mark.slow
def test_a_call_of_another_size_is_said_and_placed_anew(
    folder: Path, plans: Path, traced: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = dovetail.load_pipeline(folder, plans=plans)
    painted(pipe, height=32, width=32)
    assert "FluxTransformer2DModel" in traced
    assert "in transformer.json img_ids is float32[16, 3], and here float32[64, 3]: it is placed again" in caplog.text


@pytest.mark.fifth
def test_other_devices_than_those_of_the_plan_are_said(
    folder: Path, plans: Path, traced: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = dovetail.load_pipeline(folder, "sim0", plans=plans)
    painted(pipe)
    assert traced == []
    assert "it is on sim0 & sim1, and here on sim0" in caplog.text
    assert set(homes(pipe)["transformer"].values()) == {"sim0"}


@pytest.mark.slow
def test_a_changed_model_is_traced_although_there_is_a_plan(folder: Path, plans: Path, traced: list[str]) -> None:
    pipe = dovetail.load_pipeline(folder, plans=plans)
    pipe.transformer.time_text_embed.time_proj.scale = 2.0
    other = dovetail.load_pipeline(folder, BACKEND)
    other.transformer.time_text_embed.time_proj.scale = 2.0
    assert torch.equal(painted(pipe), painted(other))
    assert traced[:1] == ["FluxTransformer2DModel"]


@pytest.mark.slow
def test_weights_rest_where_the_plans_say(folder: Path, tmp_path: Path) -> None:
    words = ("--backend", "diffusion=sim0&sim1", "--params-backend", "diffusion=cpu", "--size", "16")
    done("compile", str(folder), *words, "-o", str(tmp_path))
    pipe = dovetail.load_pipeline(folder, plans=tmp_path)
    picture = painted(pipe)
    assert torch.equal(picture, painted(dovetail.load_pipeline(folder, "sim0")))
    assert [program.program.kept.value for program in pipe.dovetail.programs["transformer"]] == ["cpu"]


def test_a_folder_without_plans_is_an_error(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="has no plans"):
            dovetail.load_pipeline(folder, plans=place)


@pytest.mark.fifth
def test_a_damaged_plan_is_an_error_and_a_damaged_trace_is_said(
    folder: Path, plans: Path, tmp_path: Path, traced: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for file in plans.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    trace = tmp_path / "transformer.trace"
    trace.write_bytes(trace.read_bytes()[:-9])
    painted(dovetail.load_pipeline(folder, plans=tmp_path))
    assert traced == ["FluxTransformer2DModel"]
    assert "transformer.trace is not used" in caplog.text
    plan = json.loads((tmp_path / "transformer.json").read_text())
    (tmp_path / "transformer.json").write_text(json.dumps({**plan, "program": ["nonsense"]}))
    with pytest.raises(ProgramTextError):
        dovetail.load_pipeline(folder, plans=tmp_path)
    (tmp_path / "transformer.json").write_text("{}")
    with pytest.raises(PlanFileError):
        dovetail.load_pipeline(folder, plans=tmp_path)


@pytest.mark.slow
def test_generate_takes_plans(folder: Path, plans: Path, traced: list[str], tmp_path: Path) -> None:
    words = ("generate", "a picture", "--model", str(folder), "--size", "16", "--steps", "2")
    done(*words, "--plans", str(plans), "-o", str(tmp_path / "one.png"))
    assert traced == []
    done(*words, "--backend", BACKEND, "-ts", "3,1", "-o", str(tmp_path / "two.png"))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.fifth
def test_plans_of_what_the_host_computes_are_used_though_weights_rest_in_their_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As they do in `generate`; in a pipeline of somebody's, which has none, they rest in memory."""
    done("compile", "--backend", "diffusion=sim0,cpu", "-o", str(tmp_path / "plans"))
    words = ("generate", "a red circle", "--steps", "1", "--plans", str(tmp_path / "plans"))
    done(*words, "-o", str(tmp_path / "one.png"))
    assert "placed again" not in caplog.text
    kept = {path.stem: load_plan(path)[0].kept for path in (tmp_path / "plans").glob("*.json")}
    assert set(kept.values()) == {Residency.DEVICE}


@pytest.mark.fifth
def test_plans_of_parts_place_each_on_its_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them has one device, and all together the devices of the component."""
    cached = ("--cache", "first_block:0.12")
    done("compile", "--backend", BACKEND, *cached, "-o", str(tmp_path / "plans"))
    words = ("generate", "a red circle", "--steps", "2", "--plans", str(tmp_path / "plans"))
    done(*words, *cached, "-o", str(tmp_path / "one.png"))
    assert "placed again" not in caplog.text
    pipe = dovetail.load_pipeline(demo.folder(), plans=tmp_path / "plans", dtype=torch.bfloat16)
    assert [str(one) for one in pipe.dovetail.components["transformer"].devices] == ["sim0", "sim1"]

    done(*words, "-o", str(tmp_path / "two.png"))
    (told,) = (one for one in caplog.messages if "placed again" in one)
    assert told.count(".json") == 3
    assert "more: it is placed again" in told


@pytest.mark.slow
def test_plans_of_a_row_split_run(tmp_path: Path) -> None:
    """Biases are sliced along with their matrices, and are none themselves."""
    row = ("--backend", "diffusion=sim0&sim1,te=sim1,vae=sim0", "--split-mode", "row")
    done("compile", *row, "-o", str(tmp_path / "plans"))
    words = ("generate", "a red circle", "--steps", "2")
    done(*words, "--plans", str(tmp_path / "plans"), "-o", str(tmp_path / "one.png"))
    done(*words, *row, "-o", str(tmp_path / "two.png"))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.slow
def test_what_a_plan_has_in_chunks_is_computed_in_chunks(folder: Path, tmp_path: Path) -> None:
    done("compile", str(folder), "--backend", "sim0", "--chunk", "diffusion=2", "--size", "16", "-o", str(tmp_path))
    for asked, expected in ((None, {"transformer": 2}), ("off", {})):
        pipe = dovetail.load_pipeline(folder, plans=tmp_path, chunk=asked)
        painted(pipe)
        chunks = {name: chunks_of(one.program) for name, programs in pipe.dovetail.programs.items() for one in programs}
        assert {name: count for name, count in chunks.items() if count > 1} == expected
        pipe.dovetail.undo()


def test_of_several_plans_of_a_component_the_most_chunks_count_whatever_their_order(tmp_path: Path) -> None:
    model, x = Model().eval(), torch.randn(1, 8, WIDTH)
    for name, chunk in (("unet", 2), ("unet.2", 4), ("unet.3", None), ("vae", None)):
        dovetail.compile(model, (x,), backend="sim0", chunk=chunk).save(tmp_path / f"{name}.json")
    assert Plans(tmp_path).completed({})["chunk"] == {"unet": 4}


@pytest.mark.slow
def test_states_of_plans_are_not_solved_for_again(
    folder: Path, tmp_path: Path, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    split = {"backend": {"diffusion": "sim0&sim1", "te": "sim0", "vae": "sim0"}, "split_mode": {"diffusion": "tensor"}}
    wanted = dovetail.load_pipeline(folder, **split)
    picture = painted(wanted)
    words = ("--backend", "te=sim0,vae=sim0,diffusion=sim0&sim1", "--split-mode", "diffusion=tensor")
    done("compile", str(folder), *words, "--size", "16", "-o", str(tmp_path))
    traced.clear()
    monkeypatch.setattr(Solver, "solved", None)  # which nobody calls
    pipe = dovetail.load_pipeline(folder, plans=tmp_path)
    assert torch.equal(painted(pipe), picture)
    assert traced == []
    (found,), (known,) = (one.dovetail.programs["transformer"] for one in (pipe, wanted))
    assert str(found.program.schedule) == str(known.program.schedule)
    assert split_mode_of(found.program) == "tensor"


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model that is split by tensor and whose terms cross in bfloat16."""
    place, x = tmp_path_factory.mktemp("short"), torch.randn(1, 4096, WIDTH)
    split = {"backend": BACKEND, "split_mode": "tensor", "bf16_partials": True}
    dovetail.compile(Model().eval(), (x,), **split).save(place / "unet.json")
    return place


@pytest.mark.parametrize(
    ("typed", "mode", "is_short"),
    [
        (None, {"unet": "tensor"}, True),
        ("", {"unet": "tensor"}, True),
        ({}, {"unet": "tensor"}, True),
        ("te=layer", {"te": "layer", "unet": "tensor"}, True),
        ("tensor", "tensor", True),
        ("diffusion=tensor", "diffusion=tensor", True),
        ("layer", "layer", False),
        ("diffusion=layer", "diffusion=layer", False),
        ("auto", "auto", False),
        ("te=tensor,sequence", "te=tensor,sequence", False),
    ],
)
def test_a_mode_that_was_typed_stands_and_what_was_left_out_is_as_in_the_plans(
    short: Path, typed: Any, mode: Any, is_short: bool
) -> None:
    found = Plans(short).completed({"split_mode": typed}, {"unet": "diffusion", "text": "te"})
    assert (found["split_mode"], found.get("bf16_partials", False)) == (mode, is_short)


@pytest.mark.parametrize(
    ("mode", "terms", "why"),
    [
        ("tensor", "bfloat16", ""),
        ("layer", "", "it is split by tensor, and here by layer"),
        ("row", "", "it is split by tensor, and here by row"),
        ("sequence", "", "it is split by tensor, and here by sequence"),
        ("tensor", "", "its devices send partial sums in bfloat16 (bf16_partials), and here as they are"),
    ],
)
def test_a_plan_of_another_mode_is_not_used_and_this_is_said(
    short: Path, mode: str, terms: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = load_plan(short / "unet.json")[0]
    assert has_short_terms(plan)
    steps = default_passes(split_mode=mode, terms=terms)
    found = Plans(short).passes(steps, "unet", plan, Residency.DEVICE)
    assert (found is None) == bool(why)
    assert why in caplog.text
    assert ("no plan in" in caplog.text) == bool(why)


def test_a_plan_of_what_could_not_be_split_is_used_under_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    """It is by layers then, as it would be anew."""
    compiled = dovetail.compile(Model().eval(), (torch.randn(1, 8, WIDTH),), backend=BACKEND, split_mode="batch")
    assert split_mode_of(compiled.program) == "layer"
    compiled.save(tmp_path / "unet.json")
    for mode, is_used in (("batch", True), ("layer", True), ("tensor", False)):
        steps = default_passes(split_mode=mode)
        found = Plans(tmp_path).passes(steps, "unet", load_plan(tmp_path / "unet.json")[0], Residency.DEVICE)
        assert (found is not None) == is_used


def test_beside_plans_short_terms_are_checked_when_the_plans_are_read() -> None:
    typed, components = Where(bf16_partials=True), {"unet": "diffusion"}
    typed.check(components, has_plans=True)
    with pytest.raises(UsageError, match="nothing is split so"):
        typed.check(components)


@pytest.mark.parametrize("given", ["no", "", 1, None])
def test_whether_terms_are_short_is_a_truth_value(given: Any) -> None:
    with pytest.raises(UsageError, match="bf16_partials is True or False, and not"):
        dovetail.compile(Model(), (torch.randn(1, 8, WIDTH),), backend="sim0", bf16_partials=given)

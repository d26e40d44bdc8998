"""Passes that are not dovetail's own: registered, named by installed packages, and the one of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings

from dovetail import demo
from dovetail.cli.commands.passes import _facts as facts
from dovetail.compiler.errors import PassError, UsageError, VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.passes import pipeline
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, known_passes, parse_passes, register
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.runtime.store.program_weights import ProgramWeights
from scripts.fill_docs import FENCE

from .graphs import Case, cases, same_bits

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-pass.md"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSES", dict(pipeline.PASSES))


def pass_of_the_page() -> tuple[type[Pass], dict[str, object]]:
    """The class that the first block of the page defines, and what else is there."""
    found = FENCE.search(PAGE.read_text())
    assert found
    names: dict[str, object] = {"__name__": "__main__"}
    known = dict(pipeline.PASSES)
    exec(compile(found[2], PAGE.name, "exec", dont_inherit=True), names)
    pipeline.PASSES.clear()
    pipeline.PASSES.update(known)
    merge = names["Merge"]
    assert isinstance(merge, type)
    assert issubclass(merge, Pass)
    return merge, names


MERGE, NAMES = pass_of_the_page()


def with_merge() -> list[Pass]:
    steps = list(default_passes())
    return [steps[0], MERGE(), *steps[1:]]


@pytest.mark.fifth
@settings(max_examples=20)
@given(cases())
def test_the_pass_of_the_page_changes_no_bit(case: Case) -> None:
    program = PassManager(with_merge()).run(case.program)
    found = CompiledModule(program, program.rig, ProgramWeights.of_tensors(case.weights, program))(*case.inputs)
    assert all(map(same_bits, found, case.expected))


@pytest.mark.slow
def test_the_pass_of_the_page_computes_what_blocks_share_once() -> None:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel.from_pretrained(demo.folder() / "transformer").eval()
    call = {name: torch.zeros(*sizes) for name, sizes in sizes_of(model).items()}
    program = PassManager([Simplify(), MERGE()]).run(trace(model, (), call))
    silus = [node for node in program.ops() if "silu" in str(node.target)]
    assert len({node.args for node in silus}) == len(silus)


def sizes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """A call of the demo's transformer, by the sizes of its inputs."""
    config = model.config
    return {
        "hidden_states": (1, 16, config.in_channels),
        "encoder_hidden_states": (1, 4, config.joint_attention_dim),
        "pooled_projections": (1, config.pooled_projection_dim),
        "timestep": (1,),
        "img_ids": (16, 3),
        "txt_ids": (4, 3),
    }


def test_a_pass_that_merges_what_was_written_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "touched_memory", lambda memory: set())

    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            view, before = x.view(2), x + 1
            view.mul_(2)
            return before + (x + 1)

    program = trace(Writes(), (torch.ones(2),))
    with pytest.raises(VerificationError, match="reads another"):
        PassManager([MERGE()]).run(program)


def test_a_registered_pass_can_be_named_in_a_text() -> None:
    register(MERGE)
    assert parse_passes("simplify,merge{most=2KiB}") == (Simplify(), MERGE(2048))  # type: ignore[call-arg]
    register(MERGE)  # a cell of a notebook that runs again


def test_the_name_of_a_pass_of_dovetail_is_taken() -> None:
    class Other(MERGE):  # type: ignore[misc, valid-type]
        name = "simplify"

    with pytest.raises(UsageError, match="there is a pass simplify already"):
        register(Other)


def test_a_pass_that_an_installed_package_names_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("slimmer", f"{Simplify.__module__}:Simplify", pipeline.ENTRY_POINTS)
    monkeypatch.setattr(pipeline, "entry_points", lambda group: [entry] if group == pipeline.ENTRY_POINTS else [])
    assert parse_passes("slimmer") == (Simplify(),)
    assert "slimmer" in known_passes()


@pytest.mark.slow
def test_the_command_line_runs_a_pass_that_an_installed_package_names(tmp_path: Path) -> None:
    code = FENCE.search(PAGE.read_text())
    assert code
    (tmp_path / "merging.py").write_text(code[2].replace("@register\n", ""))
    installed = tmp_path / "merging-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: merging\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{pipeline.ENTRY_POINTS}]\nmerge = merging:Merge\n")
    steps = ["simplify", "merge{most=1MiB}", *map(str, default_passes()[1:])]
    asked = ["--component", "transformer", "--backend", "sim0&sim1", "--passes", ",".join(steps), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PAGE.parents[1]), str(tmp_path)])}
    for command in (["passes"], ["compile", *asked]):
        call = [sys.executable, "-m", "dovetail", *command]
        done = subprocess.run(call, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    assert "transformer" in done.stdout


@pytest.mark.parametrize("value", ["nowhere:Merge", "dovetail.passes.pipeline:lowered"])
def test_an_entry_point_that_is_no_pass_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("mine", value, pipeline.ENTRY_POINTS)
    monkeypatch.setattr(pipeline, "entry_points", lambda group: [entry])
    with pytest.raises(PassError, match="pass mine"):
        parse_passes("mine")


def entries_of(monkeypatch: pytest.MonkeyPatch, *named: tuple[str, str]) -> None:
    entries = [EntryPoint(name, value, pipeline.ENTRY_POINTS) for name, value in named]
    monkeypatch.setattr(pipeline, "entry_points", lambda group: entries)


SIMPLIFY = f"{Simplify.__module__}:Simplify"


def test_a_pass_of_a_package_works_beside_one_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries_of(monkeypatch, ("broken", "nowhere:Merge"), ("slimmer", SIMPLIFY))
    assert parse_passes("slimmer") == (Simplify(),)
    assert "slimmer" in known_passes()
    assert "broken" not in known_passes()
    assert "pass broken cannot be imported from nowhere:Merge" in caplog.text


def test_a_misspelled_name_is_compared_with_the_names_of_packages_and_imports_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries_of(monkeypatch, ("broken", "nowhere:Merge"))
    with pytest.raises(UsageError, match=r"no pass is called 'brokem', did you mean broken\?"):
        parse_passes("brokem")


def test_two_packages_with_a_pass_of_one_name_are_refused_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries_of(monkeypatch, ("mine", SIMPLIFY), ("mine", "nowhere:Merge"))
    with pytest.raises(PassError, match="several passes mine"):
        parse_passes("mine")
    assert parse_passes("simplify") == (Simplify(),)


def test_a_package_cannot_take_the_name_of_a_pass_of_dovetail(monkeypatch: pytest.MonkeyPatch) -> None:
    entries_of(monkeypatch, ("simplify", "nowhere:Merge"))
    assert known_passes()["simplify"] is Simplify
    assert parse_passes("simplify") == (Simplify(),)


def test_a_name_with_a_digit_can_be_registered_and_written() -> None:
    class Second(MERGE):  # type: ignore[misc, valid-type]
        name = "Merge_2"

    register(Second)
    assert parse_passes("simplify,Merge_2") == (Simplify(), Second())


class Unnamed(Pass):
    def run(self, program: Program) -> Change:
        return Change(0, "nothing")


class Idle(Pass):
    name = "idle"


class Spaced(Unnamed):
    name = "two words"


@pytest.mark.parametrize("step", [Unnamed, Idle, Spaced, int, "merge"])
def test_what_no_text_can_name_or_run_is_not_registered(step: Any) -> None:
    with pytest.raises(UsageError, match="pass"):
        register(step)


def test_an_option_that_a_pass_needs_is_asked_for() -> None:
    @register
    @dataclass(frozen=True)
    class Needy(Unnamed):
        name: ClassVar[str] = "needy"
        most: int

    assert parse_passes("needy{most=2KiB}") == (Needy(2048),)
    with pytest.raises(UsageError, match="needs the option most"):
        parse_passes("needy")
    assert json.loads(json.dumps(facts(Needy)))["options"] == {"most": None}

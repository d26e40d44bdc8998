"""A placement in sentences, and what differs between two."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.devices.device import Device
from dovetail.compiler.states.parts import sent
from dovetail.draw.text.reasons import reason_for
from dovetail.explain.differences import differences
from dovetail.explain.facts import cuts_of, sentences_of
from dovetail.explain.sentences import explain_plan, explain_programs
from dovetail.explain.what_if import MORE, with_faster_links, with_links, with_more_memory
from dovetail.fitting.decide import Decision, speeds_here
from dovetail.passes.fit.search import search
from dovetail.passes.simulate.timeline import timeline
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.generation import Generation
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines

CUDA0 = Device("cuda", 0)


def run(*words: Any) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def planned(request: dict[str, Any]) -> Any:
    pipe, call = tiny_pipelines.flux()
    dry = DryPipeline(pipe, request)
    return dry.account(dry(**call)), {name: one.program for name, one in dry.plans().items()}


@pytest.fixture(scope="module")
def split() -> Any:
    return planned({"backend": "cuda0&cuda1", "rig": "cuda0=1GiB,cuda1=1GiB,cpu=4GiB"})


@pytest.fixture(scope="module")
def found() -> Any:
    return planned({"backend": "diffusion=cuda0", "rig": "cuda0=858KiB,cpu=4GiB"})


@pytest.mark.fifth
def test_what_was_typed_is_as_asked_though_the_rest_was_searched(found: Any) -> None:
    account, _ = found
    told = {part.call.component: reason_for(account, part) for part in account.parts}
    assert told.pop("transformer").startswith("As asked: ")
    assert told
    assert all(one.startswith("Found by search: ") for one in told.values())


@pytest.mark.fifth
def test_each_cut_is_told_with_its_bytes(split: Any) -> None:
    account, programs = split
    program = programs["transformer"]
    cuts = cuts_of(program, account.speeds)
    whole = [end for one in program.transfers() for end in sent(program, one)]
    assert sum(cut.nbytes for cut in cuts) == sum(nbytes for _, _, nbytes in whole) > 0
    assert sum(cut.values for cut in cuts) == len(whole)
    told = " ".join(sentences_of("transformer", program, 3, account.speeds))
    assert all(f"from {cut.source} to {cut.target}" in told for cut in cuts)
    assert "a picture makes 3" in told


def test_every_component_and_every_device_has_a_sentence(split: Any) -> None:
    account, _ = split
    told = list(explain_plan(account))
    assert all(any(one.startswith(f"{part.title}:") for one in told) for part in account.parts)
    assert all(sum(one.startswith(f"{device} holds at most") for one in told) == 1 for device in ("cuda0", "cuda1"))
    assert told[-1].startswith("No other placement was searched, for devices were given: --backend")


def test_notes_spell_a_device_as_options_do(split: Any) -> None:
    account = replace(split[0], notes=("cuda1 has no part of vae",))
    assert "cuda1 has no part of vae." in list(explain_plan(account))


@pytest.mark.fifth
def test_what_more_memory_would_change_is_what_a_search_with_more_finds(found: Any) -> None:
    account, _ = found
    decision: Decision = account.decision
    told = list(with_more_memory(decision))
    budgets = decision.budgets
    for device, nbytes in budgets.devices.items():
        more = replace(budgets, devices={**budgets.devices, device: nbytes + MORE})
        other = search(decision.loads, decision.machine, more)
        assert other is not None
        part = 1 - other.seconds / decision.solution.seconds
        said = f"With 2.0 GiB more on {device} a picture would take {part:.0%} less time."
        assert (said in told) == (part >= 0.01), "what changes nothing is not said"
    assert told
    assert all("less time" in one for one in told)


@pytest.mark.fifth
@pytest.mark.parametrize("mode", ["layer", "row"])
def test_what_faster_links_would_change_is_what_the_same_schedules_take_with_them(mode: str) -> None:
    cards = "cuda0=1GiB@RTX 4090,cuda1=1GiB@RTX 4090,cpu=4GiB"
    account, _ = planned({"backend": "diffusion=cuda0&cuda1", "split_mode": mode, "rig": cards})
    account = replace(account, speeds=with_links(account.speeds, 1e-3))  # slow ones, for all here is small
    faster = with_links(account.speeds, 2)
    now, then = (
        sum(part.call.times * timeline(part.call.program, speeds).seconds for part in account.parts)
        for speeds in (account.speeds, faster)
    )
    assert then < 0.98 * now
    (told,) = with_faster_links(account)
    assert told == f"With links twice as fast a picture would take {1 - then / now:.0%} less time."
    assert told in list(explain_plan(account))


@pytest.mark.fifth
def test_no_search_says_what_more_memory_would_do_for_a_split_by_rows() -> None:
    cards = "cuda0=1GiB@RTX 4090,cuda1=1GiB@RTX 4090,cpu=4GiB"
    account, _ = planned({"backend": "diffusion=cuda0&cuda1", "split_mode": "diffusion=row", "rig": cards})
    budgets = replace(account.decision.budgets, devices={**account.decision.budgets.devices, CUDA0: 2**16})
    assert list(with_more_memory(replace(account.decision, budgets=budgets))) == []


@pytest.mark.fifth
def test_of_devices_that_are_searched_for_rows_nothing_is_said_that_is_of_layers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def account_of(**more: Any) -> Any:
        pipe, call = tiny_pipelines.wide_flux()
        rig = "cuda0=20MiB@RTX 4090,cuda1=20MiB@RTX 4090,cpu=4GiB"
        dry = DryPipeline(pipe, {"rig": rig, "params_backend": "device", **more})
        return dry.account(dry(**call))

    assert any(note.startswith("without cuda1") for note in account_of().notes)
    account = account_of(split_mode="diffusion=row")
    assert account.decision.by_rows == ("transformer",)
    assert not any(note.startswith(("without", "splitting")) for note in account.notes)
    assert "says nothing of" not in caplog.text, "the devices were not known yet"


def test_faster_links_are_no_matter_where_nothing_takes_time(split: Any) -> None:
    account, _ = split
    generation = account.generation
    nothing = replace(account, generation=Generation((), generation._rigs, generation.rig))
    assert nothing.seconds == 0
    assert list(with_faster_links(nothing)) == []


def test_faster_links_leave_the_host_as_it_is(found: Any) -> None:
    account, _ = found
    faster = with_links(account.speeds, 2)
    for device, speed in account.speeds.devices.items():
        assert faster[device].link == speed.link * (1 if device.is_host else 2)


def test_a_placement_does_not_differ_from_itself(split: Any) -> None:
    _, programs = split
    assert list(differences(programs, programs)) == []


@pytest.mark.fifth
def test_what_differs_is_told_with_both_figures(split: Any) -> None:
    _, programs = split
    _, other = planned({"backend": "cuda0", "params_backend": "diffusion=cpu", "rig": "cuda0=1GiB,cuda1=1GiB,cpu=4GiB"})
    told = list(differences(programs, other))
    moved = sum(weight.nbytes for weight in other["transformer"].weights.values())
    there = [one for one in told if one.startswith("transformer: weights for cuda0 in host memory: nothing → ")]
    assert len(there) == 1
    assert moved > 0
    assert any(re.fullmatch(r"transformer: sent in a call from cuda0 to cuda1: .* → nothing", one) for one in told)
    assert any(re.fullmatch(r"transformer: peak on cuda1: .* → nothing", one) for one in told)
    del other["transformer"]
    assert "transformer is only in the first" in list(differences(programs, other))


@pytest.mark.slow
def test_a_compiled_pipeline_explains_a_call_and_does_not_make_it() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, "sim0&sim1", rig="sim0=64MiB,sim1=64MiB,cpu=4GiB")
    told = pipe.dovetail.explain(**call)
    assert "transformer: sim0 has" in told
    assert "sim1 holds at most" in told
    assert sim.stats(0).in_use == sim.stats(1).in_use == 0
    pipe.dovetail.undo()


def test_plan_files_are_explained_alone(split: Any) -> None:
    _, programs = split
    told = list(explain_programs(programs))
    assert len(told) == len(programs)
    assert all("holds at most" in one for one in told)
    assert all(str(speeds_here(one.rig)[one.main].label) for one in programs.values())


@pytest.mark.slow
def test_the_commands_answer(tmp_path: Path) -> None:
    for name, options in ("a", ["--backend", "sim0"]), ("b", ["--backend", "sim0+sim1"]):
        assert run("compile", *options, "--rig", "sim0=64MiB,sim1=64MiB", "-o", tmp_path / name).exit_code == 0
    explained = run("explain", tmp_path / "b")
    assert explained.exit_code == 0
    assert "from sim0 to sim1" in explained.stdout
    assert max(map(len, explained.stdout.splitlines())) <= 80
    assert run("diff", tmp_path / "a", tmp_path / "a").stdout == "they are alike\n"
    told = json.loads(run("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert any(one.startswith("transformer: ") for one in told)
    nothing = run("diff", tmp_path / "a", tmp_path / "none")
    assert nothing.exit_code == 2
    assert "there is no plan in" in nothing.stderr


def test_three_sizes_of_a_device_have_one_and() -> None:
    pipe, call = tiny_pipelines.flux()
    dry = DryPipeline(pipe, {"rig": "cuda0=1GiB,cpu=4GiB", "backend": "cuda0", "params_backend": "diffusion=cpu"})
    generation = dry(**call)
    assert generation is not None
    told = "\n".join(explain_plan(dry.account(generation)))
    assert re.search(r"of weights that stay, [\d.]+ .iB of weights loaded for the phase and [\d.]+ .iB of values", told)

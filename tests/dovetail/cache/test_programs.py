"""What passes made of a trace on some devices is taken from disk by the next process, and never anything else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dovetail.cache import folder, programs, traces
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.planning.lowerings import Lowerings

Load = Callable[..., ModuleType]
MIB = 2**20
TWO = "sim0=64MiB,sim1=48MiB"
CHAIN = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
    def forward(self, x):
        x = x * torch.tensor([2.0])
        for block in self.blocks:
            x = block(x)
        return x

class Helper:
"""


@pytest.fixture
def model(cache: Path, load: Load) -> torch.nn.Module:
    """A module of blocks, while there is a cache."""
    found: torch.nn.Module = load("class Helper:\n", CHAIN).Chain().requires_grad_(False)
    return found


def made(program: Program) -> Program:
    return PassManager(default_passes()).run(program)


def never(program: Program) -> Program:
    raise AssertionError(f"{program.name} was taken through the passes again")


def traced(model: torch.nn.Module, rig: str = TWO, **facts: object) -> Program:
    """What a process has of the module, on some devices."""
    found = traces.trace(model, (torch.ones(2, 256),))
    traces.wait()
    found.rig = Rig.parse(rig)
    vars(found).update(facts)
    return found


def kept(base: Program, run: Callable[[Program], Program], how: object = ("layer", True)) -> Program:
    """What one process makes of a trace, and keeps."""
    lowerings = Lowerings()
    found = lowerings.of(base, how, run)
    lowerings.keep([found])
    traces.wait()
    return found


ATTEMPTS: tuple[dict[str, object], ...] = (
    {},
    {"rig": "sim0=64MiB"},
    {"keeps_staged": True, "residency": {"blocks.0.up.weight": Residency.HOST, "blocks.3.down.weight": Residency.HOST}},
    {"given": frozenset({0})},
)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_second_process_has_the_program_and_the_schedule_of_the_first(
    model: torch.nn.Module, attempt: dict[str, object]
) -> None:
    first, base = kept(traced(model, **attempt), made), traced(model, **attempt)  # type: ignore[arg-type]
    second = kept(base, never)
    assert second is not first
    assert print_program(second) == print_program(first)
    assert str(second.schedule) == str(first.schedule)
    assert second.rig is base.rig
    assert (second.facts, second.history, second.given) == (first.facts, first.history, first.given)
    assert second.weights == first.weights
    assert second.constants.keys() == first.constants.keys()
    assert all(second.constants[name] is base.constants[name] for name in second.constants)


def test_other_devices_passes_and_places_have_programs_of_their_own(model: torch.nn.Module) -> None:
    kept(traced(model), made)
    rig = Rig.parse(TWO)
    smaller = Rig({device: replace(one, free=one.free - MIB) for device, one in rig.memory.items()})
    for changed in (*ATTEMPTS[1:], {"rig": "sim0=64MiB,sim1=48MiB,cpu=1GiB"}):
        with pytest.raises(AssertionError, match="again"):
            kept(traced(model, **changed), never)  # type: ignore[arg-type]
    other = traced(model)
    other.rig = smaller
    for base, how in ((other, ("layer", True)), (traced(model), ("layer", False)), (traced(model), ("row", True))):
        with pytest.raises(AssertionError, match="again"):
            kept(base, never, how)


def test_other_sources_have_programs_of_their_own(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(traced(model), made)
    monkeypatch.setattr(programs, "_sources", lambda: "others")
    with pytest.raises(AssertionError, match="again"):
        kept(traced(model), never)


def test_what_sources_made_that_were_replaced_meanwhile_is_not_kept(
    model: torch.nn.Module, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "own_sources", lambda: [[("compiler/ir/program.py", 1)]])
    kept(traced(model), made)
    assert not list(cache.glob("*.program"))


def test_programs_whose_files_were_exchanged_are_not_taken_for_each_other(
    model: torch.nn.Module, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cases = (traced(model), ("layer", True)), (traced(model, "sim0=64MiB"), ("layer", True))
    firsts = [str(kept(base, made, how).schedule) for base, how in cases]
    one, other = cache.glob("*.program")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    again = (traced(model), ("layer", True)), (traced(model, "sim0=64MiB"), ("layer", True))
    with caplog.at_level(logging.WARNING):
        assert [str(kept(base, made, how).schedule) for base, how in again] == firsts
    assert caplog.text.count("is not used: it is of something else") == 2


def test_a_trace_that_is_not_kept_has_no_program_that_is(model: torch.nn.Module, cache: Path) -> None:
    base = traced(model)
    assert traces.key_of_trace(base)
    assert not traces.key_of_trace(base.copy())  # somebody may change a copy
    kept(base.copy(), made)
    assert not list(cache.glob("*.program"))


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: b"", lambda text: text.replace(b"sim1", b"sim0")]
)
def test_a_damaged_program_is_made_anew_and_said(
    model: torch.nn.Module, cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    first = kept(traced(model), made)
    (file,) = cache.glob("*.program")
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        second = kept(traced(model), made)
    assert str(second.schedule) == str(first.schedule)
    assert f"the kept program {file} is not used: " in caplog.text
    kept(traced(model), never)  # it was written anew


def test_what_passes_warn_of_is_said_each_time(model: torch.nn.Module, cache: Path) -> None:
    def warning(program: Program) -> Program:
        logging.getLogger("dovetail.passes").warning("it lies whole on sim0")
        return made(program)

    kept(traced(model), warning)
    assert not list(cache.glob("*.program"))


def test_what_groups_compute_together_is_not_kept(model: torch.nn.Module, cache: Path) -> None:
    def together(program: Program) -> Program:
        return PassManager(default_passes(split_mode="row")).run(program)

    assert kept(traced(model, "sim0=64MiB,sim1=64MiB"), together).is_grouped
    assert not list(cache.glob("*.program"))


def test_the_folder_lists_programs_by_their_class(model: torch.nn.Module) -> None:
    kept(traced(model), made)
    assert {(one.kind, folder.name_of(one)) for one in folder.entries()} == {("trace", "Chain"), ("program", "Chain")}


def test_a_log_has_what_passes_did(model: torch.nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    kept(traced(model), made)
    with caplog.at_level(logging.INFO, "dovetail"), pytest.raises(AssertionError, match="again"):
        kept(traced(model), never)

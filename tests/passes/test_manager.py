"""The pass manager and the text of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.errors import DoesNotFitError, PassError, UsageError
from dovetail.compiler.ir.program import Program
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.lower import Lower
from dovetail.passes.pipeline import PASSES, default_passes, parse_passes
from dovetail.passes.placement.cut import Cut
from dovetail.passes.placement.pin import Pin
from dovetail.passes.placement.place import Place
from dovetail.passes.states.states import States

from .sample import sample


@dataclass(frozen=True)
class Fails(Pass):
    name: ClassVar[str] = "fails"
    error: type[Exception] = ValueError

    def run(self, program: Program) -> Change:
        raise self.error("seven is odd")


def pipelines() -> st.SearchStrategy[tuple[Pass, ...]]:
    shares = st.lists(st.floats(0, 1e9), max_size=5).map(tuple)
    places = st.builds(Place, shares=shares, headroom=st.none() | st.integers(0, 2**40))
    others = st.sampled_from([kind() for kind in PASSES.values() if kind not in (Place, States)])
    return st.lists(places | others).map(tuple)


def test_a_pass_that_lacks_what_it_requires_says_what_and_what_has_run() -> None:
    with pytest.raises(PassError, match="pass cut needs a program that is pinned; run so far: simplify"):
        PassManager([Cut()]).run(sample("simplify"))


def test_a_pass_that_refuses_a_program_says_why() -> None:
    with pytest.raises(PassError, match="pass pin refuses one that is cut; run so far: simplify → blocks"):
        PassManager([Pin()]).run(sample())


def test_a_failing_pass_is_named_with_its_history_and_the_cause() -> None:
    message = "pass fails failed after simplify → blocks: ValueError: seven is odd"
    with pytest.raises(PassError, match=message) as caught:
        PassManager([Fails()]).run(sample("simplify,blocks"))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.exit_code == 1  # nobody asked for it in a wrong way


def test_an_error_with_a_message_of_its_own_passes_through() -> None:
    with pytest.raises(DoesNotFitError, match=r"^seven is odd$"):
        PassManager([Fails(DoesNotFitError)]).run(sample("simplify"))


def test_what_a_pass_ensures_is_a_fact_and_the_pass_is_history() -> None:
    program = sample("simplify,blocks,place{shares=2:1:1},pin")
    assert {"blocks found", "placed", "pinned"} <= program.facts
    assert program.history == ("simplify", "blocks", "place{shares=2:1:1}", "pin")


def test_a_failed_pass_leaves_neither_fact_nor_history() -> None:
    program = sample("simplify")
    with pytest.raises(PassError):
        PassManager([Fails()]).run(program)
    assert program.history == ("simplify",)


def test_callbacks_see_each_pass_the_program_and_the_change_in_order() -> None:
    seen: list[tuple[str, str, bool]] = []
    program = sample("simplify")
    steps = parse_passes("blocks,place{shares=1:1:1},pin")
    PassManager(
        steps,
        [lambda step, program, change: seen.append((step.name, program.history[-1], bool(change)))],
    ).run(program)
    assert seen == [("blocks", "blocks", True), ("place", "place{shares=1:1:1}", True), ("pin", "pin", True)]


def test_a_change_prints_its_count_and_is_false_when_nothing_changed() -> None:
    assert str(Change(3, "nodes dropped")) == "3 nodes dropped"
    assert not Change(0, "nodes dropped")


@given(pipelines())
def test_a_pipeline_is_read_back_from_its_text(steps: tuple[Pass, ...]) -> None:
    assert parse_passes(",".join(map(str, steps))) == steps


def test_the_default_passes_are_known_by_name_and_end_with_the_verifier() -> None:
    steps = default_passes()
    assert [PASSES[step.name] for step in steps] == [type(step) for step in steps]
    assert steps[-1].name == "verify"


def test_sizes_may_carry_units_and_spaces_do_not_matter() -> None:
    assert parse_passes(" place{headroom=2GiB, shares=3:1} , pin") == (Place(shares=(3.0, 1.0), headroom=2**31), Pin())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pinn", r"no pass is called 'pinn', did you mean pin\? There are: simplify, quantize, blocks"),
        ("zzz", r"no pass is called 'zzz'\. There are: "),
        ("pin{colour=red}", "pass pin has no option 'colour'; it has: none"),
        ("place{colour=red}", "pass place has no option 'colour'; it has: shares, headroom"),
        ("place{headroom=lots}", "pass place cannot take headroom=lots: expected bytes, or a size such as 2GiB"),
        ("place{shares=a:b}", "pass place cannot take shares=a:b: expected shares such as 3:1"),
        ("pin;cut", "cannot read passes at 'pin;cut'"),
        ("pin,place{headroom=1", "cannot read passes at 'place{headroom=1'"),
    ],
)
def test_a_wrong_pipeline_is_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_passes(text)
    assert caught.value.exit_code == 2


def test_a_schedule_needs_a_cut_program() -> None:
    with pytest.raises(PassError, match="needs a program that is cut; run so far: no pass"):
        PassManager([Lower()]).run(sample(""))

"""The quickest of all modes, found by the search: never slower than any mode that is asked for, or than none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.spec.residency import Amounts, Residency
from dovetail.fitting.chosen import quicker
from dovetail.fitting.decide import why_not_used
from dovetail.passes.fit.choices import choices
from dovetail.passes.fit.group_work import GroupWork, Work
from dovetail.passes.fit.groups import MODES, quick_options
from dovetail.passes.fit.plan import plan_of
from dovetail.passes.fit.search import SPARED, _on_fewer, search
from dovetail.passes.fit.solution import Solution, fits
from dovetail.passes.fit.trial import ALONE, LAYER
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.states.solution import NotPossible

from .test_groups import CARDS, budgets, machine
from .test_search import CPU, MIB, load

SECONDS, WHOLE = 2.2, 200 * MIB
"""Of a picture on one card, and the bytes of all weights."""


@dataclass(frozen=True)
class Stated(GroupWork):
    """Work that is said: by mode the part of what is ideal that is reached, and whether weights are parted."""

    reached: tuple[tuple[str, float], ...] = ()

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        known = dict(self.reached)
        if self.mode not in known:
            return NotPossible(self.mode, "it cannot be")
        count = len(devices)
        part = WHOLE // count if self.mode in ("tensor", "row") else WHOLE
        return Work(SECONDS / count / known[self.mode], (part,) * count, (5 * MIB,) * count, WHOLE)


def component(name: str = "diffusion", asked: Asked | None = None, **reached: float) -> Load:
    work = Stated([], lambda program: program, Rig(), "auto", reached=tuple(reached.items()))
    one = replace(load("diffusion", 10, 20, live=10, times=20, flops=1e10), name=name, work=work)
    return replace(one, asked=asked or Asked(mode="auto"))


def under(one: Load, mode: str) -> Load:
    """The component with that mode asked for by name."""
    return one.by_layers if mode == "layer" else one.under(mode)


@pytest.mark.fifth
@settings(max_examples=30)
@example({"tensor": 0.85, "sequence": 0.22, "batch": 0.36, "spatial": 0.68}, [39, 135, 166, 39], 100, False)
@given(
    st.dictionaries(st.sampled_from(MODES), st.floats(0.1, 1.0), max_size=4),
    st.lists(st.integers(10, 300), min_size=2, max_size=4), st.integers(100, 1000), st.booleans(),
)  # fmt: skip
def test_it_is_never_slower_than_a_mode_that_is_asked_for(
    reached: dict[str, float], mib: list[int], cpu: int, is_slow: bool
) -> None:
    given = budgets(*mib, cpu=cpu)
    cards = CARDS[: len(mib)]
    on = machine(cards[:-1], slow=cards[-1:]) if is_slow else machine(cards)
    one = component(**reached)
    found = search([one], on, given)
    others = [search([under(one, mode)], on, given) for mode in ("layer", "tensor", "sequence", "batch", "spatial")]
    least = min((other.seconds for other in others if other), default=None)
    assert (found is None) <= (least is None)
    if found is None:
        return
    assert fits(found, given)
    assert least is None or found.seconds <= 1.02 * least
    way = found.ways["diffusion"]
    assert len({device.kind for device in way.devices}) == 1 or way.mode == "layer"
    options = plan_of(found, [one], given).settings
    assert options.get("--split-mode", "layer") == way.mode


@pytest.mark.fifth
@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(MODES), st.floats(0.1, 1.0), min_size=1, max_size=3), st.integers(10, 300))
def test_what_each_mode_takes_is_no_less_than_what_was_taken(reached: dict[str, float], mib: int) -> None:
    given, on, one = budgets(mib, mib, mib, mib), machine(), component(**reached)
    found = search([one], on, given)
    if found is None:
        return
    each = list(choices([one], found, on, given))
    assert [choice.mode for choice in each] == [ALONE, LAYER, *MODES]
    assert [choice.is_taken for choice in each].count(True) == 1
    for choice in each:
        assert (choice.seconds is None) == bool(choice.why)
        way = found.ways["diffusion"]  # which may take a little longer than one on more devices
        most = SPARED * 1.001 if len(choice.devices) > len(way.devices) else 1.003
        assert choice.seconds is None or choice.seconds >= found.seconds / most
        assert choice.mode in reached or choice.mode in (ALONE, LAYER) or choice.seconds is None
        assert len(choice.devices) == 1 or choice.mode != ALONE
        assert len(choice.devices) != 1 or choice.mode != LAYER


def found_by(one: Load, given: Budgets) -> Solution:
    solution = search([one], machine(), given)
    assert solution is not None
    return solution


def test_the_mode_is_that_which_is_quickest_where_weights_have_room() -> None:
    one = component(sequence=0.9, tensor=0.8)
    whole = found_by(one, budgets(300, 300, 300, 300)).ways["diffusion"]
    parted = found_by(one, budgets(100, 100, 100, 100)).ways["diffusion"]
    assert (whole.mode, whole.devices) == ("sequence", CARDS)
    assert (parted.mode, parted.devices) == ("tensor", CARDS)


def test_devices_that_are_named_are_the_group() -> None:
    asked = Asked(CARDS[:2], mode="auto")
    one = component(asked=asked, sequence=0.9, tensor=0.8)
    way = found_by(one, budgets(300, 300, 300, 300)).ways["diffusion"]
    assert (way.mode, way.devices) == ("sequence", CARDS[:2])
    mixed = component(asked=Asked((CARDS[0], CPU), mode="auto"), sequence=0.9)
    assert found_by(mixed, budgets(300, 300, 300, 300)).ways["diffusion"].mode == "layer"


def test_a_card_that_costs_more_than_it_gives_is_left_out() -> None:
    """All four take as long as the slow one would: three without it are quicker."""

    class Uneven(Stated):
        def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
            work = super().over(devices, room)
            return replace(work, seconds=9.0) if CARDS[3] in devices and isinstance(work, Work) else work

    one = component(sequence=0.9)
    assert isinstance(one.work, Stated)
    one = replace(one, work=Uneven(**{**vars(one.work), "_prepared": {}}))
    given, on = budgets(300, 300, 300, 300), machine(CARDS[:3], slow=CARDS[3:])
    found = search([one], on, given)
    assert found is not None
    assert (found.ways["diffusion"].mode, found.ways["diffusion"].devices) == ("sequence", CARDS[:3])
    (note,) = why_not_used(found, [one], on, given)
    assert note.startswith("cuda3 is not used: splitting diffusion over it too by layers would take ")


def test_a_card_that_gives_next_to_nothing_is_left_out_and_named() -> None:
    given, on = budgets(300, 300), machine(CARDS[:2])
    alone, hardly, clearly = (component(sequence=part) for part in (0.4, 0.506, 0.52))
    ways = [search([one], on, given) for one in (alone, hardly, clearly)]
    assert [len(one.ways["diffusion"].devices) for one in ways if one] == [1, 1, 2]
    assert ways[1] is not None
    (note,) = why_not_used(ways[1], [hardly], on, given)
    assert note == "cuda1 is not used: splitting diffusion over it too by sequence would be no faster"


def test_shares_by_memory_are_said_where_those_by_speed_do_not_fit() -> None:
    class Shared(Stated):
        def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
            if self.mode != "tensor":
                return NotPossible(self.mode, "it cannot be")
            shares = self.shares or (1.0,) * len(devices)
            weights = tuple(int(WHOLE * share / sum(shares)) for share in shares)
            return Work(SECONDS * max(shares) / sum(shares), weights, (5 * MIB,) * len(devices), WHOLE)

    one = component()
    assert isinstance(one.work, Stated)
    one = replace(one, work=Shared(**{**vars(one.work), "_prepared": {}}))
    given, on = budgets(190, 70), machine(CARDS[:2])
    links = {device: replace(speed, link=5e8) for device, speed in on.speeds.devices.items()}
    found = search([one], replace(on, speeds=replace(on.speeds, devices=links)), given)  # weights come too slowly
    assert found is not None
    way = found.ways["diffusion"]
    assert way.mode == "tensor"
    assert way.shares == (16.0, 6.0)
    assert plan_of(found, [one], given).settings["--tensor-split"] == "diffusion=16:6"


def test_cards_on_which_others_leave_nothing_are_no_group() -> None:
    one, on = component(tensor=0.9), machine(CARDS[:2])
    assert not list(quick_options(one, on, budgets(0, 0), [CARDS[:2]], list(Residency), ["tensor"]))


def test_what_takes_next_to_nothing_is_under_no_mode() -> None:
    """Its states are not even looked for."""

    class Unasked(Stated):
        def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
            raise AssertionError("it is a trifle")

    light = load("te", 2, 20, live=10, times=1, flops=1e8)
    work = Unasked([], lambda program: program, Rig(), "auto")
    small = replace(light, name="te", asked=Asked(mode="auto"), work=work)
    found = search([small, component(sequence=0.9)], machine(), budgets(400, 400, 400, 400))
    assert found is not None
    assert found.ways["diffusion"].mode == "sequence"
    assert found.ways["te"].mode == "layer"


@dataclass(frozen=True)
class Failing(GroupWork):
    """Work of which the states cannot be solved for, against all expectation."""

    def over(self, devices: Sequence[Device], room: tuple[int, ...] = ()) -> Work | NotPossible:
        raise TypeError("an operation with an argument that no rule expects")


def test_nothing_is_said_of_a_mode_that_nobody_asked_for_where_its_states_cannot_be_solved_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, given = component(asked=Asked(), sequence=1.0), budgets(300, 300)
    by_layers = search([one], machine(), given)
    assert by_layers is not None
    assert quicker([one], by_layers, machine(), given) is not None
    failing = replace(one, work=Failing([], lambda program: program, Rig(), "auto"))
    with caplog.at_level("DEBUG", logger="dovetail"):
        assert quicker([failing], by_layers, machine(), given) is None
    assert "an operation with an argument that no rule expects" in caplog.text


def test_fewer_devices_are_taken_by_what_both_ways_take_in_the_end() -> None:
    one = found_by(component(), budgets(300, 300, 300, 300))
    (way,) = one.ways.values()
    assert len(way.devices) == 1
    several = replace(way, devices=(*way.devices, CARDS[1]), seconds=way.seconds / SPARED * 1.001)
    least = Solution({"diffusion": several})
    assert _on_fewer(least, one) is one
    quicker_in_fine_parts = Solution({"diffusion": replace(several, seconds=way.seconds / 1.03)})
    assert _on_fewer(quicker_in_fine_parts, one) is quicker_in_fine_parts
    assert _on_fewer(least, None) is least


@pytest.mark.parametrize(
    ("blocks", "flops", "amount"), [(3, 1e11, 140), (3, 1e10, 140), (6, 1e10, 120), (4, 1e9, None)]
)
def test_others_make_room_for_a_mode_that_is_quickest(blocks: int, flops: float, amount: int | None) -> None:
    """Beside other modes the encoder's weights would stay on a card that has no room for them beside this one."""
    said = Asked(mode="auto")
    if amount is not None:
        said = replace(said, residency=Residency.HOST, amounts=Amounts(amount * MIB))
    loads = [component(asked=said, sequence=0.7, tensor=0.4), load("te", blocks, 20, flops=flops)]
    given = budgets(180, 180, 180, 180)
    found = search(loads, machine(), given)
    named = [search(loads, machine(), given, {"diffusion": mode}) for mode in ("sequence", "tensor")]
    assert found is not None
    assert fits(found, given)
    assert all(other is not None and found.seconds <= SPARED * other.seconds for other in named)

"""What a refusal says: what takes the space, and ways out that the search has tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dovetail.compiler.spec.modes import TOGETHER
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import parse_bytes
from dovetail.passes.fit.lacking import lacking, problem_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import fits, peaks
from dovetail.passes.fit.ways_out import (
    CHUNKS,
    LARGER,
    Outcome,
    Trial,
    WayOut,
    _first,
    best_first,
    line_of,
    refusal,
    said_of,
    ways_out,
)
from dovetail.passes.fit.workload import Asked, Budgets, Load

from .test_search import CPU, FAST, MIB, SLOW, budgets, load, machine, pipeline


def outs(loads: list[Load], given: Budgets, **more: object) -> list[WayOut]:
    assert search(loads, machine(), given) is None
    found = ways_out(loads, machine(), given, **more)  # type: ignore[arg-type]
    for out in found:
        assert fits(out.solution, out.budgets)
        assert search(list(out.loads), machine(), out.budgets) is not None
    return found


def test_a_component_on_a_device_too_small_for_it_is_given_others() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    found = {out.what: out for out in outs(loads, budgets(1000, 100, 1000))}
    assert found["other devices"].solution.ways["diffusion"].devices == (FAST,)
    assert "weights kept elsewhere" not in found, "on the slow device, where it takes ten times as long"


def test_a_component_on_the_only_device_that_does_has_its_weights_rest_elsewhere() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    found = {out.what: out for out in outs(loads, budgets(5, 100, 1000))}
    assert found["weights kept elsewhere"].solution.ways["diffusion"].residency is Residency.HOST
    assert found["weights kept elsewhere"].settings["--params-backend"]
    assert "other devices" not in found, "the host takes ten times as long"


def test_the_devices_that_were_named_are_no_other_devices() -> None:
    """A component that is searched without its devices may end on these, with its weights elsewhere."""
    loads = pipeline(te=Asked((FAST,)), diffusion=Asked((FAST,)), vae=Asked((FAST,)))
    found = ways_out(loads, machine(), budgets(180, 0, 2000))
    assert found[0].what == "weights kept elsewhere"
    assert {way.devices for way in found[0].solution.ways.values()} == {(FAST,)}
    assert "other devices" not in [out.what for out in found]


@pytest.mark.parametrize("given", [budgets(1000, 100, 1000), budgets(5, 100, 1000)])
def test_the_quickest_way_out_comes_first_and_none_takes_many_times_as_long(given: Budgets) -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    placed = [out.seconds for out in outs(loads, given) if not out.packed]
    assert placed == sorted(placed)
    assert max(out.seconds for out in outs(loads, given)) <= 5 * placed[0]


@pytest.mark.parametrize("fits_elsewhere", [True, False])
def test_what_takes_many_times_as_long_is_lowered_only_where_nothing_else_fits(fits_elsewhere: bool) -> None:
    """On the host a picture takes thousands of times as long as with weights that come to the card."""
    speeds = machine().speeds
    crawling = replace(speeds.devices[CPU], flops={"float32": 1e7})
    host = replace(machine(), speeds=replace(speeds, devices={**speeds.devices, CPU: crawling}))
    loads, given = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE)), budgets(5, 100, 1000)
    tried: list[WayOut] = []

    def trial(out: WayOut) -> Outcome | None:
        tried.append(out)
        return Outcome() if fits_elsewhere or CPU in out.solution.ways["diffusion"].devices else None

    assert ways_out(loads, host, given, trial=trial)
    assert any(CPU in one.solution.ways["diffusion"].devices for one in tried) == (not fits_elsewhere)
    assert len({tuple(one.settings.items()) for one in tried}) == len(tried), "what is typed alike is tried once"


def test_what_was_asked_of_others_stays_asked() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE), te=Asked((CPU,)))
    for out in outs(loads, budgets(1000, 100, 1000))[:2]:
        assert out.solution.ways["te"].devices == (CPU,)


def test_a_decoder_that_needs_more_values_than_there_is_decodes_in_tiles() -> None:
    loads = pipeline(vae=Asked((FAST,), tiled=False))
    found = outs(loads, budgets(50, 0, 1000))
    assert "decoding in tiles" in [out.what for out in found]


def test_a_budget_that_was_typed_is_named_and_may_be_raised() -> None:
    given, free = replace(budgets(20, 0, 25), typed="20MiB,cpu=25MiB"), budgets(1000, 0, 1000).devices
    found = outs(pipeline(), given, free=free)[0]
    assert found.what == "a larger budget"
    amounts = dict(item.split("=") for item in found.settings["--max-vram"].split(","))
    for device in (FAST, CPU):
        needed = max(nbytes for (_, one), nbytes in peaks(found.solution, given).items() if one == device)
        assert max(needed, given.of(device)) <= parse_bytes(amounts[device.name]) < free[device]


def test_a_larger_budget_is_named_where_there_are_more_ways_than_are_named() -> None:
    one = outs(pipeline(diffusion=Asked((SLOW,), Residency.DEVICE)), budgets(1000, 100, 1000))[0]
    every = [replace(one, what=what) for what in ("other devices", "weights kept elsewhere", CHUNKS, LARGER, "other")]
    for most, named in ((5, [0, 1, 2, 3, 4]), (4, [0, 1, 2, 3]), (3, [0, 1, 2, 3]), (2, [0, 1, 3]), (1, [0])):
        assert _first(every, most) == [every[index] for index in named]


def test_a_larger_budget_is_searched_with_all_left_open_where_what_was_asked_never_fits() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    found = outs(loads, replace(budgets(1, 1, 1), typed="1MiB,cpu=1MiB"), free=budgets(1000, 100, 1000).devices)
    assert [out.what for out in found] == ["a larger budget"]
    assert found[0].solution.ways["diffusion"].devices == (FAST,)


def test_a_way_out_says_that_it_splits_by_rows_no_more() -> None:
    asked = Asked((FAST, SLOW), Residency.DEVICE, mode="row")
    found = ways_out(pipeline(diffusion=asked), machine(), budgets(50, 50, 1000))
    told = {out.what: said_of(out) for out in found}
    assert "diffusion=row" in told["weights kept elsewhere"]
    assert "not split by rows" not in told["weights kept elsewhere"]
    others = [text for what, text in told.items() if what != "weights kept elsewhere"]
    assert others
    assert all(", and diffusion not split by rows (" in text for text in others)


@pytest.mark.parametrize("mode", TOGETHER)
def test_a_way_out_names_the_mode_under_which_it_splits_no_more(mode: str) -> None:
    asked = Asked((FAST, SLOW), Residency.DEVICE, mode=mode)
    found = ways_out(pipeline(diffusion=asked), machine(), budgets(50, 50, 1000))
    assert any(f", and diffusion not split by {mode} (" in said_of(out) for out in found)
    assert not any("by rows" in said_of(out) for out in found)


def test_a_larger_budget_keeps_the_devices_of_a_row_split_or_says_that_it_is_none() -> None:
    asked, free = Asked((FAST, SLOW), Residency.DEVICE, mode="row"), budgets(250, 100, 1000).devices
    given = replace(budgets(1, 1, 1), typed="1MiB,cpu=1MiB")
    (found,) = [out for out in outs(pipeline(diffusion=asked), given, free=free) if out.what == "a larger budget"]
    is_split = found.settings.get("--split-mode") == "diffusion=row"
    assert is_split == ("diffusion=cuda0&cuda1" in found.settings["--backend"])
    assert is_split != ("diffusion not split by rows" in said_of(found))


def test_where_no_amount_was_found_to_do_a_budget_is_left_out() -> None:
    given = replace(budgets(20, 0, 25), typed="20MiB,cpu=25MiB")
    free = budgets(1000, 0, 1000).devices

    def fits_without(out: WayOut) -> Outcome | None:
        return None if "--max-vram" in out.settings else Outcome()

    found = ways_out(pipeline(), machine(), given, free, trial=fits_without)[0]
    assert found.what == "a larger budget"
    assert "--max-vram" not in found.settings
    assert (line_of(found.settings) or "without --max-vram") in said_of(found)


def test_packed_weights_are_a_way_out_where_placement_is_none() -> None:
    one = load("diffusion", 4, 20, asked=Asked((FAST,), Residency.DEVICE))
    only = replace(one, asked=Asked((FAST,), Residency.DEVICE))
    found = outs([only], Budgets({FAST: 60 * MIB}, CPU), most=9)
    assert "weights of diffusion in Q8_0" in [out.what for out in found]


def test_a_smaller_size_is_tried_last() -> None:
    small = [replace(one, asked=Asked()) for one in [load("vae", 0, 0, live=5)]]
    tried: list[WayOut] = []

    def smaller() -> Iterator[tuple[dict[str, str], list[Load], Trial]]:
        yield {"--size": "768x768"}, [load("vae", 0, 0, live=55)], lambda _: Outcome()
        yield {"--size": "640x640"}, small, lambda _: Outcome({("", FAST): 90 * MIB})
        yield {"--size": "512x512"}, small, lambda out: tried.append(out) or Outcome()

    found = outs([load("vae", 0, 0, live=60)], Budgets({FAST: 50 * MIB}, CPU), smaller=smaller)
    assert [said_of(out) for out in found] == [said_of(out) for out in tried]
    assert said_of(found[0]).startswith('a smaller size (--size "512x512" --backend "cuda0": ')


def test_a_way_out_that_turns_out_to_exceed_a_device_is_searched_again_with_less_of_it() -> None:
    tried: list[WayOut] = []

    def trial(out: WayOut) -> Outcome:
        tried.append(out)
        is_there = out.solution.ways["diffusion"].devices == (CPU,)
        return Outcome({} if is_there else {("", FAST): 10**9, ("diffusion", SLOW): 10**9})

    loads = [replace(one, asked=Asked((SLOW,), Residency.DEVICE)) for one in pipeline() if one.name == "diffusion"]
    found = outs(loads, budgets(1000, 100, 1000), trial=trial)
    assert found
    assert {out.solution.ways["diffusion"].devices for out in found} == {(CPU,)}
    assert len(tried) > len(found)


def test_a_way_out_that_cannot_be_tried_is_not_named() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    assert outs(loads, budgets(1000, 100, 1000), trial=lambda _: None) == []


def test_nothing_is_named_where_nothing_helps() -> None:
    loads, given = pipeline(), budgets(5, 5, 5)
    assert outs(loads, given) == []
    assert "nothing that dovetail can do helps" in refusal("it does not fit", [])


def test_a_refusal_blames_what_takes_the_space_and_knows_the_budget() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    given = replace(budgets(1000, 100, 1000), why={SLOW: "--max-vram cuda1=100MiB"}, typed="cuda1=100MiB")
    lack = lacking(loads, machine(), given)
    assert (lack.component, lack.device, lack.offered) == ("diffusion", SLOW, 100 * MIB)
    assert lack.least == (2 + 200 + 10) * MIB
    said = [said_of(out) for out in ways_out(loads, machine(), given)]
    text = refusal(problem_of(lack, loads, given, {SLOW: 500 * MIB}), said)
    assert "diffusion needs at least 212.0 MiB on cuda1, which has 100.0 MiB of 500.0 MiB (--max-vram" in text
    assert 'other devices (--backend "cuda0" --max-vram "cuda1=100MiB"' in text


def test_components_that_fit_one_by_one_are_blamed_together() -> None:
    loads = [load(name, 2, 20, asked=Asked((FAST,), Residency.DEVICE)) for name in ("te_1", "te_2")]
    given = budgets(60, 0, 1000)
    assert lacking(loads, machine(), given).component == ""
    assert "not together" in problem_of(lacking(loads, machine(), given), loads, given, {})


def test_the_device_of_which_components_lack_least_together_is_named_with_both_numbers() -> None:
    loads = [load(name, 2, 20, asked=Asked((FAST,), Residency.DEVICE)) for name in ("te_1", "te_2")]
    given = budgets(60, 0, 1000)
    lack = lacking(loads, machine(), given)
    assert (lack.component, lack.device, lack.offered) == ("", FAST, 60 * MIB)
    assert search(loads, machine(), replace(given, devices={**given.devices, FAST: lack.least})) is not None
    nearly = {**given.devices, FAST: int(0.9 * lack.least)}
    assert search(loads, machine(), replace(given, devices=nearly)) is None
    problem = problem_of(lack, loads, given, {FAST: 60 * MIB})
    assert f"they need at least {lack.least / MIB:.1f} MiB on cuda0, which has 60.0 MiB" in problem


def test_a_component_is_told_the_device_that_is_too_small_for_it_which_need_not_be_its_first() -> None:
    one = load("diffusion", 4, 20, asked=Asked((FAST, SLOW), Residency.DEVICE, shares=(1.0, 3.0)))
    given = budgets(1000, 30, 1000)
    lack = lacking([one], machine(), given)
    assert (lack.component, lack.device) == ("diffusion", SLOW)
    assert lack.least > lack.offered == 30 * MIB
    assert "diffusion needs at least" in problem_of(lack, [one], given, {})


def test_ways_out_stand_one_a_line_the_best_first_and_none_takes_many_times_as_long() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    found = outs(loads, budgets(1000, 100, 1000))
    quick, slow = replace(found[0], lowered=2.0), replace(found[0], what="a larger budget", lowered=10.1)
    right, chunks = replace(found[0], lowered=9.9), replace(found[0], what="wide parts in chunks", lowered=1.99)
    assert best_first([slow, chunks, right, quick]) == [quick, right, chunks]
    assert best_first([]) == []
    lines = refusal("it does not fit", [said_of(out) for out in found]).splitlines()
    assert lines[:2] == ["it does not fit", "what fits, best first:"]
    assert lines[2:] == [f"  {said_of(out)}" for out in found]


@pytest.mark.parametrize("residency", [Residency.DEVICE, Residency.HOST])
def test_a_refusal_never_says_that_nothing_is_needed(residency: Residency) -> None:
    one = replace(load("te", 12, 10), asked=Asked((FAST, SLOW), residency, (1, 1)))
    given = budgets(100, 5, 1000)  # a block has 10, and does not fit into slots either
    assert search([one], machine(), given) is None
    said = problem_of(lacking([one], machine(), given), [one], given, {})
    assert " 0 B" not in said
    assert "te " in said


@pytest.mark.parametrize("others", [True, False])
def test_what_is_left_to_dovetail_is_named_where_it_is_not_all(others: bool) -> None:
    asked = Asked((SLOW,), Residency.DEVICE)
    loads = [replace(one, asked=asked if others or one.name == "diffusion" else Asked()) for one in pipeline()]
    said = [said_of(out) for out in ways_out(loads, machine(), budgets(150, 150, 2000))]
    start = f"other devices, and weights kept elsewhere{', for diffusion' if others else ''} ("
    assert sum(one.startswith(start) for one in said) == 1, said


def test_a_way_out_that_was_lowered_has_the_seconds_of_its_schedules() -> None:
    loads = pipeline(diffusion=Asked((SLOW,), Residency.DEVICE))
    given = budgets(1000, 100, 1000)
    searched = outs(loads, given)
    lowered = outs(loads, given, trial=lambda out: Outcome(seconds=3 * out.solution.seconds))
    assert searched
    assert [out.seconds for out in lowered] == [3 * out.seconds for out in searched]


def test_packed_weights_are_not_named_where_placing_otherwise_is_as_quick() -> None:
    found = outs(pipeline(diffusion=Asked((SLOW,), Residency.DEVICE)), budgets(1000, 100, 1000), most=9)
    assert found
    assert not any(out.packed for out in found)


def test_a_larger_budget_is_named_in_tiles_where_the_whole_takes_much_more_or_what_there_is_not() -> None:
    whole, tiled = load("vae", 0, 0, live=600), load("vae", 0, 0, live=60)
    given = replace(Budgets({FAST: 50 * MIB}, CPU), typed="50MiB")

    def larger(free: int, whole: Load) -> list[str]:
        found = ways_out([whole], machine(), given, {FAST: free * MIB}, in_tiles=lambda: ([tiled], lambda _: Outcome()))
        return [said_of(out).partition(":")[0] for out in found if "budget" in out.what]

    in_tiles = 'a larger budget, decoding in tiles (--backend "cuda0" --max-vram "cuda0=63.3MiB"'
    assert larger(1000, whole) == larger(100, whole) == [in_tiles]
    assert larger(1000, load("vae", 0, 0, live=70)) == ['a larger budget (--backend "cuda0" --max-vram "cuda0=73.5MiB"']


def test_a_larger_budget_is_not_said_to_be_in_tiles_where_the_whole_fits_within_it_too() -> None:
    others = [load("diffusion", 10, 20, times=20)]
    whole, tiled = ([*others, load("vae", 0, 0, live=live)] for live in (200, 20))
    given = replace(Budgets({FAST: 10 * MIB, CPU: 1000 * MIB}, CPU), typed="cuda0=10MiB")
    asked = [replace(one, asked=Asked((FAST,))) for one in whole]
    in_tiles = [replace(one, asked=Asked((FAST,))) for one in tiled]
    free = {FAST: 1000 * MIB, CPU: 1000 * MIB}
    found = ways_out(asked, machine(), given, free, in_tiles=lambda: (in_tiles, lambda _: Outcome()), most=9)
    (larger,) = [out for out in found if "budget" in out.what]
    assert larger.what == "a larger budget"
    assert larger.budgets.of(FAST) < 300 * MIB
    assert search(larger.loads, machine(), larger.budgets) is not None
    assert max(one.chain.live for one in larger.loads) == 200 * MIB, "whole"


def test_packed_weights_that_are_much_quicker_drop_no_way_out_that_keeps_the_weights() -> None:
    (one, *_) = outs(pipeline(diffusion=Asked((SLOW,), Residency.DEVICE)), budgets(1000, 100, 1000))
    quick = replace(one, what="weights of diffusion in Q4_K", packed=("diffusion",), lowered=one.seconds / 10)
    slow = replace(one, lowered=6 * one.seconds)
    assert best_first([one, slow, quick]) == [one, quick]
    assert best_first([quick]) == [quick]
    assert best_first([]) == []

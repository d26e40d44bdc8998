"""Chunks of wide parts in the search: chosen where they are needed or quicker, and only where they are left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.lacking import lacking
from dovetail.passes.fit.plan import plan_of, settings_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.ways_out import Outcome, said_of, ways_out
from dovetail.passes.fit.workload import Asked, Budgets, Load

from .test_search import CPU, FAST, MIB, found, load, machine

OPEN = Asked(chunks=None)


def wide(asked: Asked = OPEN, slower: float = 1.01) -> Load:
    """10 blocks of 20 MiB, and 80 MiB of values, half of that in two chunks, a quarter in four."""
    chains = {count: load("diffusion", 10, 20, live=80 // count, flops=1e10 * slower).chain for count in (2, 4)}
    return replace(load("diffusion", 10, 20, live=80, times=20, flops=1e10), asked=asked, chunked=chains)


def one_card(nbytes: int, host: int = 1000) -> Budgets:
    return Budgets({FAST: nbytes * MIB, CPU: host * MIB}, CPU)


def chunks(loads: Sequence[Load], given: Budgets) -> int:
    return found(loads, given, machine((FAST, CPU))).ways["diffusion"].chunks


def test_without_need_nothing_is_in_chunks() -> None:
    assert chunks([wide()], one_card(300)) == 1
    assert chunks([wide(slower=1.0)], one_card(300)) == 1
    assert chunks([wide(slower=0.9999)], one_card(300)) == 1


@pytest.mark.parametrize(("room", "expected"), [(262, 2), (242, 2), (230, 4), (222, 4)])
def test_where_weights_would_be_streamed_the_fewest_chunks_are_chosen_with_which_they_stay(
    room: int, expected: int
) -> None:
    assert chunks([wide()], one_card(room)) == expected


def test_chunks_are_chosen_where_a_component_does_not_fit_otherwise() -> None:
    asked = Asked((FAST,), Residency.DEVICE, chunks=None)
    assert chunks([wide(asked)], one_card(225, 0)) == 4
    assert search([wide(asked)], machine((FAST, CPU)), one_card(221, 0)) is None
    assert lacking([wide(asked)], machine((FAST, CPU)), one_card(221, 0)).values == 20 * MIB


def test_streaming_that_costs_nothing_is_taken_before_chunks() -> None:
    way = search([wide(slower=1.0)], machine((FAST, CPU), link=1e15), one_card(200))
    assert way is not None
    assert way.ways["diffusion"].residency is Residency.HOST
    assert way.ways["diffusion"].chunks == 1


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_number_that_was_asked_for_is_kept_to(count: int) -> None:
    assert chunks([wide(Asked(chunks=count))], one_card(1000)) == count
    assert chunks([wide(Asked(chunks=count))], one_card(230)) == count


def test_the_plan_says_in_how_many_chunks_and_its_line_asks_for_them() -> None:
    loads, given = [wide(), load("vae", 0, 0, live=5)], one_card(225)
    solution = search(loads, machine((FAST, CPU)), given)
    assert solution is not None
    assert [one.chunks for one in plan_of(solution, loads, given).components] == [4, 1]
    assert settings_of(solution, loads)["--chunk"] == "diffusion=4"


def test_a_refusal_names_chunks_that_were_not_asked_for_before_other_weights_and_sizes() -> None:
    given = one_card(225, 0)
    loads = [replace(wide(Asked((FAST,), Residency.DEVICE)), in_files=False)]
    assert search(loads, machine((FAST, CPU)), given) is None
    outs = ways_out(loads, machine((FAST, CPU)), given, free={FAST: 1000 * MIB, CPU: 0})
    assert [out.what for out in outs[:2]] == ["wide parts in chunks", "a larger budget"]
    assert '--chunk "diffusion=4"' in said_of(outs[0])
    tried = ways_out(
        loads,
        machine((FAST, CPU)),
        given,
        trial=lambda out: Outcome({("", FAST): 1} if "--chunk" in out.settings else {}),
    )
    assert not any("--chunk" in out.settings for out in tried)


def test_what_fits_otherwise_is_named_before_chunks_and_chunks_that_nothing_needs_are_not() -> None:
    outs = ways_out([wide(Asked((FAST,), Residency.DEVICE))], machine((FAST, CPU)), one_card(225))
    assert "wide parts in chunks" in [out.what for out in outs]
    assert outs[0].what != "wide parts in chunks"
    assert not any(out.solution.ways["diffusion"].chunks > 1 for out in outs if out.what != "wide parts in chunks")

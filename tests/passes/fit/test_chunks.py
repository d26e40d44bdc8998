"""Chunks of wide parts in the search: as many as were asked for, and named in a refusal where nothing else helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.lacking import lacking
from dovetail.passes.fit.plan import settings_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.ways_out import CHUNKS, Outcome, WayOut, said_of, ways_out
from dovetail.passes.fit.workload import Asked, Budgets, Load

from .test_search import CPU, FAST, MIB, found, load, machine


def wide(asked: Asked) -> Load:
    """10 blocks of 20 MiB, and 80 MiB of values, half of that in two chunks, a quarter in four."""
    return load("diffusion", 10, 20, live=80 // asked.chunks, times=20, flops=1e10, asked=asked)


def in_chunks(asked: Asked) -> Iterator[list[Load]]:
    """The same in more and more chunks."""
    return ([replace(wide(replace(asked, chunks=count)), in_files=False)] for count in (2, 4))


def one_card(nbytes: int, host: int = 1000) -> Budgets:
    return Budgets({FAST: nbytes * MIB, CPU: host * MIB}, CPU)


def test_the_line_asks_for_the_chunks_that_were_asked_for() -> None:
    loads, given = [wide(Asked(chunks=4)), load("vae", 0, 0, live=5)], one_card(225)
    assert settings_of(found(loads, given, machine((FAST, CPU))), loads)["--chunk"] == "diffusion=4"


def test_a_refusal_of_chunks_that_were_asked_for_counts_what_is_alive_in_them() -> None:
    asked = Asked((FAST,), Residency.DEVICE, chunks=4)
    assert search([wide(asked)], machine((FAST, CPU)), one_card(221, 0)) is None
    assert lacking([wide(asked)], machine((FAST, CPU)), one_card(221, 0)).values == 20 * MIB


def test_a_refusal_names_the_fewest_chunks_that_fit_before_other_weights_and_sizes() -> None:
    asked = Asked((FAST,), Residency.DEVICE)
    loads = [replace(wide(asked), in_files=False)]

    def outs(nbytes: int, trial: object = None) -> list[WayOut]:
        given, more = one_card(nbytes, 0), {"trial": trial} if trial else {}
        assert search(loads, machine((FAST, CPU)), given) is None
        free = {FAST: 1000 * MIB, CPU: 0}
        return ways_out(loads, machine((FAST, CPU)), given, free, chunked=lambda: in_chunks(asked), **more)  # type: ignore[arg-type]

    assert [out.what for out in outs(225)[:2]] == [CHUNKS, "a larger budget"]
    assert '--chunk "diffusion=4"' in said_of(outs(225)[0])
    assert '--chunk "diffusion=2"' in said_of(outs(245)[0])
    tried = outs(225, lambda out: Outcome({("", FAST): 1} if "--chunk" in out.settings else {}))
    assert not any("--chunk" in out.settings for out in tried)


def test_where_weights_alone_do_not_fit_no_chunks_are_looked_at() -> None:
    def looked_at() -> Iterator[list[Load]]:
        raise AssertionError("chains in chunks take seconds")
        yield

    asked = Asked((FAST,), Residency.DEVICE)
    outs = ways_out([wide(asked)], machine((FAST, CPU)), one_card(150), chunked=looked_at)
    assert outs
    assert all(out.what != CHUNKS for out in outs)


def test_what_fits_otherwise_is_named_before_chunks() -> None:
    asked = Asked((FAST,), Residency.DEVICE)
    outs = ways_out([wide(asked)], machine((FAST, CPU)), one_card(225), chunked=lambda: in_chunks(asked))
    assert CHUNKS in [out.what for out in outs]
    assert outs[0].what != CHUNKS

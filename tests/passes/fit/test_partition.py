"""The partition of a chain over devices equals what trying everything finds."""

from __future__ import annotations

import itertools
import random

import pytest

from dovetail.compiler.spec.residency import Residency
from dovetail.passes.fit.partition import Piece, Problem, Room, Split, partition

PLACES = (Residency.HOST, Residency.DISK)


@pytest.mark.fifth
def test_500_random_chains_are_partitioned_as_trying_everything_does() -> None:
    found = [check(random.Random(seed)) for seed in range(500)]
    assert 50 < found.count(None) < 450, "chains that fit and chains that do not"


def check(rng: random.Random) -> Split | None:
    problem = random_problem(rng)
    found, best = partition(problem), best_of_all(problem)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.seconds == pytest.approx(best)
        assert evaluate(problem, found.ranges, found.residency) == pytest.approx(best)
    return found


def random_problem(rng: random.Random) -> Problem:
    count, rooms = rng.randint(0, 5), rng.randint(1, 3)
    sizes = [rng.randint(1, 30) for _ in range(rng.randint(1, 3))]
    pieces = []
    for _ in range(count):
        nbytes = rng.choice(sizes)
        pieces.append(Piece(nbytes, rng.randint(1, nbytes), rng.randint(0, 10), rng.randint(0, 20)))
    places = rng.choice([(), PLACES[:1], PLACES[1:], PLACES])
    rest = Piece(rng.randint(0, 10), 0, rng.randint(0, 10), rng.randint(0, 10))
    return Problem(pieces, [random_room(rng, count, places) for _ in range(rooms)], rest,
                   {pair: rng.random() / 5 for pair in itertools.product(range(rooms), repeat=2)},
                   host=rng.choice([0, 10, 40, 200]), slots=rng.randint(1, 3),
                   latency=rng.random(), exposed=rng.choice([0.0, 0.1]))  # fmt: skip


def random_room(rng: random.Random, count: int, places: tuple[Residency, ...]) -> Room:
    loads = {place: rng.random() / 3 * (3 if place is Residency.DISK else 1) for place in places}
    return Room(rng.randint(10, 80), [rng.random() * 3 for _ in range(count)], rng.random(), loads)


def best_of_all(problem: Problem) -> float | None:
    count, rooms = len(problem.pieces), len(problem.rooms)
    found = []
    for ends in itertools.combinations_with_replacement(range(count + 1), rooms - 1):
        edges = (0, *ends, count)
        ranges = tuple(itertools.pairwise(edges))
        for residency in itertools.product((Residency.DEVICE, *PLACES), repeat=count):
            seconds = evaluate(problem, ranges, residency)
            if seconds is not None:
                found.append(seconds)
    return min(found, default=None)


def evaluate(problem: Problem, ranges: tuple[tuple[int, int], ...], residency: tuple[Residency, ...]) -> float | None:
    """The seconds of a split as the docstring of the module has them; None where it does not fit."""
    seconds, host, at = problem.rooms[0].rest, 0, 0
    for index, (start, end) in enumerate(ranges):
        room, mine = problem.rooms[index], list(zip(problem.pieces, residency, strict=True))[start:end]
        resident = sum(piece.nbytes for piece, where in mine if where is Residency.DEVICE)
        streamed = [(piece, where) for piece, where in mine if where is not Residency.DEVICE]
        live = [piece.live for piece, _ in mine]
        rest = problem.rest.nbytes if index == 0 else 0
        live += [problem.rest.live] if index == 0 else []
        slots = problem.slots * max((piece.largest for piece, _ in streamed), default=0)
        if rest + resident + slots + max(live, default=0) > room.budget or any(
            w not in room.loads for _, w in streamed
        ):
            return None
        loading = sum(piece.nbytes * room.loads[where] for piece, where in streamed)
        host += sum(piece.nbytes for piece, where in streamed if where is Residency.HOST)
        computing = sum(room.seconds[start:end])
        seconds += max(computing, loading) + problem.exposed * min(computing, loading)
        if end > start and index != at:
            nbytes = problem.pieces[start - 1].boundary if start else problem.rest.boundary
            seconds += problem.latency + nbytes * problem.crossings[at, index]
        at = index if end > start else at
    if at:
        seconds += problem.latency + problem.pieces[-1].boundary * problem.crossings[at, 0]
    return seconds if host <= problem.host else None


def equal(count: int, rooms: int, budget: int, **more: object) -> Problem:
    pieces = [Piece(10, 10, 1, 0)] * count
    loads = {Residency.HOST: 0.01}
    return Problem(pieces, [Room(budget, [1.0] * count, 0.0, loads)] * rooms, Piece(0, 0, 0),
                   dict.fromkeys(itertools.product(range(rooms), repeat=2), 0.0), **more)  # type: ignore[arg-type]  # fmt: skip


def test_what_fits_on_the_first_device_stays_there() -> None:
    problem = equal(4, 2, 41, host=100)
    split = partition(Problem(problem.pieces, problem.rooms, problem.rest, {(0, 1): 1.0, (1, 0): 1.0}))
    assert split is not None
    assert split.ranges == ((0, 4), (0, 0))


def test_streaming_that_computing_hides_costs_no_time() -> None:
    split = partition(equal(8, 1, 41, host=100))
    assert split is not None
    assert split.seconds == 8
    assert split.residency.count(Residency.HOST) == 6


def test_the_host_gets_no_more_than_it_has() -> None:
    assert partition(equal(8, 1, 41, host=59)) is None
    assert partition(equal(8, 1, 41, host=60)) is not None


def test_a_chain_of_57_blocks_over_four_devices_is_quick() -> None:
    split = partition(equal(57, 4, 80, host=1000))
    assert split is not None
    assert split.seconds == 57

"""In how many chunks components are computed on devices that are settled: where it helps, and no more."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dovetail.compiler.spec import parse_chunks
from dovetail.conventions.request import Request
from dovetail.fitting.asked import in_chunks
from dovetail.fitting.chunked import Lowered, least_chunks

CHOICES = {"transformer": (2, 4, 8), "text_encoder": (2, 4)}


def found(needs: Mapping[str, int], fits: bool = True, streams: bool = True, gain: float = 1.0) -> Mapping[str, int]:
    """With components that are a second quicker, or fit, in so many chunks; each chunk more costs a millisecond."""

    def lowered(counts: Mapping[str, int]) -> Lowered | None:
        lacking = [name for name, count in needs.items() if counts.get(name, 1) < count]
        seconds = 10 + gain * len(lacking) + 0.001 * sum(counts.values())
        return Lowered(seconds, streams) if fits or not lacking else None

    return least_chunks(lowered, lambda: CHOICES)


def test_without_need_nothing_is_in_chunks_and_nothing_else_is_lowered() -> None:
    tried: list[Mapping[str, int]] = []

    def lowered(counts: Mapping[str, int]) -> Lowered:
        tried.append(counts)
        return Lowered(1.0, False)

    assert least_chunks(lowered, lambda: CHOICES) == {}
    assert tried == [{}]


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({}, {}),
        ({"transformer": 2}, {"transformer": 2}),
        ({"transformer": 3}, {"transformer": 4}),
        ({"transformer": 8, "text_encoder": 2}, {"transformer": 8, "text_encoder": 2}),
        ({"text_encoder": 4}, {"text_encoder": 4}),
    ],
)
def test_each_component_gets_the_fewest_chunks_that_help(
    needs: Mapping[str, int], expected: Mapping[str, int], fits: bool
) -> None:
    assert found(needs, fits) == expected


def test_what_helps_by_next_to_nothing_is_not_done() -> None:
    assert found({"transformer": 2}, gain=0.001) == {}


def test_where_nothing_fits_nothing_is_chosen() -> None:
    assert found({"vae": 2}, fits=False) == {}


def test_chunks_found_of_a_component_named_as_a_role_are_those_of_no_other_of_that_role() -> None:
    roles = {"vae": "vae", "audio_vae": "vae", "transformer": "diffusion"}
    request = in_chunks(Request.parse(chunk="auto", components=roles, rig="cpu=1GiB"), {"vae": 4}, roles)
    assert {name: request.chunks_for(name, role) for name, role in roles.items()} == {
        "vae": 4,
        "audio_vae": 1,
        "transformer": 1,
    }
    again = parse_chunks(str(request.chunks), roles)
    assert [again.chunks_for(name, role) for name, role in roles.items()] == [4, 1, 1]

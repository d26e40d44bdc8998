"""The words of the table that a plan is printed as."""

import pytest

from dovetail.planning.table import _blocks


@pytest.mark.parametrize(
    ("here", "told"),
    [([], []), ([0], ["block 1 of 4"]), ([0, 1], ["blocks 1-2 of 4"]), ([1, 2, 3], ["blocks 2-4 of 4"])],
)
def test_blocks_are_counted_from_one_and_one_block_is_no_range(here: list[int], told: list[str]) -> None:
    assert _blocks(here, 4) == told

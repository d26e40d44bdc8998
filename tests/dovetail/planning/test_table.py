"""The words of the table that a plan is printed as."""

import pytest

from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account, _blocks
from testbed.pipelines import tiny_pipelines


@pytest.mark.parametrize(
    ("here", "told"),
    [([], []), ([0], ["block 1 of 4"]), ([0, 1], ["blocks 1-2 of 4"]), ([1, 2, 3], ["blocks 2-4 of 4"])],
)
def test_blocks_are_counted_from_one_and_one_block_is_no_range(here: list[int], told: list[str]) -> None:
    assert _blocks(here, 4) == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "sim0&sim1"}, []),
        ({"backend": "sim0&sim1", "max_vram": "sim0=1"}, ["sim0: 3.0 GiB of it"]),
        ({"backend": "mps", "rig": "mps=16GiB@Apple M3,cpu=16GiB"}, []),
    ],
)
def test_what_is_neither_reserved_nor_to_be_used_of_a_device_is_said(options: dict[str, str], told: list[str]) -> None:
    pipe, call = tiny_pipelines.flux()
    dry = DryPipeline(pipe, {"rig": "sim0=4GiB,sim1=4GiB,cpu=4GiB", **options})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    assert [line.partition(" are in use")[0] for line in account.remarks() if "kept back" in line] == told

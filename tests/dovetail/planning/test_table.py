"""The words of the table that a plan is printed as."""

from dataclasses import replace

import pytest

from dovetail.compiler.units import format_bytes
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.generation import Generation, told_apart
from dovetail.planning.table import Account, _blocks
from testbed.pipelines import tiny_pipelines


@pytest.mark.parametrize(
    ("here", "told"),
    [([], []), ([0], ["block 1 of 4"]), ([0, 1], ["blocks 1-2 of 4"]), ([1, 2, 3], ["blocks 2-4 of 4"])],
)
def test_blocks_are_counted_from_one_and_one_block_is_no_range(here: list[int], told: list[str]) -> None:
    assert _blocks(here, 4) == told


def test_programs_of_one_component_are_told_apart() -> None:
    names = ["vae.decode", "transformer", "transformer.2", "layers.2", "transformer.3"]
    assert told_apart(names) == [
        "vae.decode", "transformer (program 1 of 3)", "transformer (program 2 of 3)", "layers.2",
        "transformer (program 3 of 3)",
    ]  # fmt: skip


@pytest.mark.fifth
def test_a_component_that_is_called_in_two_ways_stands_twice_in_the_table() -> None:
    pipe, call = tiny_pipelines.flux()
    dry = DryPipeline(pipe, {"rig": "sim0=4GiB,cpu=4GiB", "backend": "sim0"})
    one, two = dry.account(dry(**call)), dry.account(dry(**{**call, "height": 64, "width": 32}))
    assert isinstance(one, Account)
    assert isinstance(two, Account)
    calls = (*one.generation.calls, *(call for call in two.generation.calls if call.component == "transformer"))
    both = replace(one, generation=Generation(calls, one.generation._rigs, one.generation.rig))
    assert [row[0] for row in both.rows() if "transformer" in row[0]] == [
        "transformer (program 1 of 2)",
        "transformer (program 2 of 2)",
    ]


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "sim0&sim1"}, []),
        ({"backend": "sim0&sim1", "max_vram": "sim0=1"}, ["3.0 GiB of sim0 are in use, or kept back by a budget"]),
        (
            {"backend": "cuda0", "rig": "cuda0=24GiB,cpu=8GiB", "max_vram": "cuda0=1"},
            ["21.2 GiB of cuda0 are kept back by a budget"],
        ),
        ({"backend": "mps", "rig": "mps=16GiB@Apple M3,cpu=16GiB"}, []),
    ],
)
def test_what_is_neither_reserved_nor_to_be_used_of_a_device_is_said(options: dict[str, str], told: list[str]) -> None:
    pipe, call = tiny_pipelines.flux()
    dry = DryPipeline(pipe, {"rig": "sim0=4GiB,sim1=4GiB,cpu=4GiB", **options})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    assert [line for line in account.remarks() if "kept back" in line] == told


@pytest.mark.fifth
def test_weights_that_rest_in_two_places_are_told_with_the_bytes_of_both() -> None:
    pipe, call = tiny_pipelines.flux()
    places = "diffusion=device:64KiB&cpu,te=cpu"
    dry = DryPipeline(pipe, {"rig": "sim0=4GiB,cpu=4GiB", "backend": "sim0", "params_backend": places})
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    rests = {part.title: {place.value: n for place, n in part.rows[0].rests.items()} for part in account.shown}
    stays, comes = rests["transformer"]["device"], rests["transformer"]["cpu"]
    assert stays + comes == sum(weight.nbytes for weight in pipe.transformer.parameters())
    assert 0 < stays <= 64 * 2**10 < comes
    assert rests["text_encoder"].keys() == {"cpu"}
    assert rests["vae"] == {}
    kept = {row[0]: row[6] for row in account.rows()}
    expected = f"{format_bytes(stays)} sim0 + {format_bytes(comes)} RAM"
    assert (kept["transformer"], kept["text_encoder"], kept["vae"]) == (expected, "RAM", "sim0")

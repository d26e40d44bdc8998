from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cli.options.shared import Where
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import UsageError
from dovetail.jobs.replicas.sharing import left_out, names_of, shares

PARTS = {"text_encoder": "te", "transformer": "diffusion", "vae": "vae"}
FOUR = "cuda0=24GiB,cuda1=24GiB,cuda2=24GiB,cuda3=24GiB,cpu=64GiB"


def placed(where: Where) -> dict[str, tuple[str, ...]]:
    request = where.check(PARTS)
    return {name: tuple(map(str, request.devices_for(name, role))) for name, role in PARTS.items()}


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_each_replica_has_as_many_devices_of_a_list_as_the_others_and_none_of_theirs(
    count: int, size: int, more: int
) -> None:
    number = count * size + min(more, count - 1)
    where = Where(backend="+".join(f"sim{index}" for index in range(number)))
    each = shares(where, PARTS, count)
    groups = [placed(one)["transformer"] for one in each]
    assert groups == [tuple(f"sim{size * index + one}" for one in range(size)) for index in range(count)]
    assert [str(one) for one in left_out(where, PARTS, each)] == [f"sim{one}" for one in range(count * size, number)]


def test_cards_that_nobody_names_are_shared_out_with_the_memory_of_the_host() -> None:
    each = shares(Where(rig=FOUR), PARTS, 2)
    assert [list(map(str, Rig.parse(one.rig))) for one in each] == [
        ["cuda0", "cuda1", "cpu"],
        ["cuda2", "cuda3", "cpu"],
    ]
    hosts = [Rig.parse(one.rig)[Rig().host] for one in each]
    assert {(one.free, one.total) for one in hosts} == {(32 * 2**30, 64 * 2**30)}
    assert names_of(each) == ["replica 1 on cuda0 & cuda1", "replica 2 on cuda2 & cuda3"]


def test_lists_of_components_are_cut_each_for_itself_and_the_host_is_for_all() -> None:
    each = shares(Where(rig=FOUR, backend="te=cuda0&cuda1,diffusion=cuda2&cuda3&cpu,vae=cpu"), PARTS, 2)
    assert [placed(one) for one in each] == [
        {"text_encoder": (f"cuda{index}",), "transformer": (f"cuda{index + 2}", "cpu"), "vae": ("cpu",)}
        for index in range(2)
    ]


def test_words_that_choose_choose_within_each_part() -> None:
    each = shares(Where(rig=FOUR, backend="gpu", clip_on_cpu=True), PARTS, 4)
    assert [placed(one)["transformer"] for one in each] == [(f"cuda{index}",) for index in range(4)]
    assert {placed(one)["text_encoder"] for one in each} == {("cpu",)}
    assert [placed(one)["vae"] for one in shares(Where(rig=FOUR, auto_fit=False), PARTS, 2)] == [("cuda0",), ("cuda2",)]


def test_budgets_go_with_their_devices() -> None:
    each = shares(Where(rig=FOUR, max_vram="8,cuda1=6GiB,1=6GiB"), PARTS, 4)
    assert [one.max_vram for one in each] == ["8GiB", "8GiB,cuda1=6GiB", "8GiB", "8GiB"]


def test_on_the_host_alone_all_of_them_have_it() -> None:
    each = shares(Where(rig="cpu=64GiB"), PARTS, 3)
    assert names_of(each) == [f"replica {number} on cpu" for number in (1, 2, 3)]


@pytest.mark.parametrize(("where", "why"), [
    (Where(backend="sim0+sim1"), r"3 replicas need a device each, and there are 2 \(sim0 & sim1\)"),
    (Where(backend="sim0"), r"3 replicas need a device each, and there is 1 \(sim0\)"),
    (Where(rig="cuda0=8GiB,cuda1=8GiB"), r"there are 2 \(cuda0 & cuda1\)"),
    (Where(rig=FOUR, backend="te=cuda0&cuda1&cuda2,diffusion=cuda1&cuda2&cuda0"), "would be in two replicas"),
])  # fmt: skip
def test_too_few_devices_and_those_of_two_replicas_are_refused(where: Where, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        shares(where, PARTS, 3)

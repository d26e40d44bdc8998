"""What makes a plan slow is said first, with the seconds as they are and as one option would have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import Speed, Speeds
from dovetail.explain.sentences import explain_plan
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.planning.table import Account
from testbed.pipelines import tiny_pipelines

CUDA, CPU = Device("cuda"), Device("cpu")
OLD = Speed({"float32": 1e7, "float16": 1e8}, 1e12, 1e9, 0.0, "an old card", spread=0.25)
NEW = replace(OLD, flops={"float32": 1e7, "float16": 1e8, "bfloat16": 1e8}, label="a new card")
HOST = Speed({"float32": 1e5}, 1e12, 1e9, 0.0, "the host")


def planned(request: dict[str, Any], dtype: torch.dtype, made: Any = tiny_pipelines.flux) -> Account:
    pipe, call = made()
    dry = DryPipeline(pipe.to(dtype), request)
    account = dry.account(dry(**call))
    assert isinstance(account, Account)
    return account


def with_speeds(account: Account, card: Speed, host: Speed = HOST) -> Account:
    return replace(account, speeds=Speeds({CUDA: card, CPU: host}))


@pytest.fixture(scope="module")
def half() -> Account:
    return planned({"backend": "cuda0", "rig": "cuda0=1GiB@RTX 2080 Ti,cpu=4GiB"}, torch.bfloat16)


@pytest.mark.fifth
def test_bfloat16_on_a_card_without_it_is_warned_of_with_both_times(half: Account) -> None:
    (told,) = with_speeds(half, OLD).warnings
    assert told.startswith("cuda0 (an old card): no units for bfloat16, which is computed as float32 there: ")
    assert "in float16 (--dtype float16) " in told
    assert told.count("–") == 2, "both times are ranges"


@pytest.mark.fifth
def test_a_warning_stands_first_in_text_sentences_and_json(half: Account) -> None:
    account = with_speeds(half, OLD)
    (told,) = account.warnings
    assert account.remarks()[0] == f"warning: {told}"
    assert next(iter(explain_plan(account))) == f"Warning: {told}."
    assert account.document()["warnings"] == [told]


@pytest.mark.fifth
def test_a_card_with_bfloat16_or_a_pipeline_without_is_not_warned_of(half: Account) -> None:
    assert not with_speeds(half, NEW).warnings
    single = planned({"backend": "cuda0", "rig": "cuda0=1GiB,cpu=4GiB"}, torch.float32)
    assert not with_speeds(single, OLD).warnings


@pytest.fixture(scope="module")
def rows() -> Account:
    request = {"backend": "cuda0,diffusion=cuda0&cpu", "split_mode": "diffusion=row", "rig": "cuda0=1GiB,cpu=4GiB"}
    return planned(request, torch.float32, tiny_pipelines.wide_flux)


def test_rows_on_a_slow_host_are_warned_of_with_both_times(rows: Account) -> None:
    assert any(part.call.program.is_sliced for part in rows.parts)
    (told,) = with_speeds(rows, NEW).warnings
    assert told.startswith("the rows of transformer on cpu are computed there, which the other devices wait for: ")
    assert "leave cpu out of --backend" in told


def test_rows_on_a_host_that_is_as_fast_are_not_warned_of(rows: Account) -> None:
    assert not with_speeds(rows, NEW, replace(NEW, label="a fast host")).warnings


def test_what_was_not_measured_is_a_range_in_text_and_three_numbers_in_json(half: Account) -> None:
    account = with_speeds(half, NEW)
    document = account.document()
    low, middle, high = (document[name] for name in ("seconds_low", "seconds", "seconds_high"))
    assert low == pytest.approx(0.75 * middle, abs=1e-3)  # type: ignore[operator]
    assert high == pytest.approx(1.25 * middle, abs=1e-3)  # type: ignore[operator]
    assert "–" in account.remarks()[0]
    assert sum("–" in row[-1] for row in account.rows()) == len(account.parts)


def test_what_was_measured_is_a_number(half: Account) -> None:
    account = with_speeds(half, replace(NEW, spread=0.0))
    assert account.spread == 0
    assert "–" not in account.remarks()[0]
    assert account.document()["seconds_low"] == account.document()["seconds_high"]

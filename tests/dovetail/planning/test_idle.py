"""Devices that get nothing are told of once for each pipeline."""

from __future__ import annotations

import logging

import pytest

from dovetail.planning.idle import tell_of_idle


def test_what_was_told_of_one_pipeline_is_told_of_another_too_and_of_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = set[str](), set[str]()
    with caplog.at_level(logging.WARNING):
        for told in (first, first, second):
            tell_of_idle(["sim1 gets nothing of vae", "sim2 gets nothing of unet"], told)
    assert len(caplog.records) == 4

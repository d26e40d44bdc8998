"""What libraries say while we import them."""

import logging
import os
import subprocess
import sys

import pytest

from dovetail.conventions.quiet_imports import NOTICES, without_notices

NOTICE = "a notice that {} of something"


@pytest.mark.parametrize("name", NOTICES)
def test_a_notice_is_kept_back_meanwhile_and_nothing_else(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logger, notice = logging.getLogger(name), NOTICE.format(NOTICES[name])
    filters = list(logger.filters)
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, name):
            with without_notices(), without_notices():
                logger.warning(notice)
                logger.warning("something else")
            logger.warning(notice)
    finally:
        logger.removeHandler(caplog.handler)
    assert list(dict.fromkeys(one.getMessage() for one in caplog.records)) == ["something else", notice]
    assert logger.filters == filters


@pytest.mark.slow
def test_a_command_prints_nothing_of_other_libraries() -> None:
    pytest.importorskip("torchao")
    command = [sys.executable, "-m", "dovetail", "plan", "--rig", "sim0=1GiB,cpu=8GiB", "--backend", "sim0", "--json"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    said = [line for line in done.stderr.splitlines() if "so far" not in line]
    assert said == []

"""What libraries say while we import them."""

import logging

import pytest

from dovetail.conventions.quiet_imports import _SOURCE, without_notices

NOTICE = "`CLIPImageProcessor` requires torchvision (not installed); falling back to `CLIPImageProcessorPil`"


def test_a_notice_of_torchvision_is_kept_back_meanwhile_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(_SOURCE)
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, _SOURCE):
            with without_notices(), without_notices():
                logger.warning(NOTICE)
                logger.warning("something else")
            logger.warning(NOTICE)
    finally:
        logger.removeHandler(caplog.handler)
    assert list(dict.fromkeys(one.getMessage() for one in caplog.records)) == ["something else", NOTICE]
    assert logger.filters == []

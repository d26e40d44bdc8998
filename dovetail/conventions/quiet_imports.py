"""Imports of diffusers' and transformers' classes without what they say of packages that nobody needs here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_SOURCE = "transformers.utils.import_utils"
_WORDS = "requires torchvision (not installed)"


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Keeps back that a class takes PIL in place of torchvision, which changes nothing here, and says all else.

    It holds meanwhile and no longer: what a user imports later is told as ever.
    """

    def is_told(record: logging.LogRecord) -> bool:
        return _WORDS not in record.getMessage()

    logger = logging.getLogger(_SOURCE)
    logger.addFilter(is_told)
    try:
        yield
    finally:
        logger.removeFilter(is_told)

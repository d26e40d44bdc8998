"""Imports of diffusers' and transformers' classes without what libraries say of packages that nobody needs here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

NOTICES = {
    "transformers.utils.import_utils": "requires torchvision (not installed)",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
    "torchao": "Failed to load ",  # kernels that were built for other releases of Python or CUDA
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward",  # it has a kernel of its own
    "torch.utils._pytree": "is an Enum subclass and is now natively supported",
}
"""Words of a record, by its logger, of which nothing here depends."""


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Keeps these records back, and lets all others pass.

    It holds meanwhile and no longer: what a user imports later is told as ever.
    """

    def is_told(record: logging.LogRecord) -> bool:
        return NOTICES[record.name] not in record.getMessage()

    loggers = list(map(logging.getLogger, NOTICES))
    for logger in loggers:
        logger.addFilter(is_told)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_told)

"""How each of several replicas of a pipeline is opened: on its part of the devices, with its part of the threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cli.options.subject import located
from ..runner import Opening
from .automatic import automatic
from .sharing import left_out, names_of, shares

logger = logging.getLogger(__name__)


def openings(opening: Opening, count: int | None, given: Mapping[str, Any]) -> dict[str, Opening]:
    """How each replica is opened, by what it is called.

    Args:
        opening: how the pipeline is opened, on all devices.
        count: how many replicas there are to be; None for as many as cards hold whole copies.
        given: the arguments of the largest call, for which it is planned how many that are.

    Raises UsageError where there are not as many devices, and DoesNotFitError where a copy is to be planned and finds
    no room.
    """
    import torch

    pipeline = opening.pipeline()
    located(pipeline)  # what is on the Hub is downloaded once, and not by each
    each = automatic(opening, given) if count is None else shares(opening.where, pipeline.components, count)
    unused = left_out(opening.where, pipeline.components, each)
    if unused:
        names = ", ".join(map(str, unused))
        logger.warning("%s %s used by no replica: all of them have as many", names, "is" if len(unused) == 1 else "are")
    threads = opening.threads or max(1, torch.get_num_threads() // len(each))
    made = (replace(opening, where=one, threads=threads) for one in each)
    return dict(zip(names_of(each), made, strict=True))

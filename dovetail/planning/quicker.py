"""Decoding in tiles where the whole fits on the host alone, and a picture is much quicker in tiles.

A decoder whose values are too large for every GPU is placed on the host by the search, which takes its time. Tiles
change a picture slightly, so they are taken only where they save much of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..fitting.chains import joined_chain
from ..fitting.decide import Decision, TracedCall, first_device
from ..passes.fit.search import search
from .tiling import Tile

logger = logging.getLogger(__name__)

WORTH = 0.8
"""The part of a picture's seconds that is left at most where tiles are taken."""


TILES = 4
"""So many sizes of tiles are tried, the largest first; small ones take long."""


@dataclass(frozen=True)
class InTiles:
    """What an attempt finds whose picture is much quicker in tiles.

    ``tiles`` are those by component, ``size`` is their number among the sizes, ``seconds`` a picture may take then.
    """

    tiles: Mapping[str, Tile]
    size: int
    seconds: float


@dataclass(frozen=True)
class NotQuicker:
    """What an attempt in tiles finds that may fit and is not quicker; weights are not tried elsewhere for it."""


def slow_on_the_host(decision: Decision, role: str) -> list[str]:
    """The components of a role that a search has placed on the host, though it had other devices for them.

    None where they take too small a part of a picture's seconds for tiles to save much of it.
    """
    host, ways = decision.machine.host, decision.solution.ways
    mine = [load.name for load in decision.loads if load.role == role and not load.asked.devices]
    placed = [name for name in mine if host in ways[name].devices] if len(decision.machine.devices) > 1 else []
    return placed if sum(ways[name].seconds for name in placed) > (1 - WORTH) * decision.solution.seconds else []


def is_quicker(decision: Decision, names: Iterable[str], calls: Sequence[TracedCall]) -> bool:
    """Whether a picture is much quicker where the search must have components be called so, in tiles."""
    tiled = {name: [(call.program, call.times) for call in calls if call.component == name] for name in names}
    if not all(tiled.values()):  # a dry run that ended before they were called
        return False
    on = {load.name: first_device(load.asked, decision.machine.devices) for load in decision.loads}
    tiles = {name: joined_chain(of, device=on[name]) for name, of in tiled.items()}
    loads = [
        replace(load, tiles=tiles[load.name], asked=replace(load.asked, tiled=True)) if load.name in tiles else load
        for load in decision.loads
    ]
    found = search(loads, decision.machine, decision.granted)
    return found is not None and found.seconds <= WORTH * decision.solution.seconds


def tell_of_quicker(pipe: str, tiles: Mapping[str, Tile]) -> None:
    """Says that a picture is decoded in tiles, and why."""
    logger.warning(
        "%s decodes in tiles (%s), which changes the picture slightly: no GPU has room for the whole, and a picture "
        "takes much longer where it is decoded on the host; vae_tiling off (--vae-tiling off) does so",
        pipe, ", ".join(f"{name}: {tile}" for name, tile in tiles.items()),
    )  # fmt: skip

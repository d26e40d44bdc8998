"""The tiles of a pipeline's VAEs: those that were asked for, and those that a plan takes where a whole does not fit."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from ..compiler.errors import DoesNotFitError
from ..components.dry import DryCall
from .tiling import AUTO, OFF, Asked, Tile, can_be_tiled, candidates, put_settings, settings, tile_of, tile_vae

logger = logging.getLogger(__name__)

_VAE, _DECODE = "vae", "_decode"


class HasComponents(Protocol):
    """Something with components, each with its module."""

    @property
    def components(self) -> Mapping[str, Any]:
        """The components by name."""


class Tiles:
    """The tiles of the VAEs of one pipeline.

    What was asked for holds from the beginning until `undo`. What a plan takes holds from `put` to `put_back`.

    Args:
        modules: the modules of the pipeline by name.
        roles: what each is for.
        asked: what a person asked for.
    """

    def __init__(self, modules: Mapping[str, nn.Module], roles: Mapping[str, str], asked: Asked) -> None:
        self.asked = asked
        self.now: Mapping[str, Tile] = {}
        """The tiles that a plan has put."""
        self._names: list[str] = []
        self._own: list[tuple[nn.Module, dict[str, Any]]] = []
        self._before: dict[str, tuple[weakref.ref[nn.Module], dict[str, Any]]] = {}
        self._by_hand: dict[str, Tile] = {}
        for name, module in modules.items():
            self.add(name, module, roles[name])

    def add(self, name: str, module: nn.Module, role: str) -> None:
        """Takes in a module of the pipeline, and gives it the tiles that were asked for if it is a VAE."""
        if role != _VAE or not hasattr(module, "enable_tiling"):
            return
        if can_be_tiled(module):
            self._names.append(name)
        if self.asked == AUTO:
            return
        self._before[name] = weakref.ref(module), settings(module)
        tile_vae(module, self.asked)
        if self.asked != OFF and name in self._names:
            self._by_hand[name] = tile_of(module)
            _tell_of_larger(name, self.asked, self._by_hand[name])

    def remove(self, name: str) -> None:
        """Gives a module of the pipeline the tiles that it had before `add`, and forgets it."""
        self.put_back()
        self._give_back(name)
        self._by_hand.pop(name, None)
        self._names = [one for one in self._names if one != name]

    @property
    def all(self) -> dict[str, Tile]:
        """The tiles in which VAEs work now, whoever chose them."""
        return {**self._by_hand, **self.now}

    def undo(self) -> None:
        """Gives the VAEs the tiles that they had at the beginning."""
        self.put_back()
        for name in list(self._before):
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        reference, before = self._before.pop(name, (None, {}))
        module = reference() if reference else None
        if module is not None:
            put_settings(module, before)

    @contextlib.contextmanager
    def within(self, handle: HasComponents, tiles: Mapping[str, Tile]) -> Iterator[None]:
        """Has VAEs work in tiles, by name, or whole meanwhile, and then as before."""
        before = self.now
        self.put(handle, tiles)
        try:
            yield
        finally:
            self.put(handle, before)

    def put(self, handle: HasComponents, tiles: Mapping[str, Tile]) -> None:
        """Has VAEs work in tiles, by name, until `put_back`."""
        self.put_back()
        for name, tile in tiles.items():
            module = handle.components[name].module
            self._own.append((module, settings(module)))
            tile_vae(module, tile)
        self.now = dict(tiles)

    def put_back(self) -> None:
        """Gives VAEs the tiles that they had before `put`."""
        for module, before in self._own:
            put_settings(module, before)
        self._own, self.now = [], {}

    def found(
        self,
        handle: HasComponents,
        calls: Iterable[DryCall],
        fits: Callable[[Mapping[str, Tile]], bool],
        asked: Asked | None = None,
    ) -> dict[str, Tile]:
        """The largest tiles of VAEs that fit, or none where tiles are not allowed or do not help.

        Args:
            handle: the pipeline.
            calls: the calls of a dry run, in which VAEs decode whole.
            fits: plans with tiles, and keeps nothing; says whether they fit.
            asked: in the place of what was asked for.
        """
        steps = self.steps(handle, calls) if (asked or self.asked) == AUTO else []
        if not steps or not fits(steps[-1]):
            return {}
        low, high = 0, len(steps) - 1  # the last fits; the first that does is searched
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(steps[middle]) else (middle + 1, high)
        return steps[high]

    def steps(self, handle: HasComponents, calls: Iterable[DryCall]) -> list[dict[str, Tile]]:
        """Tiles to try of the VAEs that decode whole in some calls, the largest first."""
        sizes = self._sizes(handle, calls)
        most = max(map(len, sizes.values()), default=0)
        return [{name: some[min(index, len(some) - 1)] for name, some in sizes.items()} for index in range(most)]

    def _sizes(self, handle: HasComponents, calls: Iterable[DryCall]) -> dict[str, Sequence[Tile]]:
        """The tiles to try of each VAE that decoded whole."""
        found: dict[str, Sequence[Tile]] = {}
        for one in calls:
            name = one.component.name
            if name in self._names and one.call.method == _DECODE and not one.component.module.use_tiling:
                shape = one.traced.signature.tensors[0].shape
                tiles = candidates(one.component.module, [int(size) for size in shape])
                if tiles and len(tiles) > len(found.get(name, ())):
                    found[name] = tiles
        return found


def _tell_of_larger(name: str, asked: Asked, tile: Tile) -> None:
    """Says where a VAE takes larger tiles than were asked for."""
    if isinstance(asked, Tile) and (tile.height > asked.height or tile.width > asked.width):
        logger.warning("%s decodes in tiles of %s, the smallest that it has: %s is less", name, tile, asked)


def tell_of_tiles(pipe: str, tiles: Mapping[str, Tile], refused: DoesNotFitError) -> None:
    """Says that a picture is decoded in tiles, and why."""
    logger.warning(
        "%s decodes in tiles (%s), which changes the picture slightly, because the whole does not fit: %s; vae_tiling "
        "off (--vae-tiling off) refuses instead",
        pipe, ", ".join(f"{name}: {tile}" for name, tile in tiles.items()), str(refused).partition(": ")[0],
    )  # fmt: skip

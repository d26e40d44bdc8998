"""When memory runs out during a call though its plan fits: frees what is not needed, and tries once more with less.

A plan knows what programs take; not what other processes take meanwhile, nor fragments. A VAE decodes once more in
tiles. Any other component runs once more with its weights in host memory, brought block by block. What was done is
said in one warning. What a VAE is given to decode is noted, so that it survives a decode that fails.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError, UsageError
from ..components.component import Component
from ..components.dry import dry_run, latents_to_go_on_from, leave_dry_run
from ..planning.tiling import Tile, can_be_tiled, candidates, put_settings, settings, tile_vae
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.out_of_memory import ran_out
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST

logger = logging.getLogger(__name__)


class Recovery:
    """Recovers the calls of one pipeline.

    Args:
        components: the components by name; it keeps none alive.
    """

    def __init__(self, components: Mapping[str, Component]) -> None:
        self._components = components
        self.decoding: dict[str, torch.Tensor] = {}
        """What VAEs were given to decode in this call, by component and number; kept where the call failed then."""
        self.is_called = False
        """Whether a call of the pipeline runs; what is decoded outside of one is the caller's, and is not noted."""

    def begin(self) -> None:
        """Forgets the latents of an earlier call."""
        self.decoding = {}

    def keep(self) -> None:
        """Keeps the latents of a call that failed in host memory; they take nothing of a device until the next call."""
        self.decoding = {name: moved(tensor, HOST) for name, tensor in self.decoding.items()}

    def once_more(self, component: Component, error: BaseException) -> bool:
        """Frees what is not needed after a call ran out of memory; says whether it is to be made once more."""
        if not is_out_of_memory(error):
            return False
        _let_go(error)
        self.free(component)
        if component.is_decoding and can_be_tiled(component.module) and not component.module.use_tiling:
            return False  # decode goes on in tiles
        try:
            streams = component.stream()
        except DoesNotFitError:
            streams = False
        how = (
            "its weights are kept in host memory while there is no room for them, and are copied block by block"
            if streams
            else "all else is freed"
        )
        logger.warning("%s ran out of memory and runs once more: %s: %s", component.name, how, _first_line(error))
        return True

    def free(self, component: Component) -> None:
        """Lets go of what was brought for other components, and empties the caches of devices."""
        for other in list(self._components.values()):
            if other is not component:
                other.view.release()
        gc.collect()
        for device in _devices(self._components.values()):
            accelerator_of(device.torch).empty_cache()

    def decode(
        self, component: Component, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Decodes; where memory runs out, once more in tiles."""
        saved = latents_to_go_on_from()
        if saved is not None and args:
            args = (self._saved(component, saved, args[0]), *args[1:])
            leave_dry_run()
        if dry_run() is not None:
            return original(*args, **kwargs)
        key = self._note(component, args)
        component.is_decoding = True
        try:
            return original(*args, **kwargs)
        except Exception as error:
            tile = self._tile(component, args, error)
            if tile is None:
                raise
            _let_go(error)
            self.free(component)
            logger.warning(
                "%s ran out of memory and decodes in tiles of %s, which changes the picture slightly: %s",
                component.name, tile, _first_line(error),
            )  # fmt: skip
        finally:
            component.is_decoding = False
        result = self._in_tiles(component, tile, original, args, kwargs)
        logger.debug("%s was decoded in tiles", key)
        return result

    def _in_tiles(
        self,
        component: Component,
        tile: Tile,
        original: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        before = settings(component.module)
        tile_vae(component.module, tile)
        try:
            return original(*args, **kwargs)
        finally:
            put_settings(component.module, before)

    def _tile(self, component: Component, args: Sequence[Any], error: Exception) -> Tile | None:
        """The tiles for another try, or None where there shall be none."""
        module = component.module
        if not is_out_of_memory(error) or not can_be_tiled(module) or module.use_tiling or not args:
            return None
        sizes = candidates(module, args[0].shape)
        return sizes[min(1, len(sizes) - 1)] if sizes else None

    def _note(self, component: Component, args: Sequence[Any]) -> str:
        count = sum(name.partition(".")[0] == component.name for name in self.decoding)
        key = f"{component.name}.{count}"
        if self.is_called and args and isinstance(args[0], torch.Tensor):
            self.decoding[key] = args[0]
        return key

    def _saved(self, component: Component, saved: Mapping[str, torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        """What was saved of the latents that a VAE is given now."""
        count = sum(name.partition(".")[0] == component.name for name in self.decoding)
        found = saved.get(f"{component.name}.{count}")
        if found is None:
            raise UsageError(f"the latents have nothing for {component.name} (number {count}): sample them again")
        if found.shape != given.shape or found.dtype != given.dtype:
            raise UsageError(
                f"the latents of {component.name} are {found.dtype} of shape {tuple(found.shape)}, and this call makes "
                f"{given.dtype} of {tuple(given.shape)}: give the size and type that they were made with"
            )
        return moved(found, given.device)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, means that memory ran out on a device or on the host."""
    while error is not None:
        if ran_out(error) or isinstance(error, DoesNotFitError):
            return True
        error = error.__cause__
    return False


def _let_go(error: BaseException | None) -> None:
    """Drops what the frames of an error hold, and of those that it came from."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _devices(components: Any) -> list[Device]:
    return list(dict.fromkeys(device for one in components for device in one.devices if not device.is_host))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

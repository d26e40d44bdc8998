"""A tiny pipeline that is compiled once, and called once for each place at which something goes wrong."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DovetailError
from dovetail.components.component import Component
from dovetail.components.decisions import Decisions
from dovetail.passes.placement.assignment import Assigned, Assignment
from dovetail.planning.tiling import Tile, put_settings, settings, tile_vae
from dovetail.runtime import sim
from dovetail.runtime.store.origin import HOST
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from .injected import Injected

REQUEST = {"backend": "unet=sim0&sim1,te=sim1,vae=sim0", "rig": "sim0=64MiB,sim1=64MiB,cpu=8GiB"}
TILE = Tile(16, 16)


class Told(logging.Handler):
    """The warnings of one call."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Swept:
    """Stable Diffusion over two simulated devices, one step of it, and how often it asks these for memory.

    ``picture`` is the right one, ``in_tiles`` that of a decode in tiles. A call makes ``whole`` requests for values.
    Devices hold what they hold of weights, and ``beside``. The last call had ``decoded`` something, or begun to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sim.enable()
        self.pipe, call = tiny_pipelines.sd()
        self.call = {**call, "height": 32, "width": 32, "num_inference_steps": 1}
        self.picture, self.in_tiles = self.paint(), self._in_tiles()
        dovetail.compile_pipeline(self.pipe, **REQUEST)
        self._lower_once(monkeypatch)
        self.pipe.dovetail.plan(**self.call, output_type="pt")
        self.told, self.injected = Told(), Injected(monkeypatch)
        self._assigned = {name: _assignment(one) for name, one in self.pipe.dovetail.components.items()}
        self.injected.counts_weights = False
        self.paint()
        self.restore()
        self.call_with(lambda _: False)
        self.whole = self.injected.count
        self.beside = self.beside_weights()

    def call_with(self, fails: Callable[[float], bool], act: Callable[[], Any] | None = None) -> torch.Tensor | None:
        """The picture of a call, or None where it ended with one error that says what was injected."""
        self.told.texts.clear()
        self.decoded, vae = False, self.pipe.dovetail.components["vae"]

        def noting(count: float) -> bool:
            self.decoded |= vae.is_decoding
            return fails(count)

        self.injected.count, self.injected.fails = 0, noting
        logging.getLogger("dovetail").addHandler(self.told)
        try:
            return (act or self.paint)()
        except DovetailError as error:
            assert "injected" in str(error)
            return None
        finally:
            logging.getLogger("dovetail").removeHandler(self.told)
            self.injected.fails = lambda _: False

    def paint(self) -> torch.Tensor:
        found: torch.Tensor = paint(self.pipe, self.call).cpu()
        return found

    def prepare(self) -> None:
        self.pipe.dovetail.prepare(**self.call, output_type="pt")

    def go_on(self) -> torch.Tensor:
        """The picture of the latents that were kept of the last call."""
        more = {"output_type": "pt", "generator": torch.Generator().manual_seed(0), "return_dict": False}
        found: torch.Tensor = self.pipe.dovetail.go_on(self.pipe.dovetail.latents, **self.call, **more)[0]
        return found.cpu()

    def beside_weights(self) -> list[int]:
        """Bytes in use on each device that are not of weights which it holds."""
        gc.collect()
        weights = {
            id(one): one.tensor for part in self.pipe.dovetail.components.values() for one in part.view.weights()
        }
        of_weights: Counter[int | None] = Counter()
        for tensor in weights.values():
            of_weights[tensor.device.index] += tensor.nbytes
        return [sim.stats(index).in_use - of_weights[index] for index in range(2)]

    def restore(self) -> None:
        """Has each component be where it was, and its next call be like the first, so that requests are the same."""
        for name, one in self.pipe.dovetail.components.items():
            one.unload()
            if one.streams:
                one.streams = False
                one.assign(self._assigned[name])

    def to_host(self) -> None:
        """Takes all weights from the devices."""
        for component in self.pipe.dovetail.components.values():
            component.unload()
            for one in component.view.weights():
                if one.home and one.tensor.device == one.home.torch:
                    component.view.store.bring(one, HOST)
            component.view.moved()

    def _in_tiles(self) -> torch.Tensor:
        before = settings(self.pipe.vae)
        tile_vae(self.pipe.vae, TILE)
        try:
            return self.paint()
        finally:
            put_settings(self.pipe.vae, before)

    def _lower_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has programs be lowered once for each place where the weights of a component rest."""
        for component in self.pipe.dovetail.components.values():
            compiler = component.compiler
            monkeypatch.setattr(compiler, "_finish", _once(compiler._finish))


def _once(finish: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[Any, Any] = {}

    def finished(decided: Decisions, traced: Any, module: Any) -> Any:
        key = traced, decided.component.streams
        if key not in made:
            made[key] = finish(decided, traced, module)
            return made[key]
        traced.keeps_staged = not decided.component.streams
        decided.assigned.note(module, made[key].program, planning=True)
        return made[key]

    return finished


def _assignment(component: Component) -> Assignment:
    """What the weights of a component are assigned now."""
    main = component.devices[0]
    return {one.name: Assigned(one.home or main, (), one.residency) for one in component.view.weights()}

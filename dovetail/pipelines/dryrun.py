"""Plans a whole pipeline, also for a machine that is not here; nothing is computed, and nothing is read.

The pipeline really runs: its tokenizers, its scheduler and its own code. But each component answers a call with zeros
of the shapes and dtypes that its trace says it yields. So the calls are known after seconds, whatever the size of the
model, and for whatever machine the plan is made.

The pipeline's own tensors lie on a simulated device that is none of the rig's meanwhile. It counts them, and stands for
the pipeline's main device, wherever the search puts that and whether it is here or not.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from ..compiler.devices.device import SIM, Device
from ..compiler.errors import NotHereError
from ..components.compiled import CompiledModule
from ..conventions.spellings import Settings
from ..planning.draft import Draft
from ..planning.generation import Generation, numbered
from ..runtime import sim
from ..runtime.store.program_weights import ProgramWeights
from .pipeline import CompiledPipeline

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


def _of_module(made: CompiledModule, module: nn.Module) -> CompiledModule:
    """The same program, which finds its weights in the module also when the pipeline is gone."""
    return CompiledModule(made.program, made.rig, ProgramWeights.of_module(module, made.program), made.base)


class DryPipeline(CompiledPipeline):
    """A compiled pipeline whose calls are planned and not made; what it compiles is what the real one would run.

    Its weights stay where they are, and need not have data. There is nothing to undo: drop it after use. It keeps the
    pipeline alive.
    """

    def __init__(self, pipe: DiffusionPipeline, request: Settings, **options: Any) -> None:
        self._generations: list[Generation] = []
        self._kept = pipe
        with contextlib.suppress(NotHereError):  # where another package has the backend, the host is taken
            sim.enable()
        super().__init__(pipe, request, **options)
        self.hook.execution_device = self.rig.host.torch

    @property
    def main(self) -> Device:
        """A simulated device beside those of the rig, which stands for the main device; the host where that is one."""
        return self._spare_for(self.placed_main, self._is_open or not self.components)

    def main_of(self, draft: Draft) -> Device:
        """The same in a dry run with a draft."""
        return self._spare_for(draft.main, draft.plan.is_open)

    def _spare_for(self, main: Device, is_open: bool) -> Device:
        return self.rig.host if self._spare is None or (main.is_host and not is_open) else self._spare

    @cached_property
    def _spare(self) -> Device | None:
        """The device of the pipeline's own tensors; none on a machine of nothing but the host."""
        if not sim.is_enabled() or all(one.is_host for one in self.rig):
            return None
        return Device(SIM, sim.spare([one.index for one in self.rig if one.is_simulated]))

    def plan(self, *args: object, **kwargs: object) -> Generation | None:
        """Plans a call as a compiled pipeline does; before and after it the pipeline makes its tensors on the host."""
        try:
            return super().plan(*args, **kwargs)
        finally:
            self.hook.execution_device = self.rig.host.torch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Plans a call, and returns the plan."""
        plan = self.plan(*args, **kwargs)
        self._generations += [plan] if plan is not None else []
        return plan

    def plans(self) -> dict[str, CompiledModule]:
        """Every program compiled so far by name, in the order in which the pipeline called them first.

        A name is the component (`transformer`), with its part or method where that is not the whole (`vae.decode`),
        and a number from the second shape on (`text_encoder.2`).
        """
        known = {
            id(one.program): _of_module(one, call.module)
            for component in self.components.values()
            for call in component.calls
            for made in call.programs.values()
            if isinstance(made, CompiledModule)
            for one in made.each
        }
        planned = {id(call.program): call.title for generation in self._generations for call in generation.calls}
        calls = {program: title for program, title in planned.items() if program in known}  # others were planned anew
        return dict(zip(numbered(calls.values()), (known[program] for program in calls), strict=True))

    def _whole_on(self, main: Device, is_open: bool) -> Device:
        """Beside the rig, or on the host: what cannot be traced must really run to say what it returns."""
        return self._spare_for(main, False)

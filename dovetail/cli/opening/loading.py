"""How a command loads a pipeline, to run it or to plan it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler.errors import DovetailError, NotHereError
from ..options.call import call_arguments, told_of_steps
from ..options.shared import Where
from ..options.subject import Pipeline, dtype_of, located
from ..options.weights import WeightFiles
from .garbage import collect_from_now

if TYPE_CHECKING:
    from ...compiler.devices.rig import Rig
    from ...pipelines.dryrun import DryPipeline
    from ...planning.generation import Generation
    from ...planning.table import Account


@dataclass(frozen=True)
class Loading:
    """A pipeline with all that was typed of how it is loaded.

    ``adapters`` are further arguments of `compile_pipeline`, ``components`` makes those that are added, of a dtype, and
    ``scheduler`` is the name of the one that takes the place of the pipeline's.
    """

    pipeline: Pipeline
    where: Where
    weights: WeightFiles
    dtype: str | None = None
    adapters: Mapping[str, Any] = field(default_factory=dict)
    pipeline_class: Any = None
    components: Callable[[Any], dict[str, Any]] | None = None
    scheduler: str = ""

    def load(self, *, rests_in_files: bool = True) -> Any:
        """The pipeline, compiled; its weights are not read yet.

        ``rests_in_files`` has what the host computes with rest in its files between phases.
        """
        from ... import load_pipeline, load_single_file

        self._read_ahead()  # while diffusers is imported
        pipeline = located(self.pipeline)
        options = {**self._opening(pipeline), **self._compiling, **self.where.arguments}
        pipe = (
            load_single_file(pipeline.file, config=pipeline.place, **options)
            if pipeline.file
            else load_pipeline(pipeline.place, variant=pipeline.variant, **options)
        )
        self._exchange_scheduler(pipe)
        pipe.set_progress_bar_config(disable=True)
        if rests_in_files:
            pipe.dovetail.rest_in_files()
        return pipe

    def plan(self, given: Mapping[str, Any], *, rests_in_files: bool = True) -> tuple[DryPipeline, Generation | None]:
        """The pipeline, run dry, from its configs alone if need be, and the plan of a call with these arguments.

        ``rests_in_files`` says whether what the host computes with rests in its files, as `load` has it.
        """
        from ...pipelines.dryrun import DryPipeline
        from ...pipelines.loading.saved import open_pipeline
        from ...pipelines.loading.single_file import open_single_file

        pipeline = located(self.pipeline, with_weights=False)
        options = {**self._opening(pipeline), "needs_files": False}
        pipe, origins = (
            open_single_file(pipeline.file, pipeline.place, **options)
            if pipeline.file
            else open_pipeline(pipeline.place, variant=pipeline.variant, **options)
        )
        self._exchange_scheduler(pipe)
        collect_from_now()
        dry = DryPipeline(pipe, self.where.arguments, origins=origins, **self._compiling)
        if rests_in_files:
            dry.rest_in_files()
        return dry, dry(**call_arguments(pipe, given, pipeline.defaults), **told_of_steps(pipe))  # as it is painted

    def account(self, given: Mapping[str, Any]) -> Account:
        """The plan of a call with these arguments, with all that is said of it.

        Raises DovetailError for a call that cannot be planned.
        """
        started = time.perf_counter()
        dry, generation = self.plan(given)
        if generation is None:
            raise DovetailError("this call cannot be planned: nothing of it could be traced; see --debug")
        account = dry.account(generation)
        return replace(account, planned=time.perf_counter() - started)

    def _opening(self, pipeline: Pipeline) -> dict[str, Any]:
        dtype = dtype_of(pipeline, self.dtype)
        return {
            "dtype": dtype,
            "pipeline_class": self.pipeline_class,
            "components": self.components(dtype) if self.components else None,
            "weights": self.weights.given(pipeline),
            "quant": self.weights.types,
        }

    @property
    def _compiling(self) -> dict[str, Any]:
        where = self.where
        put = {"attention": where.attention, "cache": where.cache}
        return {"passes": where.passes or None, "vae_tiling": where.vae_tiling, **put, **self.adapters}

    def _read_ahead(self) -> None:
        from ...quant.asked import meant_by, read_quant
        from ...weights.ahead import folders_in, read_ahead

        if not self.pipeline.file and Path(self.pipeline.place).is_dir():
            own = folders_in(self.pipeline.place)
            packed = [one for name in read_quant(self.weights.types) for one in meant_by(name, own)]
            apart = {*(self.weights.given(self.pipeline) or {}), *packed}
            read_ahead(self.pipeline.place, self.pipeline.variant, apart)

    def _exchange_scheduler(self, pipe: Any) -> None:
        from ...conventions.schedulers import exchanged

        if self.scheduler:
            pipe.scheduler = exchanged(pipe.scheduler, self.scheduler)


def check_here(rig: Rig) -> None:
    """Raises NotHereError where the devices of a rig are not those of this process."""
    if any(not one.is_of_here for one in rig):
        raise NotHereError(
            f"nothing can run on {rig.told} yet: devices of several processes can be planned for, with dovetail plan, "
            "compile, show or verify"
        )
    if not rig.present:
        raise NotHereError(
            f"nothing can run on {rig.told}: it is not this machine; plan for it with dovetail plan, compile, show or "
            "verify"
        )

"""What a command says of a pipeline on named devices: as it was said before, where everything is as it was then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler.devices.rig import Rig
from ..options.call import Sample
from ..options.inputs import NO_INPUTS, Inputs
from ..options.painting import called
from ..options.shared import Where
from ..options.subject import Pipeline, located
from ..options.weights import WeightFiles
from .loading import Loading

if TYPE_CHECKING:
    from ...cache.answers import Answer

logger = logging.getLogger(__name__)
_ours = logging.getLogger(__name__.partition(".")[0])


@dataclass(frozen=True)
class Question:
    """What is asked of a pipeline, as it was typed; ``form`` says what of it is told, and in which form.

    ``rig`` are the devices that it is asked for.
    """

    pipeline: Pipeline
    where: Where
    rig: Rig
    sample: Sample
    weights: WeightFiles
    dtype: str | None
    inputs: Inputs = NO_INPUTS
    form: tuple[object, ...] = ()

    def answered(self, make: Callable[[], Any]) -> Answer:
        """The answer that was kept, with its warnings once more; else that which ``make`` gives, as JSON takes it.

        One that was kept is not taken where somebody asked for a log.
        """
        from ...cache import answers

        key = self._key() if self._is_lasting else ""
        found = answers.read(key) if key and not _ours.isEnabledFor(logging.INFO) else None
        if found is not None:
            for name, text in found.warnings:
                logging.getLogger(name).warning("%s", text)
            return found
        with answers.warnings_noted() as warnings:
            told = make()
        answer = answers.Answer(told, tuple(warnings))
        if key:
            answers.keep(key, f"{self.form[0]} of {self.pipeline.file or self.pipeline.place}", answer)
        return answer

    def loading(self, sample: Sample | None = None) -> tuple[Loading, dict[str, Any]]:
        """How the pipeline is loaded to be planned, and the arguments of its call; of another ``sample``, if given."""
        cls, given = called(self.pipeline, self.inputs, (sample or self.sample).call())
        added = self.inputs.components
        loading = Loading(self.pipeline, self.where, self.weights, self.dtype, pipeline_class=cls, components=added)
        return loading, given

    @property
    def _is_lasting(self) -> bool:
        """Whether the answer may be kept, and is the same later: all devices are named, and nobody else's passes run.

        Of this machine's cards, and of its host where that is not named, something else is free then.
        """
        from ...cache import folder

        is_named = bool(self.where.rig) and self.rig.host in self.rig.memory
        cards = [one for one in self.rig if not one.is_host and not one.is_simulated]
        return folder.is_on() and is_named and not (cards and self.rig.present) and not self.where.passes

    def _key(self) -> str:
        """The key of this question on this machine as it is now; nothing where what it depends on cannot be told."""
        from ...cache import answers
        from ...fitting.decide import speeds_here

        try:
            speeds = speeds_here(self.rig.with_device(self.rig.host))
            return answers.key_of((self, speeds), [self._folder()], self._files())
        except (answers.CannotBeKeptError, OSError) as why:
            logger.info("the answer is not kept: %s", str(why))
            return ""

    def _folder(self) -> Path:
        """The folder of the model, or of its configs."""
        return Path(located(self.pipeline, with_weights=False).place)

    def _files(self) -> Iterator[Path]:
        """The files that are read besides, and folders of such."""
        if self.pipeline.file:
            yield Path(self.pipeline.file)
        for files in (self.weights.given(self.pipeline) or {}).values():
            yield from map(Path, files)
        named = (self.inputs.image, self.inputs.mask, self.inputs.control_image, self.inputs.control_net)
        yield from (place for place in named if place is not None)

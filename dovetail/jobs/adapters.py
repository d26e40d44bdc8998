"""The LoRAs that jobs may name: those of one folder, put on a pipeline while somebody asks for them."""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler.errors import AdapterError, UsageError, WeightError
from ..compiler.printable import half_character, printable
from ..lora.requested import Lora
from ..pipelines.loras import apply_loras

if TYPE_CHECKING:
    from ..pipelines.pipeline import CompiledPipeline

logger = logging.getLogger(__name__)

Wanted = tuple[tuple[str, float], ...]
"""Names of LoRAs, each with its scale."""


@dataclass
class Shelf:
    """LoRAs by the names that jobs know them by; no job names a file."""

    files: Mapping[str, Path] = field(default_factory=dict)
    _now: Wanted = ()

    @classmethod
    def of(cls, folder: Path | None) -> Shelf:
        """The LoRAs of a folder, by their names without the ending; raises UsageError where there is no such folder."""
        if folder is None:
            return cls()
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}: name the one that has LoRAs, as .safetensors files")
        found = {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
        odd = [name for name in found if half_character(name)]  # which no job and no answer can say
        if odd:
            names = ", ".join(map(printable, odd))
            logger.warning("LoRAs whose names are no text in UTF-8 are left out: %s: rename them", names)
        return cls({name: path for name, path in found.items() if name not in odd})

    def found(self, wanted: Wanted) -> tuple[Lora, ...]:
        """The LoRAs of such names; raises UsageError for a name that is not on the list."""
        for name, _ in wanted:
            if name not in self.files:
                near = difflib.get_close_matches(name[:100], self.files, n=1)
                known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.files) or 'none'}"
                raise UsageError(f"no LoRA is called {name[:100]!r}: {known}")
        return tuple(Lora(str(self.files[name]), scale) for name, scale in wanted)

    @contextlib.contextmanager
    def applied(self, handle: CompiledPipeline, wanted: Wanted) -> Iterator[None]:
        """Has these LoRAs, and no others, be on a pipeline meanwhile; they stay until others are asked for.

        Raises UsageError for a name that is not on the list, and AdapterError where a file of the list is no use.
        """
        loras = self.found(wanted)
        if wanted != self._now:
            self._take_off(handle)
            with self._without_places(wanted):
                apply_loras(handle, loras)
            self._now = wanted
        yield

    @contextlib.contextmanager
    def _without_places(self, wanted: Wanted) -> Iterator[None]:
        """Says of a LoRA whose file is no use its name alone to who asked for that, and the file to the log."""
        try:
            yield
        except (UsageError, WeightError) as error:
            at_fault = [name for name, _ in wanted if printable(str(self.files[name])) in str(error)]
            if not at_fault:
                raise
            logger.warning("a LoRA cannot be applied: %s", error)
            raise AdapterError(
                f"the LoRA {at_fault[0]} cannot be applied: it is damaged, or made for another model; the log says more"
            ) from error

    def _take_off(self, handle: CompiledPipeline) -> None:
        pipe = handle.pipe
        if not self._now:
            return
        self._now = ()
        if getattr(pipe, "num_fused_loras", 0):
            pipe.unfuse_lora()
        pipe.unload_lora_weights()

"""The options that name LoRAs, and those that stand in a prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from ... import demo
from ...lora.requested import read_loras, taken_from
from .subject import Pipeline
from .words import words_of

LORAS = "LoRA"
Mode = Literal["auto", "immediately", "at_runtime"]


@dataclass(frozen=True)
class Loras:
    """LoRAs, as they were typed."""

    lora: Annotated[
        list[str] | None,
        typer.Option("--lora", metavar="NAME:SCALE", help="A LoRA to apply; repeatable.", rich_help_panel=LORAS),
    ] = None
    lora_model_dir: Annotated[
        str,
        typer.Option("--lora-model-dir", metavar="FOLDER", help="Where to look for names.", rich_help_panel=LORAS),
    ] = ""
    lora_apply_mode: Annotated[
        Mode,
        typer.Option("--lora-apply-mode", help="Merged into weights, or computed beside.", rich_help_panel=LORAS),
    ] = "auto"

    lora_pickles: Annotated[
        bool,
        typer.Option("--lora-pickles", help="Read LoRAs that are pickles too; trust them.", rich_help_panel=LORAS),
    ] = False

    def words(self) -> list[str]:
        """The same options as they are typed."""
        mode = self.lora_apply_mode if self.lora_apply_mode != "auto" else ""
        named = [word for one in self.lora or () for word in ("--lora", one)]
        pickles = ["--lora-pickles"] if self.lora_pickles else []
        return [*named, *words_of({"--lora-model-dir": self.lora_model_dir, "--lora-apply-mode": mode}), *pickles]

    def arguments(self, prompt: str | None, pipeline: Pipeline) -> tuple[str | None, dict[str, Any]]:
        """The prompt without ``<lora:NAME:SCALE>``, and what `dovetail.load_pipeline` takes of LoRAs.

        The demo finds its own by name. Raises UsageError for one that is not there or whose scale is no number.
        """
        plain, inside = taken_from(prompt) if prompt is not None else (None, [])
        own = str(demo.adapter().parent) if pipeline.place == str(demo.folder()) else ""
        loras = read_loras([*(self.lora or ()), *inside], self.lora_model_dir or own or None)
        loras = tuple(replace(lora, pickled=self.lora_pickles) for lora in loras)
        return plain, {"lora": loras, "lora_apply_mode": self.lora_apply_mode}

"""The options that name files of weights in place of a component's own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...compiler.errors import UsageError
from ...compiler.spec.roles import role_of
from ...conventions.hub import INDEX, read_index
from .subject import Pipeline
from .words import words_of

_ENCODERS = {"clip_l": ("CLIP", 0), "clip_g": ("CLIP", 1), "t5xxl": ("T5", 0), "llm": ("", 0)}
"""stable-diffusion.cpp's names of text encoders: their kind, and the place among those of the kind."""


@dataclass(frozen=True)
class WeightFiles:
    """Files of weights, as they were typed."""

    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", metavar="NAME=FILE", help="Take a component's weights from FILE; repeatable."),
    ] = None
    quant: Annotated[
        list[str] | None,
        typer.Option(
            "--quant",
            metavar="NAME=TYPE",
            help="Pack a component's weights while loading: transformer=q8_0, te=f8; commas, or repeatable.",
        ),
    ] = None
    diffusion_model: Annotated[
        str,
        typer.Option("--diffusion-model", metavar="FILE", hidden=True, help="The same as --weights diffusion=FILE."),
    ] = ""
    vae: Annotated[str, typer.Option("--vae", metavar="FILE", hidden=True, help="The same as --weights vae=FILE.")] = ""
    clip_l: Annotated[
        str, typer.Option("--clip_l", metavar="FILE", hidden=True, help="The weights of the first CLIP text encoder.")
    ] = ""
    clip_g: Annotated[
        str, typer.Option("--clip_g", metavar="FILE", hidden=True, help="The weights of the second CLIP text encoder.")
    ] = ""
    t5xxl: Annotated[
        str, typer.Option("--t5xxl", metavar="FILE", hidden=True, help="The weights of the T5 text encoder.")
    ] = ""
    llm: Annotated[
        str,
        typer.Option(
            "--llm", metavar="FILE", hidden=True, help="The weights of the text encoder that is a language model."
        ),
    ] = ""

    @property
    def are_named(self) -> bool:
        """Whether any was, or types for what they have."""
        return bool(self.weights or self.quant or any(self._aliases().values()))

    def words(self) -> list[str]:
        """The same options as they are typed."""
        named = [word for text in self.weights or () for word in ("--weights", text)]
        named += [word for text in self.quant or () for word in ("--quant", text)]
        aliases = {
            "--diffusion-model" if name == "diffusion" else f"--{name}": file for name, file in self._aliases().items()
        }
        return named + words_of(aliases)

    def given(self, pipeline: Pipeline) -> dict[str, list[str]] | None:
        """The files by component or role, as `dovetail.load_pipeline` takes them; several of one are its parts.

        Raises UsageError for what is no NAME=FILE, for a file that is not there, and for a text encoder that the
        pipeline does not have.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for text in self.weights or ():
            name, _, file = text.partition("=")
            if not name or not file:
                raise UsageError(f"--weights {text}: write NAME=FILE, such as transformer=model.gguf")
            found[name].append(file)
        for alias, file in self._aliases().items():
            if file:
                found[_component(alias, pipeline)].append(file)
        known = {*pipeline.components, *pipeline.components.values()}
        missing = [
            file for name in found if {name, role_of(name)} & known for file in found[name] if not Path(file).exists()
        ]
        if missing:
            raise UsageError(f"{missing[0]} is missing: name a safetensors or GGUF file that is there")
        return dict(found) or None

    @property
    def types(self) -> str | None:
        """The types to pack in, as `dovetail.load_pipeline` takes them; raises UsageError for what is none."""
        from ...quant.asked import read_quant

        asked = ",".join(self.quant or ())
        read_quant(asked)
        return asked or None

    def _aliases(self) -> dict[str, str]:
        own = {"diffusion": self.diffusion_model, "vae": self.vae}
        return own | {"clip_l": self.clip_l, "clip_g": self.clip_g, "t5xxl": self.t5xxl, "llm": self.llm}


def _component(alias: str, pipeline: Pipeline) -> str:
    """The component that stable-diffusion.cpp's name of a text encoder means; other names stay."""
    if alias not in _ENCODERS:
        return alias
    index = read_index(Path(pipeline.place) / INDEX)
    classes = {name: index[name][1] for name, role in pipeline.components.items() if role == "te"}
    kind, number = _ENCODERS[alias]
    alike = [name for name, cls in classes.items() if _kind(cls) == kind]
    if number >= len(alike):
        has = ", ".join(f"{name} ({cls})" for name, cls in classes.items()) or "none"
        raise UsageError(f"--{alias}: {pipeline.place} has no such text encoder; it has {has}")
    return alike[number]


def _kind(cls: str) -> str:
    return next((kind for kind in ("CLIP", "T5") if kind in cls), "")

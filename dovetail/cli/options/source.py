"""The options that say which files a pipeline is loaded from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...compiler.errors import UsageError
from .words import words_of


@dataclass(frozen=True)
class Source:
    """Which files of a pipeline, as it was typed."""

    config: Annotated[
        str,
        typer.Option(
            "--config", metavar="FOLDER", help="Of a single file: a pipeline's folder or hub id, for configs."
        ),
    ] = ""
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="NAME", help="Which revision of the Hub's repository.")
    ] = None
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Which files of the model's weights, such as fp16.")
    ] = None

    @property
    def hub(self) -> dict[str, str]:
        """What is asked of the Hub besides the name of a repository."""
        return {"revision": self.revision} if self.revision else {}

    def words(self) -> list[str]:
        """The same options as they are typed."""
        return words_of({"--config": self.config, "--revision": self.revision, "--variant": self.variant})

    def check_folder(self, folder: str) -> None:
        """Raises UsageError for an option that means nothing of a folder with a whole pipeline."""
        self.check_whole(folder)
        if self.revision:
            raise UsageError(f"{folder} is a folder, which has no revisions: leave out --revision {self.revision}")

    def check_whole(self, place: str) -> None:
        """Raises UsageError for an option that means nothing of a pipeline that has its own configs."""
        if self.config:
            raise UsageError(
                f"{place} has its own configs: leave out --config, which is for a single .safetensors or .gguf file"
            )

    def check_file(self, file: str) -> None:
        """Raises UsageError for an option that means nothing of a single file, or of where its configs are."""
        if self.variant:
            raise UsageError(f"{file} is a single file, which has no variants: leave out --variant {self.variant}")
        if self.revision and self.config and Path(self.config).is_dir():
            raise UsageError(f"{self.config} is a folder, which has no revisions: leave out --revision {self.revision}")


AS_IT_IS = Source()
"""What is loaded where nothing is said of it."""

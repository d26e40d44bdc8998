"""The command that paints with a placement, to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

FOLDER, PROMPT = "MODEL_FOLDER", "a cat"
"""What stands in a command for a pipeline and a prompt that nobody named."""
DEMO_PROMPT = "a red circle"
"""The same for the demo, which knows no cat."""


def generate_line(folder: str, options: Mapping[str, str], words: Sequence[str] = (), prompt: str | None = None) -> str:
    """The command that paints with the pipeline of a folder (of the demo where it has no name).

    Args:
        options: of the placement, by name; those of no value are flags.
        words: what else is typed.

    >>> generate_line("my model", {"--backend": "cuda0&cuda1"}, ["--size", "512"])
    "dovetail generate 'a cat' --model 'my model' --backend 'cuda0&cuda1' --size 512"
    """
    placed = [word for option, value in options.items() for word in ((option, value) if value else (option,))]
    model = ["--model", folder] if folder else []
    prompt = (PROMPT if folder else DEMO_PROMPT) if prompt is None else prompt
    painted = ["--prompt", prompt] if prompt.startswith("-") else [prompt]
    return shlex.join(["dovetail", "generate", *painted, *model, *placed, *words])

"""What a change is, the list of all of them, and what eager yields for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .models import Model

Step = Callable[..., None]
"""Changes a pipeline; is given the folder with the files beside it, if it takes a second argument."""


@dataclass(frozen=True)
class Change:
    """Steps, after each of which a picture is painted, and what is done to eager for the same pictures.

    Args:
        kind: the row of the table that it counts in.
        expected: for the picture after each step, the steps that eager takes for it from the start.
        call: what the picture's call is given besides.
        is_seen: whether the first picture differs from that before the change.
        is_exact: whether the numbers are eager's to the bit where no rows are split.
    """

    name: str
    kind: str
    model: Model
    steps: tuple[Step, ...]
    expected: tuple[tuple[Step, ...], ...]
    call: Mapping[str, Any] = field(default_factory=dict)
    is_seen: bool = True
    is_exact: bool = True


CHANGES: dict[str, Change] = {}


def add(
    name: str, kind: str, model: Model, *steps: Step, expected: tuple[tuple[Step, ...], ...] = (), **more: Any
) -> None:
    """Adds a change of several steps; eager takes the same ones unless others are given."""
    assert name not in CHANGES, name
    same = tuple(steps[: count + 1] for count in range(len(steps)))
    CHANGES[name] = Change(name, kind, model, steps, expected or same, **more)


def change(kind: str, model: Model, **more: Any) -> Callable[[Step], Step]:
    """Adds the change that a function makes."""

    def note(step: Step) -> Step:
        add(step.__name__, kind, model, step, **more)
        return step

    return note


def at_once(*steps: Step) -> Step:
    """Steps without a picture between them, as one."""

    def take(pipe: Any, folder: Path) -> None:
        for step in steps:
            do(step, pipe, folder)

    return take


def do(step: Step, pipe: Any, folder: Path) -> None:
    """Takes a step."""
    step(pipe, folder) if step.__code__.co_argcount == 2 else step(pipe)


def nothing(pipe: Any) -> None:
    """A step that changes nothing."""

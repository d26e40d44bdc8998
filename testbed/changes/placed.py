"""Eager with its weights where a compiled pipeline has them: what it refuses there is no fault of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .change import Change, do
from .models import modules

Lying = dict[str, torch.device]
"""The device that each weight of a pipeline reports, by component and name."""


def lies(pipe: Any) -> Lying:
    """Where the weights of a pipeline are, as its modules say."""
    return {name: one.device for name, one in _weights(pipe).items()}


def place(pipe: Any, lying: Lying) -> None:
    """Moves the weights of an eager pipeline; each is the same object afterwards."""
    for name, one in _weights(pipe).items():
        there = lying.get(name, one.device)
        if one.device == there:
            continue
        with torch.no_grad():
            data = one.to(there)
        moved = nn.Parameter(data, one.requires_grad) if isinstance(one, nn.Parameter) else data
        torch.utils.swap_tensors(one, moved)


def refused_where_it_lies(change: Change, lying: list[Lying], folder: Path) -> type[Exception] | None:
    """What eager raises for the steps that were begun, with its weights where those of the pipeline were before each.

    None where eager takes all of them.
    """
    pipe = change.model.eager(folder)
    try:
        for step, there in zip(change.steps, lying, strict=False):
            place(pipe, there)
            do(step, pipe, folder)
    except Exception as error:
        return type(error)
    return None


def _weights(pipe: Any) -> dict[str, torch.Tensor]:
    parts = modules(pipe).items()
    return {
        f"{part}.{name}": one
        for part, module in parts
        for name, one in (*module.named_parameters(), *module.named_buffers())
    }

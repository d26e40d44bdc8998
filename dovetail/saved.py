"""Keeping a compiled module in a plan file, and making one of it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from .compiled import CompiledModule
from .compiler.errors import WeightError
from .compiler.planfile import load_plan
from .passes.base import PassManager
from .passes.schedule import Lower
from .passes.verify import Verify
from .request import switch_on
from .runtime.weights import HeldWeights, tensors_of_module

Weights = nn.Module | Mapping[str, torch.Tensor] | str | os.PathLike[str]


def load(path: str | os.PathLike[str], weights: Weights | None = None) -> CompiledModule:
    """Makes a compiled module of a plan file.

    Args:
        path: what ``CompiledModule.save`` wrote.
        weights: the module that was compiled, its state dict, or a safetensors file or folder. Without weights the
            result can be printed and verified, but not called.

    Raises:
        PlanFileError: the file is not there, or is no plan.
        WeightError: the weights cannot be read.
    """
    program, rig, tensors = load_plan(path)
    switch_on(rig)
    if "cut" in program.facts:
        PassManager((Lower(), Verify())).run(program)
    program.constants = {name: tensor for name, tensor in tensors.items() if program.weights[name].kind == "constant"}
    if weights is None:
        return CompiledModule(program, rig, None)
    return CompiledModule(program, rig, HeldWeights({**_tensors_of(weights), **tensors}, program))


def _tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    if isinstance(weights, nn.Module):
        return tensors_of_module(weights)
    if isinstance(weights, Mapping):
        return dict(weights)
    path = Path(weights)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise WeightError(f"there is no safetensors file in {path}")
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except Exception as error:
        raise WeightError(f"cannot read weights from {path}: {error}") from error

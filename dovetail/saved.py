"""Keeping a compiled module in a plan file, and making one of it again."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import nn

from .compiler.checkpoints.index import WeightIndex
from .components.compiled import CompiledModule
from .conventions.checked import WEIGHTS, checked
from .conventions.request import switch_on
from .passes.infra.manager import PassManager
from .passes.lowering.lower import Lower
from .passes.lowering.verification import Verify
from .plans.reading import read_plan
from .runtime.store.program_weights import ProgramWeights
from .weights.files import Given, index_for
from .weights.name_matching import Wanted

Weights = nn.Module | Mapping[str, torch.Tensor] | Given


@checked(weights=WEIGHTS)
def load(path: str | os.PathLike[str], weights: Weights | None = None) -> CompiledModule:
    """Makes a compiled module of a plan file.

    Args:
        path: what ``CompiledModule.save`` wrote.
        weights: the module that was compiled, its state dict, or files as ``dovetail.compile`` takes them. Without
            weights the result can be printed and verified, but not called.

    Raises:
        PlanFileError: the file is not there, or is no plan.
        ProgramTextError, VerificationError: what it describes is no program, or breaks a rule.
        WeightError: the weights cannot be read.
    """
    program, rig, tensors = read_plan(path)
    switch_on(rig)
    if "cut" in program.facts:
        PassManager((Lower(), Verify())).run(program)
    program.constants = {name: tensor for name, tensor in tensors.items() if program.weights[name].kind == "constant"}
    if weights is None:
        return CompiledModule(program, rig, None)
    if isinstance(weights, nn.Module):
        return CompiledModule(program, rig, ProgramWeights.of_module(weights, program, tensors))
    if isinstance(weights, Mapping) and not isinstance(weights, WeightIndex):
        return CompiledModule(program, rig, ProgramWeights.of_tensors({**weights, **tensors}, program))
    index = index_for(Wanted.of_program(program), weights)
    return CompiledModule(program, rig, ProgramWeights.of_files(index, program, tensors))

"""A plan file with the program in it checked: it may have been edited, or damaged where its form does not show it."""

from __future__ import annotations

import os

import torch

from ..compiler.devices.rig import Rig
from ..compiler.errors import VerificationError
from ..compiler.ir.program import Program
from ..compiler.text.plan_file import load_plan
from ..passes.verify.types import verify_types
from ..passes.verify.verifier import verify


def read_plan(path: str | os.PathLike[str]) -> tuple[Program, Rig, dict[str, torch.Tensor]]:
    """What ``load_plan`` reads, where its program keeps the rules.

    Raises:
        PlanFileError, ProgramTextError: the file is no plan, or its program cannot be read.
        VerificationError: the program breaks a rule, which is named with the file.
    """
    program, rig, tensors = load_plan(path)
    try:
        verify(program)
        verify_types(program)
    except VerificationError as error:
        raise VerificationError(f"{path} is damaged, or was edited: compile it again\n{error}") from error
    return program, rig, tensors

"""Refuses pipelines whose components somebody places already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..compiler.errors import UsageError
from ..components.calls import is_compiled
from ..conventions import libraries
from .plan import modules_of
from .subclass import handle_of


def refuse_taken(pipe: Any, borrowed: Mapping[str, object]) -> None:
    """Raises UsageError where a pipeline is compiled already, or somebody has placed components that it cannot borrow.

    It shares components of another pipeline, but no parts of one.
    """
    if handle_of(pipe) is not None:
        raise UsageError(f"this {type(pipe).__name__} is compiled already: call pipe.dovetail.undo() first")
    modules = {name: module for name, module in modules_of(pipe).items() if name not in borrowed}
    taken = [name for name, module in modules.items() if is_compiled(module)]
    if taken:
        raise UsageError(
            f"{', '.join(taken)} of this {type(pipe).__name__} are compiled as parts of components elsewhere: give "
            f"this one copies (pipe.{taken[0]} = copy.deepcopy(pipe.{taken[0]})), or call dovetail.undo() on the "
            "other one first"
        )
    _refuse_offloaded(type(pipe).__name__, modules)


def refuse_taking(pipe: Any, name: str, module: nn.Module) -> None:
    """Raises UsageError where a module cannot be compiled in the place of a component of a compiled pipeline."""
    taken = [one for one in module.modules() if is_compiled(one)]
    if any(one is pipe.components.get(name) for one in taken):
        raise UsageError(
            f"{name} is compiled by dovetail, and {type(module).__name__} cannot compile it once more: leave it as it "
            "is, or call pipe.dovetail.undo() first"
        )
    if taken:
        raise UsageError(
            f"this {type(module).__name__} is compiled as a component of another pipeline: give this one a copy "
            f"(pipe.{name} = copy.deepcopy(…)), or call dovetail.undo() on the other one first"
        )
    _refuse_offloaded(type(pipe).__name__, {name: module})


def _refuse_offloaded(pipe: str, modules: Mapping[str, nn.Module]) -> None:
    """Raises UsageError where another library moves weights."""
    grouped = [name for name, module in modules.items() if libraries.is_group_offloaded(module)]
    if grouped:
        raise UsageError(
            f"diffusers moves the weights of {', '.join(grouped)} of this {pipe} by groups "
            "(enable_group_offload), which dovetail would place: load the pipeline again without that, and keep "
            "weights in host memory instead (params_backend=cpu)"
        )
    hooked = [name for name, module in modules.items() if hasattr(module, libraries.HOOK)]
    if hooked:
        raise UsageError(
            f"accelerate has hooks on {', '.join(hooked)} of this {pipe}: call pipe.remove_all_hooks() first"
        )

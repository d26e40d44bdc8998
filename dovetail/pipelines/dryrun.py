"""Plans a whole pipeline without computing anything.

The pipeline really runs: its tokenizers, its scheduler and its own code. But each component answers a call with zeros
of the shapes and dtypes that its trace says it yields. So the calls are known after seconds, whatever the size of the
model, and for whatever machine the plan is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ..compiler.ir.program import Program, tensors_of
from ..compiler.spec.devices import Device
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..runtime.store.program_weights import ProgramWeights
from .pipeline import CompiledPipeline


class DryPipeline(CompiledPipeline):
    """A compiled pipeline whose components return zeros; what it compiles is what the real one would run.

    Its weights stay where they are, and need not have data. There is nothing to undo: drop it after use.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._finished: list[Program] = []
        super().__init__(*args, **kwargs)

    @property
    def main(self) -> Device:
        """The host: what the pipeline itself computes is computed here, even for a machine that is not here."""
        return self.rig.host

    def plans(self) -> dict[str, CompiledModule]:
        """Every program compiled so far by name, in the order in which the pipeline called them first.

        A name is the component (`transformer`), with its part or method where that is not the whole (`vae.decode`),
        and a number from the second shape on (`text_encoder.2`).
        """
        found: dict[str, CompiledModule] = {}
        for component in self.components.values():
            for call in component.calls:
                title = component.name if str(call) == "forward" else f"{component.name}.{str(call).lstrip('_')}"
                kinds = [one for one in call.programs.values() if isinstance(one, DryModule)]
                found.update({f"{title}.{i}" if i > 1 else title: one for i, one in enumerate(kinds, 1)})
        order = [id(program) for program in self._finished]
        return dict(sorted(found.items(), key=lambda item: order.index(id(item[1].program))))

    def _whole_on(self, main: Device) -> Device:
        """The host: what cannot be traced must really run to say what it returns."""
        return self.rig.host

    def _finish(self, component: Component, traced: Program, module: nn.Module) -> CompiledModule:
        compiled = super()._finish(component, traced, module)
        program = compiled.program
        self._finished.append(program)
        component.assigned.note(module, program, planning=True)
        return DryModule(program, compiled.rig, ProgramWeights.of_module(module, program), traced)


class DryModule(CompiledModule):
    """A compiled module that answers each call with zeros."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns zeros in the module's own structure; raises CallError for a call that it was not compiled for."""
        self.program.signature.flatten(args, kwargs)
        return zeros_of(self.program)


def zeros_of(program: Program) -> Any:
    """What a program returns, in the module's own structure, with nothing but zeros in it."""
    leaves = program.output.args[0]
    assert isinstance(leaves, (tuple, list))
    return program.signature.unflatten([_zeros(leaf) if isinstance(leaf, Node) else leaf for leaf in leaves])


def _zeros(node: Node) -> torch.Tensor:
    (kind,) = tensors_of(node)
    return torch.zeros(kind.sizes, dtype=kind.dtype)

"""Refuses modules with weights that no program reads, or that no device but their own takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ...compiler.devices.device import Device
from ...compiler.errors import WeightError
from ...compiler.frontend.refusals import foreign_library
from ...runtime.devices.wrapped import is_wrapped


def refuse_unmovable(module: nn.Module, devices: Sequence[Device]) -> None:
    """Raises WeightError for a weight that cannot be brought to these devices as it is.

    What holds tensors of PyTorch is brought by these. Of other classes some lose what they know of their numbers with
    ``detach()``, and none has kernels on simulated devices. On the host alone nothing is moved.
    """
    refuse_sparse(module)
    away = [device for device in devices if not device.is_host]
    for name, weight in (*module.named_parameters(), *module.named_buffers()) if away else ():
        if weight.is_quantized:
            raise WeightError(
                f"{name} of {type(module).__name__} has the dtype {weight.dtype}, which does not go to {away[0]}: "
                "leave it on cpu, or load the component without, and give a file of its quantized weights, as dovetail "
                "convert --type q8_0 makes it (weights=…)"
            )
        library = foreign_library(weight)
        if not library or is_wrapped(weight):
            continue
        if type(weight.detach()) is not type(weight) or any(device.is_simulated for device in away):
            raise WeightError(
                f"{name} of {type(module).__name__} is a {type(weight).__name__} of {library}, which does not go to "
                f"{away[0]}: leave it on cpu, or load the component without, and give a file of its quantized weights, "
                "as dovetail convert --type q8_0 makes it (weights=…)"
            )


def refuse_sparse(module: nn.Module) -> None:
    """Raises WeightError for a weight that has no memory of its own, as a sparse one."""
    for name, weight in (*module.named_parameters(), *module.named_buffers()):
        if weight.layout is not torch.strided:
            raise WeightError(
                f"{name} of {type(module).__name__} has the layout {weight.layout}, which no program reads: make it "
                "dense (to_dense()), or compile without this component"
            )

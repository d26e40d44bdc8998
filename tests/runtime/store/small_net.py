"""A net with each kind of weight, and the same one with its weights in a file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from dovetail.compiler.spec.residency import Residency
from dovetail.runtime.store.origins import origins_of
from dovetail.runtime.store.store import Store
from dovetail.weights.files import open_weights


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.BatchNorm1d(3))


def in_a_file(real: nn.Module, file: Path, residency: Residency = Residency.DEVICE) -> tuple[nn.Sequential, Store]:
    """The net without data, and what holds its weights, which are those of a real one, in a file."""
    save_file(real.state_dict(), file)
    with torch.device("meta"):
        net = small_net()
    store = Store()
    store.add(net, origins_of(open_weights(file)), residency)
    return net, store

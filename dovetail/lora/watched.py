"""Parameters of adapters whose every write can be counted, also one through ``.data``, which peft's hotswap uses."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

_FACTS = operator.attrgetter("_version", "requires_grad")


class Watched(nn.Parameter):
    """A parameter that gives out as ``data`` what shares its count of writes: PyTorch's own ``data`` has another."""

    @property
    def data(self) -> torch.Tensor:
        """Its numbers, without gradients."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        nn.Parameter.data.__set__(self, value)  # type: ignore[attr-defined]
        torch.autograd.graph.increment_version(self)

    @property
    def memory(self) -> int:
        """What tells its memory from any other."""
        return self.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        copied = nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
        return memo.setdefault(id(self), copied)  # type: ignore[no-any-return]


def watch(tensor: torch.Tensor) -> bool:
    """Has an ordinary parameter count its writes from now on; says whether they are counted.

    Those of tensors that were made in inference mode are not.
    """
    if type(tensor) is nn.Parameter and not tensor.is_inference():
        tensor.__class__ = Watched
    return type(tensor) is Watched


def unwatch(tensor: torch.Tensor) -> None:
    """Makes a parameter an ordinary one again."""
    if type(tensor) is Watched:
        tensor.__class__ = nn.Parameter  # type: ignore[assignment]


def version_of(tensor: torch.Tensor) -> Hashable:
    """Differs after a tensor was written, or is another one; it is watched from now on, as far as it can be."""
    if type(tensor) is Watched or watch(tensor):
        return id(tensor), _FACTS(tensor)
    return unwatched_version(tensor)


def unwatched_version(tensor: torch.Tensor) -> Hashable:
    """Differs after a tensor was written in a way that PyTorch counts, or is another one."""
    written = 0 if tensor.is_inference() else tensor._version
    return id(tensor), written, tensor.data_ptr(), tensor.requires_grad

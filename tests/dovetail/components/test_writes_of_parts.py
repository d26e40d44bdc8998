"""Modules that run by their parts and write weights of parts which they do not call, or ask where these are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import dovetail

from .small_pipeline import WIDTH, Block, Model, Pipeline
from .test_reads import BACKENDS, Gamma


class WithGamma(Block):
    """A block with a part that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Gamma()


class Root(Model):
    """Does something with a part of its last block, and with what blocks compute."""

    way: Callable[[Root, Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(torch.from_numpy(x.cpu().numpy()).to(x.device))
        return super().forward(y * self.way(y))

    @property
    def norm(self) -> Gamma:
        """A part of the last block, which lies on the last device."""
        found: Gamma = self.blocks[-1].norm
        return found


def in_place(root: Root, x: Tensor) -> Tensor:
    held, before = root.norm.gamma, root.norm.gamma * 1
    held.mul_(0.5)
    root.norm.gamma += x.mean(0)
    return before * held + root.norm.gamma


def through_views(root: Root, x: Tensor) -> Tensor:
    root.norm.gamma[0] = 0.25
    root.norm.gamma.view(-1)[1:3].mul_(0.5)
    root.norm.gamma.detach()[4:].copy_(x.mean(0)[4:])
    return root.norm.gamma


def through_data(root: Root, x: Tensor) -> Tensor:
    root.norm.gamma.data.mul_(0.5)
    before = root.norm.gamma * 1
    root.norm.gamma.data = x.mean(0) + before
    return before + root.norm.gamma


def as_output(root: Root, x: Tensor) -> Tensor:
    torch.add(x.mean(0), 1, out=root.norm.gamma)
    return root.norm.gamma


def of_a_part_that_is_called(root: Root, x: Tensor) -> Tensor:
    bias, weight = root.blocks[-1].up.bias, root.blocks[-1].down.weight
    before = bias[:WIDTH] + 1
    bias.mul_(0.5)
    weight.data.mul_(2)
    return before + bias[:WIDTH]


def by_another_parameter(root: Root, x: Tensor) -> Tensor:
    root.norm.gamma = nn.Parameter(root.norm.gamma * 0.5 + x.mean(0))
    return root.norm.gamma


def asked_for_its_device(root: Root, x: Tensor) -> Tensor:
    gamma = root.norm.gamma
    return x.to(gamma.device) * gamma + torch.ones(WIDTH, device=gamma.device) * (gamma.is_cpu == x.is_cpu)


def within_vmap(root: Root, x: Tensor) -> Tensor:
    made: Tensor = torch.func.vmap(lambda row: row * root.norm.gamma)(x)
    return made


WAYS = (
    in_place, through_views, through_data, as_output, of_a_part_that_is_called, by_another_parameter,
    asked_for_its_device, within_vmap,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.few(6)
@pytest.mark.parametrize(("backend", "asked"), BACKENDS[1:3])
@pytest.mark.parametrize("way", WAYS)
def test_a_part_that_is_not_called_is_written_and_asked_as_in_eager(
    way: Callable[[Root, Tensor], Tensor], backend: str, asked: dict[str, str]
) -> None:
    torch.manual_seed(0)
    model = Root(WithGamma).eval()
    model.__dict__["way"] = way.__get__(model)
    eager, x = copy.deepcopy(model), torch.randn(2, WIDTH)
    eager.__dict__["way"] = way.__get__(eager)
    pipe = Pipeline(model)
    dovetail.compile_pipeline(pipe, f"diffusion={backend}", **asked)
    for _ in range(2):
        assert torch.equal(pipe(x), eager(x))
    pipe.dovetail.undo()
    for name, expected in eager.state_dict().items():
        assert torch.equal(model.state_dict()[name], expected), name

"""What the components of a pipeline, and the parts of one, leave each other of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError

pytestmark = pytest.mark.usefixtures("clean_sims")

X = torch.ones(1, 256)


class Coder(nn.Module):
    """Two halves that are called, and so compiled, apart."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))
        self.decoder = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def _encode(self, x: Tensor) -> Tensor:
        for layer in self.encoder:
            x = layer(x)
        return x

    def _decode(self, x: Tensor) -> Tensor:
        for layer in self.decoder:
            x = layer(x)
        return x

    def encode(self, x: Tensor) -> Tensor:
        return self._encode(x)

    def decode(self, x: Tensor) -> Tensor:
        return self._decode(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class Pipe:
    def __init__(self, coder: nn.Module) -> None:
        self.vae = coder

    @property
    def components(self) -> dict[str, Any]:
        return {"vae": self.vae}

    @property
    def _execution_device(self) -> torch.device:
        return torch.device("cpu")


def coder_on(part: float) -> tuple[Coder, Any]:
    coder = Coder().eval().requires_grad_(False)
    each = int(sum(weight.nbytes for weight in coder.parameters()) * part)
    rig = f"sim0={each}B,sim1={each}B"
    return coder, dovetail.compile_pipeline(Pipe(coder), "sim0&sim1", rig=rig)


@pytest.mark.fifth
def test_what_one_part_of_a_component_occupies_is_not_offered_to_another() -> None:
    coder, pipe = coder_on(0.3)
    coder.encode(X)
    with pytest.raises(DoesNotFitError, match=r"Coder needs .* of weights .*1\.0 MiB are held by other"):
        coder.decode(X)
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_two_parts_of_a_component_that_fit_beside_each_other_both_run() -> None:
    coder, pipe = coder_on(0.55)
    with torch.no_grad():
        coder.decode(coder.encode(X))
        coder.decode(torch.ones(2, 256))
    pipe.dovetail.undo()

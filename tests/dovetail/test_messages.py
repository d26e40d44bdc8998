from __future__ import annotations

import diffusers
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import TraceError, UsageError, WeightError
from dovetail.compiler.frontend.trace import trace


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Pipe(diffusers.DiffusionPipeline):  # type: ignore[misc]
    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.register_modules(unet=unet)


def test_a_bare_tensor_for_the_arguments_of_a_call_is_told() -> None:
    with pytest.raises(UsageError, match=r"one tensor: give them in a tuple, such as \(x,\)"):
        dovetail.compile(Blocks(), torch.ones(1, 4), backend="cpu")  # type: ignore[arg-type]


def test_a_component_that_diffusers_quantized_is_told_with_the_way_out() -> None:
    from diffusers.quantizers.gguf.utils import GGUFParameter

    module = Blocks()
    module.blocks[1].weight = GGUFParameter(torch.zeros(4, 34, dtype=torch.uint8), requires_grad=False, quant_type=8)
    with pytest.raises(TraceError, match=r"quantized by diffusers \(blocks\.1\.weight is a GGUFParameter\).*weights="):
        trace(module, (torch.ones(1, 4),))


@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_weights_that_another_library_quantized_are_refused_by_simulated_devices_with_the_way_out(backend: str) -> None:
    from diffusers.quantizers.gguf.utils import GGUFParameter

    module = Blocks().eval()
    module.blocks[1].weight = GGUFParameter(torch.zeros(4, 34, dtype=torch.uint8), requires_grad=False, quant_type=8)
    with pytest.raises(WeightError, match=r"blocks\.1\.weight of Blocks is a GGUFParameter.*weights="):
        dovetail.compile_pipeline(Pipe(module), backend)
    assert type(module.blocks[1].weight) is GGUFParameter
    assert not hasattr(module, "_hf_hook")


@pytest.mark.parametrize("before", [True, False])
def test_a_component_that_torch_compiles_too_is_compiled_all_the_same(before: bool) -> None:
    module, x = Blocks().eval(), torch.randn(1, 4)
    with torch.no_grad():
        expected = module(x)
        if before:
            module.compile(backend="eager")
        pipe = dovetail.compile_pipeline(Pipe(module), "sim0&sim1")
        if not before:
            module.compile(backend="eager")
        assert torch.equal(module(x), expected)
        assert len(pipe.dovetail.programs["unet"]) == 1
        assert module._compiled_call_impl is not None


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such thing")


class Looks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_the_advice_for_what_cannot_be_traced_fits_its_cause() -> None:
    with pytest.raises(TraceError, match="independent of tensor values"):
        trace(Looks(), (torch.ones(1),))
    with pytest.raises(TraceError, match="no such thing") as caught:
        trace(Breaks(), (torch.ones(1),))
    assert "independent of tensor values" not in str(caught.value)

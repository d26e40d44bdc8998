"""Law 7 over real classes: wherever weights rest and whatever the budget, the predicted peak is the measured one."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.residency import Residency
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights
from testbed.zoo.everything import TINY
from testbed.zoo.row_split import WIDE
from tests.cases import drawn
from tests.measured import least, measured, predicted

CLASSES = [
    "FluxTransformer2DModel-guided", "SD3Transformer2DModel", "QwenImageTransformer2DModel", "ZImageTransformer2DModel",
    "PixArtTransformer2DModel", "SanaTransformer2DModel", "AuraFlowTransformer2DModel", "LuminaNextDiT2DModel",
    "CogView4Transformer2DModel", "HunyuanDiT2DModel", "WanTransformer3DModel", "HunyuanVideoTransformer3DModel",
    "LTXVideoTransformer3DModel", "CogVideoXTransformer3DModel", "UNet2DConditionModel", "UNet2DConditionModel-xl",
    "UNetSpatioTemporalConditionModel", "ControlNetModel", "AutoencoderKL-decode", "T5EncoderModel",
]  # fmt: skip
EVERY = [*((name, "layer") for name in CLASSES), *((name, "row") for name in CLASSES if name in WIDE)]
"""By rows those that have matrices large enough."""
CASES = drawn(EVERY, len(EVERY) // 4)
ROOMY = Rig.of(sim0=2**30, sim1=2**30)


class Case:
    """A class that was traced once, its file, and what is measured of it under a rig."""

    def __init__(self, module: nn.Module, call: dict[str, Any], folder: Path) -> None:
        self.module, self.call = module, call
        self.traced = trace(module, (), call)
        self.file = folder / "model.safetensors"
        save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, self.file)

    def compiled(self, rig: Rig, mode: str, rests: Residency, keep: bool, needs: dict[str, int]) -> CompiledModule:
        program: Program = self.traced.copy()
        program.rig = rig
        program.keep(rests)
        passes = default_passes((1.0, 1.0), split_mode=mode, keep=keep)
        program = PassManager(passes, [least(needs)]).run(program)
        of_files = rests is Residency.DISK
        weights = (
            ProgramWeights.of_files(WeightIndex.of_file(self.file), program, module=self.module)
            if of_files
            else ProgramWeights.of_module(self.module, program)
        )
        return CompiledModule(program, rig, weights)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_predicted_peak_is_the_measured_one(name: str, mode: str, tmp_path: Path) -> None:
    gc.collect()
    sim.enable({0: 2**34, 1: 2**34})
    table = WIDE if mode == "row" else TINY
    case = Case(*table[name].make(torch.float32), tmp_path)
    count = 0
    for rests in Residency:
        needs: dict[str, int] = {}
        roomy = case.compiled(ROOMY, mode, rests, False, needs)
        most = predicted(roomy.program)
        assert measured(roomy, (), case.call) == most, f"{rests}: with all room"
        for part in (0.0, 0.5, 1.0):
            sizes = {key: low + int(part * max(0, most[key] - low)) for key, low in needs.items()}
            rig = Rig.of(**sizes)
            module = case.compiled(rig, mode, rests, rests is not Residency.DEVICE, {})
            expected = predicted(module.program)
            peaks = measured(module, (), case.call)
            assert peaks == expected, f"{rests}: with {sizes}"
            assert all(peaks[key] <= sizes[key] for key in peaks), f"{rests}: more than {sizes}"
            count += 1
    assert count == 9

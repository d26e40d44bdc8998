"""Adapters where weights come and go: their matrices come with the blocks they belong to, in planned bytes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines

from .tiny_loras import save_lora

ON_DEVICE, FIRST = "sim0=64MiB", "diffusion=sim0,te=cpu,vae=cpu"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A saved pipeline, a LoRA about as large as its transformer's blocks, and a call."""
    folder = tmp_path_factory.mktemp("streamed")
    pipe, call = tiny_pipelines.flux()
    pipe.save_pretrained(folder)
    targets = ["to_q", "to_k", "to_v", "to_out.0", "proj_mlp", "proj_out", "x_embedder"]
    return folder, save_lora(pipe, folder / "lora", 1, 32, ("transformer",), target_modules=targets), call


pytestmark = pytest.mark.usefixtures("clean_sims")


def latents(pipe: Any, call: dict[str, Any], **more: Any) -> torch.Tensor:
    given = {**call, "num_inference_steps": 2, **more, "output_type": "latent"}
    return pipe(**given, generator=torch.Generator().manual_seed(0)).images.cpu()  # type: ignore[no-any-return]


def measured(pipe: Any, call: dict[str, Any], **more: Any) -> tuple[torch.Tensor, int, int]:
    """What a second call gives, its peak on the device, and the peak that was planned for it."""
    latents(pipe, call, **more)
    gc.collect()
    sim.reset_peak(0)
    found = latents(pipe, call, **more)
    given = {**call, "num_inference_steps": 2, **more, "output_type": "latent"}
    plan = pipe.dovetail.plan(**given, generator=torch.Generator().manual_seed(0))
    (device,) = (one for one in plan.peaks() if one.is_simulated)
    return found, sim.stats(0).peak, max(plan.peak_of(one, device).total for one in plan.calls)


def lora_bytes(pipe: Any) -> int:
    return sum(one.nbytes for name, one in pipe.transformer.named_parameters() if ".lora_" in name)


def _is_matrix(name: str) -> bool:
    return ".lora." in name and not name.endswith(".scale")


@pytest.mark.slow
@pytest.mark.parametrize("rests", ["cpu", "disk"])
def test_a_lora_comes_with_its_blocks_within_the_planned_bytes(rests: str, made: Any) -> None:
    folder, lora, call = made
    eager, _ = tiny_pipelines.flux()
    eager.load_lora_weights(lora, adapter_name="one")
    budget = int(0.75 * sum(one.nbytes for one in eager.transformer.parameters()))
    pipe = dovetail.load_pipeline(
        folder, FIRST, params_backend=f"diffusion={rests}", max_vram=f"sim0={budget}B", rig=ON_DEVICE
    )
    with pipe.dovetail:
        bare, peak, planned = measured(pipe, call)
        shown = peak - planned  # by which libraries tell where a module is whose weights are in files
        assert shown in (0, 4)
        pipe.load_lora_weights(lora, adapter_name="one")
        assert lora_bytes(pipe) > budget / 3
        for scale in (1.0, 0.3):
            eager.set_adapters("one", scale)
            pipe.set_adapters("one", scale)
            found, peak, planned = measured(pipe, call)
            assert torch.equal(found, latents(eager, call))
            assert peak == planned + shown <= budget
        (program,) = {one.program for one in pipe.dovetail.programs["transformer"][-1:]}
        loads = [one for one in program.schedule if isinstance(one, Load) and any(map(_is_matrix, one.weights))]
        assert {Lifetime.STAGE} <= {one.lifetime for one in loads} <= {Lifetime.STAGE, Lifetime.PHASE}
        pipe.unload_lora_weights()
        assert torch.equal(latents(pipe, call), bare)

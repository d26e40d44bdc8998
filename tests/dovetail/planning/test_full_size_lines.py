"""Lines that experts type for FLUX.1-dev on cards of 16 and 10 GB are accepted, by phases or by streaming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline
from testbed.folders import flux_folder
from tests.cases import drawn

EXPERT = {"backend": "te=cuda1,diffusion=cuda0+cuda1,vae=cuda0", "params_backend": "te=cpu"}
LINES = [EXPERT, {**EXPERT, "tensor_split": "diffusion=64:36"}, {"backend": "cuda0+cuda1", "tensor_split": "3,1"}]
RIG = "cuda0=16GiB@RTX 4080,cuda1=10GiB@RTX 3080,cpu=64GiB"


@pytest.mark.slow
@pytest.mark.parametrize("line", drawn(LINES, 1))
def test_a_line_that_fits_by_phases_or_by_streaming_is_accepted_as_it_is_typed(
    line: dict[str, str], tmp_path: Path
) -> None:
    folder = flux_folder(tmp_path / "flux")
    for file in folder.glob("*/*.safetensors"):
        file.unlink()
    pipe, origins = open_pipeline(folder, dtype=torch.bfloat16, needs_files=False)
    dry = DryPipeline(pipe, {**line, "rig": RIG}, origins=origins)
    generation = dry("a cat", num_inference_steps=2, height=1024, width=1024)
    assert generation is not None
    account = dry.account(generation)
    assert all(one["peak"] <= one["free"] <= one["total"] - one["reserved"] for one in account.devices().values())
    (transformer,) = [part for part in account.parts if part.title == "transformer"]
    assert [row.device.name for row in transformer.rows] == ["cuda0", "cuda1"]

"""Planning a model that is larger than this machine's memory."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import FluxTransformer2DModel

from dovetail import demo

SIZE = {"num_layers": 19, "num_single_layers": 38, "num_attention_heads": 24, "attention_head_dim": 128}
ROOT = Path(__file__).resolve().parents[3]
WATCHED = "import resource as r; print(r.getrusage(r.RUSAGE_CHILDREN).ru_maxrss)"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The demo with a transformer of FLUX's full size, in a file that has its length but no contents."""
    folder = Path(shutil.copytree(demo.folder(), tmp_path / "large"))
    config = json.loads((folder / "transformer/config.json").read_text()) | SIZE | {"axes_dims_rope": [16, 56, 56]}
    (folder / "transformer/config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        weights = FluxTransformer2DModel.from_config(config).state_dict()
    header, end = {}, 0
    for name, tensor in weights.items():
        start, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with next((folder / "transformer").glob("*.safetensors")).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


@pytest.mark.slow
def test_a_plan_needs_neither_the_weights_nor_the_devices(large: Path) -> None:
    devices = [
        "--backend",
        "diffusion=cuda0&cuda1,te=cpu,vae=cuda1",
        "--rig",
        "cuda0=16GiB,cuda1=12GiB",
        "--size",
        "1024",
    ]
    command = [sys.executable, "-m", "dovetail", "compile", str(large), *devices, "--json"]
    code = f"import subprocess; subprocess.run({command!r}, check=True); {WATCHED}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    plans, end = json.JSONDecoder().raw_decode(told.stdout)
    held = plans["transformer"]["weight_bytes"]
    assert sum(held.values()) > 20 * 2**30
    assert held["cuda0"] < 16 * 2**30
    assert held["cuda1"] < 12 * 2**30
    assert int(told.stdout[end:]) < 2 * 2**20, "more than 2 GiB of memory"

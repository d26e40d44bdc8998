"""Weight files, where they rest, and adapters of what is split by batch or in space: near float64, in planned bytes.

So are those of what groups of devices compute.

`tests/dovetail/test_matrix.py` has the same of tensor and sequence split.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import gguf
import pytest
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError
from dovetail.convert import plan_conversion
from dovetail.passes.analysis import scratch
from dovetail.passes.states.states import split_mode_of
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import Made, paint, picture, sd_parts, vae, wide_flux
from tests.cases import drawn, slow_but

RESTS = ("auto", "cpu", "disk")
FILES = ("safetensors", "q8_0", "q4_k")
LORAS = ("none", "at_runtime", "merged", "swapped")
SHARES = ("1:1", "3:2")
CALLS = range(5)
WORSE = 1.5
"""So many times as far from float64 as eager results may be."""


def wide_sd() -> Made:
    """Stable Diffusion 1.5 whose attention is wide enough to be packed in any type."""
    parts = {**sd_parts(block_out_channels=(64, 256)), "vae": vae(block_out_channels=(32, 256))}
    return diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False), picture()


def noise(call: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5 + call)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def of_flux(call: int) -> dict[str, Any]:
    hidden, encoder, pooled = noise(call, (2, 16, 16), (2, 8, 32), (2, 32))
    return {
        "hidden_states": hidden,
        "encoder_hidden_states": encoder,
        "pooled_projections": pooled,
        "timestep": torch.tensor([0.6, 0.6]),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }


def of_unet(call: int) -> dict[str, Any]:
    sample, encoder = noise(call, (2, 4, 8, 8), (2, 77, 32))
    return {"sample": sample, "timestep": torch.tensor(7), "encoder_hidden_states": encoder, "return_dict": False}


def of_decoder(call: int) -> dict[str, Any]:
    return {"z": noise(call, (1, 4, 12, 8))[0], "return_dict": False}


@dataclass(frozen=True)
class Subject:
    """A component of a pipeline, a call of it, and which of its layers adapters are for."""

    make: Callable[[], Made]
    part: str
    role: str
    mode: str
    call: Callable[[int], dict[str, Any]]
    targets: tuple[str, ...]
    method: str = "forward"
    devices: int = 2

    def run(self, module: nn.Module, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """What calls yield in a dtype."""
        model = module if dtype == torch.float32 else copy.deepcopy(module).to(dtype)
        function = model if self.method == "forward" else getattr(model, self.method)
        with torch.no_grad():
            return [function(**{name: _in(value, dtype) for name, value in self.call(one).items()})[0] for one in CALLS]


def _in(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


ATTENTION = ("to_q", "to_v", "to_out.0")
FLUX = (wide_flux, "transformer", "diffusion")
SUBJECTS = {
    "flux": Subject(wide_flux, "transformer", "diffusion", "batch", of_flux, (*ATTENTION, "proj_mlp", "proj_out")),
    "unet": Subject(wide_sd, "unet", "diffusion", "batch", of_unet, (*ATTENTION, "ff.net.0.proj", "conv1")),
    "vae": Subject(wide_sd, "vae", "vae", "spatial", of_decoder, (*ATTENTION, "conv1"), "decode"),
    "flux in groups": Subject(*FLUX, "batch+tensor", of_flux, (*ATTENTION, "proj_mlp", "proj_out"), devices=4),
    "unet in groups": Subject(
        wide_sd, "unet", "diffusion", "batch+sequence", of_unet, (*ATTENTION, "conv1"), devices=4
    ),
}
CELLS = list(itertools.product(SUBJECTS, RESTS, FILES, LORAS, SHARES))
QUICK = (
    ("unet", "auto", "q8_0", "none", "1:1"),
    ("flux", "auto", "q4_k", "at_runtime", "3:2"),
    ("unet", "cpu", "safetensors", "swapped", "3:2"),
    ("vae", "disk", "safetensors", "none", "1:1"),
    ("vae", "auto", "q8_0", "at_runtime", "3:2"),
    ("vae", "cpu", "safetensors", "merged", "1:1"),
    ("vae", "disk", "q4_k", "swapped", "1:1"),
    ("flux in groups", "cpu", "q4_k", "at_runtime", "1:1"),
    ("unet in groups", "auto", "safetensors", "merged", "3:2"),
)

ASKED = slow_but(QUICK, [*QUICK, *drawn([cell for cell in CELLS if cell not in QUICK], 8)])


@pytest.fixture(autouse=True)
def _sims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that do not count what a kernel takes to unpack a weight; nor do plans, then."""
    gc.collect()
    sim.enable()
    monkeypatch.setattr(scratch, "_unpacked", lambda program, node, device: 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a subject: a saved pipeline, and its component's weights in GGUF files beside it."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name], subject = tmp_path_factory.mktemp(name), SUBJECTS[name]
            subject.make()[0].save_pretrained(made[name])
            for kind in FILES[1:]:
                plan_conversion(made[name] / subject.part, made[name] / f"{kind}.gguf", kind).run()
        return made[name]

    return folder_of


def adapter(subject: Subject, seed: int) -> dict[str, torch.Tensor]:
    """The weights of an adapter."""
    module = getattr(subject.make()[0], subject.part)
    module.add_adapter(
        LoraConfig(r=4, lora_alpha=8, target_modules=list(subject.targets), init_lora_weights=False), "a"
    )
    generator = torch.Generator().manual_seed(seed)
    state = get_peft_model_state_dict(module, adapter_name="a")
    return {f"{subject.part}.{name}": torch.randn(t.shape, generator=generator) * 0.05 for name, t in state.items()}


def put_on(module: Any, subject: Subject, way: str, run: Callable[[], object] = lambda: None) -> None:
    """Has adapters count in a way; swapped are those with which a module ``run`` before."""
    if way == "none":
        return
    if way == "swapped":
        module.load_lora_adapter(adapter(subject, 12), prefix=subject.part, adapter_name="one")
        run()
    swaps = {"hotswap": True} if way == "swapped" else {}
    module.load_lora_adapter(adapter(subject, 11), prefix=subject.part, adapter_name="one", **swaps)
    if way == "merged":
        module.fuse_lora()


def in_eager(subject: Subject, kind: str, way: str, folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What eager yields in float32 and in float64."""
    module = getattr(subject.make()[0], subject.part)
    if kind != "safetensors":
        found = gguf.GGUFReader(folder / f"{kind}.gguf").tensors
        shapes = {name: weight.shape for name, weight in module.state_dict().items()}
        state = {one.name: torch.tensor(gguf.dequantize(one.data, one.tensor_type)) for one in found}
        module.load_state_dict({name: numbers.reshape(shapes[name]) for name, numbers in state.items()})
    exact = copy.deepcopy(module)
    put_on(exact, subject, "none" if way == "none" else "at_runtime")
    put_on(module, subject, way)
    return subject.run(module), subject.run(exact, torch.float64)


def error(results: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The root of the mean square of what is off, as a part of that of what is exact."""
    found, right = torch.cat([one.flatten() for one in results]), torch.cat([one.flatten() for one in exact])
    return float((found.cpu().double() - right).norm() / right.norm())


@pytest.mark.slow
@pytest.mark.few(2, quick=1)
@pytest.mark.parametrize(
    ("name", "rest", "kind", "way", "shares"),
    slow_but(QUICK, [*QUICK, *drawn([cell for cell in CELLS if cell not in QUICK], 8)]),
)
def test_each_cell_agrees_with_float64_in_the_bytes_that_were_planned(
    folders: Callable[[str], Path], name: str, rest: str, kind: str, way: str, shares: str
) -> None:
    subject, folder = SUBJECTS[name], folders(name)
    several = "&".join(f"sim{index}" for index in range(subject.devices))
    backend = {"te": "sim0", "diffusion": "sim0", "vae": "sim0", subject.role: several}
    before = [sim.stats(index).in_use for index in range(subject.devices)]
    pipe = dovetail.load_pipeline(
        folder,
        backend=backend,
        split_mode={subject.role: subject.mode},
        tensor_split={subject.role: ":".join([shares] * (subject.devices // 2))},
        params_backend={subject.role: rest},
        weights={} if kind == "safetensors" else {subject.part: folder / f"{kind}.gguf"},
    )
    with pipe.dovetail as handle:
        module = getattr(pipe, subject.part)
        if way == "merged" and kind != "safetensors":
            with pytest.raises(UsageError, match="quantized"):
                put_on(module, subject, way)
            return
        put_on(module, subject, way, partial(subject.run, module))
        results = subject.run(module)
        eager, exact = in_eager(subject, kind, way, folder)
        assert error(results, exact) <= max(WORSE * error(eager, exact), torch.finfo(torch.float32).eps)
        assert {split_mode_of(one.program) for one in handle.programs[subject.part]} == {subject.mode}
        del results
        check_peaks(pipe, handle, subject, before)


def check_peaks(pipe: Any, handle: Any, subject: Subject, before: list[int]) -> None:
    """A picture takes of each device what was planned."""
    call = {**subject.make()[1], "num_images_per_prompt": 2}
    paint(pipe, call)
    planned = handle.plan(**call)
    gc.collect()
    for index in range(subject.devices):
        sim.reset_peak(index)
    paint(pipe, call)
    peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
    assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks


def test_the_quick_cells_bring_every_setting() -> None:
    settings = (SUBJECTS, RESTS, FILES, LORAS, SHARES)
    assert [set(one) for one in zip(*QUICK, strict=True)] == list(map(set, settings))

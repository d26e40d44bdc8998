"""Full-size models on a card: bits, memory and seconds, with weights resident, streamed within budgets, and packed.

    python -m benchmarks.cards [flux-dev] [sdxl-unet-2] [dec-flux] [--card cuda0] [--budgets 8,12,16]
                               [--packed q8_0,q4_k] [--others] [--calls 5] [--folder DIR]

Models are those of `testbed.zoo`, in bfloat16 with random weights, which come out of the host's memory. A row says:

- *bits*: whether a call returns what eager returned on the same card, `torch.equal`; of packed weights, whether two
  calls are equal;
- *first*: seconds of the first call, for which weights are loaded or pinned;
- *call*: the median of the calls after it, each waited for; *predicted*: what the schedule is predicted to take at the
  speeds that were measured on this card; *off*: how far that lies off;
- *peak*: the most that PyTorch's allocator had in use in these calls, weights with it, in GiB, beside the *planned*
  peak; *held*: the most that it held of the card, in use or not, for which a budget is the bound.

`--others` measures diffusers' group offloading (by leaves, with a stream) and accelerate's `cpu_offload` too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import dovetail
from dovetail.compiler.checkpoints.quantized_types import block_of, packed_shape
from dovetail.compiler.errors import DovetailError
from dovetail.fitting.decide import speeds_here
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.simulate.timeline import timeline
from dovetail.runtime.devices.accelerator import Accelerator, accelerator_of
from dovetail.runtime.packing import pack
from testbed.gpu_checks import torch_device
from testbed.zoo.full_size_pipelines import PARTS

GIB = 2**30
DEFAULT = ("flux-dev", "sdxl-unet-2", "dec-flux")
Call = dict[str, Any]
Run = Callable[[], Any]


@dataclass
class Row:
    """What was measured of one way to run a model; None where nothing was predicted or compared."""

    way: str
    first: float
    seconds: float
    peak: int
    held: int
    bits: bool | None = None
    predicted: float | None = None
    planned: int | None = None

    def __str__(self) -> str:
        bits = "" if self.bits is None else "equal" if self.bits else "**differ**"
        predicted = off = planned = ""
        if self.predicted is not None and self.planned is not None:
            predicted, off = f"{self.predicted:.3f}", f"{self.predicted / self.seconds - 1:+.0%}"
            planned = f"{self.planned / GIB:.2f}"
        return (f"| {self.way} | {bits} | {self.first:.2f} | {self.seconds:.3f} | {predicted} | {off} "
                f"| {self.peak / GIB:.2f} | {planned} | {self.held / GIB:.2f} |")  # fmt: skip


def filled(name: str, device: torch.device) -> tuple[nn.Module, Call]:
    """A model with random weights in the host's memory, and a call of it on a device."""
    module, call = PARTS[name].make()
    torch.manual_seed(0)
    for child in module.modules():
        for key, weight in child._parameters.items():
            if weight is not None and weight.is_meta:
                drawn = torch.randn(weight.shape, dtype=weight.dtype, device=device)
                child._parameters[key] = nn.Parameter((drawn * _scale(weight)).cpu(), requires_grad=False)
    return module, tree_map(lambda one: _given(one, device), call)


def _scale(weight: Tensor) -> float:
    return 0.02 if weight.ndim < 2 else float(weight[0].numel()) ** -0.5


def _given(one: Any, device: torch.device) -> Any:
    if not isinstance(one, Tensor):
        return one
    if one.dtype.is_floating_point:
        return torch.randn(one.shape, dtype=one.dtype, device=device)
    return torch.ones(one.shape, dtype=one.dtype, device=device)


class Bench:
    """Runs one model in several ways on a card."""

    def __init__(self, name: str, card: str, calls: int) -> None:
        self.card, self.calls = card, calls
        self.there: Accelerator = accelerator_of(torch_device(card))
        self.module, self.call = filled(name, self.there.device)
        self.expected = self.eager()

    def first_of(self, found: Any) -> Tensor:
        """The first tensor of what a model returned, in the host's memory."""
        while not isinstance(found, Tensor):
            found = found[0]
        return found.cpu()

    def measure(self, way: str, run: Run) -> tuple[Row, list[Tensor]]:
        """Calls once, and then so many times; returns the row, and the results of the first and the last call."""
        self.there.empty_cache()
        self.there.reset_peak()
        before, times, results = self.there.memory()[0], [], []
        for _ in range(1 + self.calls):
            self.there.synchronize()
            started = time.perf_counter()
            found = run()
            self.there.synchronize()
            times.append(time.perf_counter() - started)
            results.append(self.first_of(found))
            del found
        peak, held = self.there.memory()[1] - before, self.there.reserved_peak()
        return Row(way, times[0], statistics.median(times[1:]), peak, held), [results[0], results[-1]]

    def eager(self) -> Tensor:
        """What the module returns on the card, all of it there; prints its row."""
        self.module.to(self.there.device)
        weights = self.there.memory()[0]
        with torch.inference_mode():
            row, results = self.measure("eager", lambda: self.module(**self.call))
        self.module.to("cpu")
        row.peak += weights
        row.bits = torch.equal(*results)
        print(row, flush=True)
        return results[0]

    def compiled(self, way: str, is_packed: bool = False, **more: Any) -> None:
        """Prints the row of the module as it is compiled with some options."""
        program = dovetail.compile(self.module, kwargs=self.call, backend=self.card, **more)
        with torch.inference_mode():
            row, results = self.measure(way, lambda: program(**self.call))
        row.bits = torch.equal(*results) and (is_packed or torch.equal(results[0], self.expected))
        usage = {device.name: one for device, one in simulate(program.program).items()}
        row.planned = usage[self.card].total
        row.predicted = timeline(program.program, speeds_here(program.program.rig)).seconds
        program.unload()
        print(row, flush=True)

    def hooked(self, way: str) -> None:
        """Prints the row of the module as another library's hooks run it."""
        with torch.inference_mode():
            row, results = self.measure(way, lambda: self.module(**self.call))
        row.bits = torch.equal(results[0], self.expected) and torch.equal(*results)
        print(row, flush=True)

    def offloaded(self) -> None:
        """The row of accelerate's offloading, which brings each layer's weights and drops them."""
        from accelerate import cpu_offload
        from accelerate.hooks import remove_hook_from_submodules

        cpu_offload(self.module, self.there.device)
        self.hooked("accelerate cpu_offload")
        remove_hook_from_submodules(self.module)

    def grouped(self) -> None:
        """The row of diffusers' offloading, which pins weights and brings the next layer's meanwhile; it stays."""
        from diffusers.hooks import apply_group_offloading

        apply_group_offloading(self.module, self.there.device, offload_type="leaf_level", use_stream=True)
        self.hooked("diffusers group offload")


def packed_file(module: nn.Module, quant: str, folder: Path) -> Path:
    """A GGUF file of a module, its large matrices packed; of each shape one is, and all of the shape have its bytes."""
    import gguf

    file = folder / f"{quant}.gguf"
    writer, made = gguf.GGUFWriter(file, "dovetail"), dict[torch.Size, Any]()
    for name, weight in module.state_dict().items():
        if weight.ndim != 2 or weight.shape[-1] % block_of(quant)[0] or min(weight.shape) < 256:
            writer.add_tensor(name, weight.float().numpy())
            continue
        if weight.shape not in made:
            some = pack(weight[:64].float().numpy(), quant)
            whole = np.resize(some, packed_shape(quant, tuple(weight.shape)))
            made[weight.shape] = np.ascontiguousarray(whole)
        writer.add_tensor(name, made[weight.shape], raw_dtype=gguf.GGMLQuantizationType[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@contextlib.contextmanager
def _said(way: str) -> Iterator[None]:
    """Prints why a row is not there, and goes on."""
    try:
        yield
    except (DovetailError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        print(f"| {way} | {type(error).__name__}: {str(error).splitlines()[0]} |" + " |" * 7, flush=True)
    gc.collect()


def measure(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Prints the table of one model."""
    print(f"\n{name}\n\n| way | bits | first | call | predicted | off | peak | planned | held |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    bench = Bench(name, options.card, options.calls)
    with _said("resident"):
        bench.compiled("resident")
    with _said("all from RAM"):
        bench.compiled("all from RAM", params_backend="cpu")
    for budget in filter(None, options.budgets.split(",")):
        with _said(f"{budget} GiB"):
            bench.compiled(f"{budget} GiB", params_backend="cpu", max_vram=f"{options.card}={budget}GiB")
    for quant in filter(None, options.packed.split(",")):
        file = packed_file(bench.module, quant.upper(), folder)
        with _said(quant):
            bench.compiled(quant, is_packed=True, weights=file)
        file.unlink()
    if options.others:
        with _said("accelerate cpu_offload"):
            bench.offloaded()
        with _said("diffusers group offload"):
            bench.grouped()


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL", help=", ".join(PARTS))
    parser.add_argument("--card", default="cuda0")
    parser.add_argument("--budgets", default="8,12,16", help="in GiB")
    parser.add_argument("--packed", default="q8_0,q4_k")
    parser.add_argument("--others", action="store_true", help="what diffusers and accelerate take, too")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where packed files are written meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.models:
            measure(name, options, Path(folder))


if __name__ == "__main__":
    main()

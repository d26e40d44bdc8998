"""What loading a large component costs in time and in memory, beside reading its file and beside from_pretrained.

    python -m benchmarks.loading [--gib 4] [--rounds 3] [--folder DIR]
    python -m benchmarks.loading --residency disk

Writes a transformer of diffusers in bfloat16 to a safetensors file in a temporary folder, which is removed at the end.
Every variant runs in a fresh process, once a round, with the file in the page cache (warm) and dropped from it (cold):

- *plain read*: `preadv` of the whole file, 64 MiB at a time, into buffers that were allocated and touched before;
- *fresh read*: the same into buffers that are allocated when the clock runs, as a device that has none yet must;
- *read_into*: dovetail's reader, into tensors of a simulated device that were touched before, as staging reuses them;
- *from_pretrained*: diffusers' own loading, in bfloat16, to the CPU;
- *cpu*, *sim0*: a module compiled over the file (`dovetail.compile(..., weights=FILE)`), loaded to the device.

*load* is the time until the weights are where the first call wants them, *first* the time until that call has ended;
both begin when imports, building the module on meta and compiling are done (*compile*, which traces and reads the
header). For from_pretrained they begin before its call, for the reads before the first one. On the CPU weights are
views of the file, of which the first call reads what it uses; so the ratio that counts is that of *first*, with the
same call behind the plain read. A ratio is the median of those of the rounds. *peak* is how far resident memory (VmHWM,
with the pages of the file that are mapped) rose from the beginning to the end of the first call, over the bytes of
weights.

A virtual machine may hand free memory back to its host, and then touching it again is what costs: compare sim0, whose
memory is as fresh, with the fresh read there.

With `--residency disk` (or `cpu`) the component is cut over simulated devices, its weights rest there (*staged*), and
the first call brings those of each segment to its device: *peak* is held against the bytes of the largest segment's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

GIB = 2**30
STEP = 64 * 2**20
FILE = "diffusion_pytorch_model.safetensors"
VARIANTS = ("plain read", "fresh read", "read_into", "from_pretrained", "cpu", "sim0")
Result = dict[str, float]


def make_model(gib: float) -> torch.nn.Module:
    """A transformer on meta in bfloat16, with about so many bytes of weights, nearly all in linear layers."""
    import accelerate
    from diffusers import FluxTransformer2DModel

    heads = 24 if gib >= 1 else 8
    block = 15 * (heads * 128) ** 2 * 2
    with accelerate.init_empty_weights(include_buffers=False):
        model = FluxTransformer2DModel(
            num_layers=1, num_single_layers=max(2, round(gib * GIB / block - 2.4)), num_attention_heads=heads
        )
    return model.to(torch.bfloat16).eval().requires_grad_(False)


def make_call(tokens: int = 16) -> dict[str, Any]:
    """An example call of the transformer, small beside its weights."""
    torch.manual_seed(0)
    return {
        "hidden_states": torch.randn(1, tokens, 64, dtype=torch.bfloat16),
        "encoder_hidden_states": torch.randn(1, 16, 4096, dtype=torch.bfloat16),
        "pooled_projections": torch.randn(1, 768, dtype=torch.bfloat16),
        "timestep": torch.tensor([0.5], dtype=torch.bfloat16),
        "guidance": None,
        "img_ids": torch.zeros(tokens, 3),
        "txt_ids": torch.zeros(16, 3),
        "return_dict": False,
    }


def write_folder(folder: Path, gib: float) -> int:
    """Writes the transformer as save_pretrained would, tensor by tensor; returns the bytes of its weights."""
    model = make_model(gib)
    model.save_config(folder)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in model.state_dict().items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = memoryview((torch.randn(2**20) * 0.02).bfloat16().view(torch.uint8).numpy()).cast("B")
    with (folder / FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, at, len(block)):
            file.write(block[: at - start])
        file.flush()
        os.fsync(file.fileno())
    return at


def drop_from_cache(file: Path) -> None:
    """Takes a file out of the page cache, and no other file."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bring_to_cache(file: Path) -> None:
    """Reads a file once."""
    with file.open("rb", buffering=0) as opened:
        buffer = bytearray(STEP)
        while opened.readinto(buffer):
            pass


class Clock:
    """Times and memory of one variant, from its making on."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again from what is resident now
        self._memory = _status("VmRSS")
        self._start = time.perf_counter()
        self.result: Result = {}

    def lap(self, name: str) -> None:
        """Notes the time so far, and the peak of memory."""
        self.result[name] = time.perf_counter() - self._start
        self.result["peak"] = _status("VmHWM") - self._memory


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


@torch.inference_mode()
def plain_read(folder: Path, fresh: bool) -> Result:
    """Reads the file into touched buffers or fresh ones, then calls a model whose weights these are."""
    from safetensors import safe_open

    size = (folder / FILE).stat().st_size
    with safe_open(folder / FILE, "pt") as opened:  # for the shapes
        shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    model, call = make_model_like(folder), make_call()
    descriptor = os.open(folder / FILE, os.O_RDONLY)
    memory = torch.ones(0 if fresh else size, dtype=torch.uint8)
    clock = Clock()
    memory = torch.empty(size, dtype=torch.uint8) if fresh else memory
    view = memoryview(memory.numpy())
    at = 0
    while at < size:
        at += os.preadv(descriptor, [view[at : at + STEP]], at)
    clock.lap("load")
    at = size - sum(math.prod(shape) for shape in shapes.values()) * 2
    state = {}
    for name in model.state_dict():
        nbytes = math.prod(shapes[name]) * 2
        state[name] = memory[at : at + nbytes].view(torch.bfloat16).view(shapes[name])
        at += nbytes
    model.load_state_dict(state, assign=True)
    model(**call)
    clock.lap("first")
    return clock.result


def make_model_like(folder: Path) -> torch.nn.Module:
    """The transformer of a folder, on meta."""
    import accelerate
    from diffusers import FluxTransformer2DModel

    with accelerate.init_empty_weights(include_buffers=False):
        model = FluxTransformer2DModel.from_config(FluxTransformer2DModel.load_config(folder))
    return model.to(torch.bfloat16).eval().requires_grad_(False)


@torch.inference_mode()
def read_into(folder: Path) -> Result:
    """Fills tensors of a simulated device that are there already, then calls a model whose weights these are."""
    from dovetail.compiler.checkpoints.index import WeightIndex
    from dovetail.runtime import sim
    from dovetail.runtime.store.reader import WeightReader

    sim.enable()
    index, reader = WeightIndex.of_file(folder / FILE), WeightReader()
    state = {name: torch.ones(entry.shape, dtype=entry.dtype, device="sim:0") for name, entry in index.items()}
    model = make_model_like(folder)
    model.load_state_dict(state, assign=True)
    call = {key: one.to("sim:0") if isinstance(one, torch.Tensor) else one for key, one in make_call().items()}
    import_at_detach(torch.device("sim:0"))
    clock = Clock()
    for name, entry in index.items():
        reader.read_into(entry, state[name])
    clock.lap("load")
    model(**call)
    clock.lap("first")
    return clock.result


@torch.inference_mode()
def from_pretrained(folder: Path) -> Result:
    """Loads with diffusers."""
    from diffusers import FluxTransformer2DModel

    call = make_call()
    clock = Clock()
    model = FluxTransformer2DModel.from_pretrained(folder, torch_dtype=torch.bfloat16)
    clock.lap("load")
    model(**call)
    clock.lap("first")
    return clock.result


def with_dovetail(folder: Path, **options: Any) -> Result:
    """Loads with dovetail; the options are those of `dovetail.compile`."""
    import dovetail

    call = make_call()
    start = time.perf_counter()
    compiled = dovetail.compile(make_model_like(folder), (), call, weights=folder / FILE, **options)
    compiling = time.perf_counter() - start
    import_at_detach(compiled.program.main.torch)
    clock = Clock()
    compiled.load()
    clock.lap("load")
    compiled(**call)
    clock.lap("first")
    program = compiled.program
    loads = {one.index: program.nbytes_of(_read_by(one)) for one in program.segments}
    return {**clock.result, "compile": compiling, "segments": len(loads), "largest": max(loads.values())}


def import_at_detach(device: torch.device) -> None:
    """Has PyTorch import what it does when a tensor of a simulated device is first detached: half of itself, once."""
    torch.empty(1, device=device).detach()


def _read_by(segment: Any) -> set[str]:
    from dovetail.compiler.ir.program import placement_of

    return {name for node in segment.nodes for name in placement_of(node).weights}


def run_variant(variant: str, folder: Path, residency: str, devices: int) -> Result:
    """Runs one variant in this process."""
    torch.set_num_threads(2)
    if variant.endswith(" read"):
        return plain_read(folder, fresh=variant == "fresh read")
    if variant == "read_into":
        return read_into(folder)
    if variant == "from_pretrained":
        return from_pretrained(folder)
    if variant == "staged":
        names = "&".join(f"sim{index}" for index in range(devices))
        return with_dovetail(folder, backend=names, params_backend=residency)
    return with_dovetail(folder, backend=variant)


def in_fresh_process(variant: str, options: argparse.Namespace, folder: Path, cold: bool) -> Result:
    """Runs one variant in a process of its own, with the file in the page cache or not."""
    bring_to_cache(folder / FILE)
    if cold:
        drop_from_cache(folder / FILE)
    command = [sys.executable, "-m", "benchmarks.loading", "--variant", variant, "--folder", str(folder)]
    command += ["--residency", options.residency, "--devices", str(options.devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{variant} failed:\n{done.stderr}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def folder_in(parent: str | None) -> Iterator[Path]:
    """A temporary folder, which is removed with the large file in it."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="loading-") as name:
        yield Path(name)


def measure(options: argparse.Namespace, folder: Path, weights: int) -> Iterator[tuple[str, ...]]:
    """The rows of the table."""
    variants = ("plain read", "staged") if options.residency else VARIANTS
    for cold in (False, True):
        rounds = [
            {variant: in_fresh_process(variant, options, folder, cold) for variant in variants}
            for _ in range(options.rounds)
        ]
        for variant in variants:
            results = [one[variant] for one in rounds]
            plain = [one["plain read"] for one in rounds]
            yield ("cold" if cold else "warm", variant, *figures(results, plain, weights))


def figures(results: list[Result], plain: list[Result], weights: int) -> tuple[str, ...]:
    """Medians of one variant, and the medians of its ratios to the plain read in the same rounds."""

    def median(name: str) -> float:
        return statistics.median(one.get(name, 0.0) for one in results)

    def ratio(name: str) -> str:
        return f"{statistics.median(one[name] / base[name] for one, base in zip(results, plain, strict=True)):.2f}"

    largest = int(median("largest"))
    held = largest if largest and median("segments") > 1 else weights
    times = (f"{median('load'):.2f}", f"{median('first'):.2f}", ratio("load"), ratio("first"))
    return (*times, f"{median('compile'):.1f}", f"{median('peak') / GIB:.2f}", f"{median('peak') / held:.3f}")


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=4.0, help="bytes of weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--residency", default="", choices=["", "cpu", "disk"])
    parser.add_argument("--devices", type=int, default=4, help="simulated devices, with --residency")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = parse_options()
    if options.variant:
        print(json.dumps(run_variant(options.variant, Path(options.folder), options.residency, options.devices)))
        return
    console = Console()
    with folder_in(options.folder) as folder:
        weights = write_folder(folder, options.gib)
        console.print(f"{weights / GIB:.2f} GiB of weights, load average {os.getloadavg()[0]:.1f}")
        table = Table(
            "file", "variant", "load s", "first s", "× load", "× first", "compile s", "peak GiB", "peak ÷ weights"
        )
        for row in measure(options, folder, weights):
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()

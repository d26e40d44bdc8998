"""What reading every weight of a pipeline that rests on disk takes of memory, and whether it reads eager's numbers.

    python -m benchmarks.reading [--gib 2] [--backend sim0] [--folder DIR]

Writes a Flux pipeline with so many bytes of bfloat16 weights in its transformer to a temporary folder, which it removes
at the end. A fresh process loads it with ``params_backend="disk"`` and takes the norm of every tensor of the state dict
of each component, one after the other. *rise* is how far its anonymous memory (RssAnon, looked at every millisecond)
rose meanwhile above what was there before; *bound* are the bytes of its two largest weights. The norms are compared
with those of ``from_pretrained``, bit by bit. Exits with 1 where a norm differs, or the rise is over the bound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from testbed.pipelines.tiny_pipelines import flux

from .loading import GIB, make_model

MIB = 2**20


def save_pipeline(folder: Path, gib: float) -> None:
    """Saves a Flux pipeline with a transformer of about so many bytes, whose weights repeat a few random numbers."""
    pipe, _ = flux()
    transformer = make_model(gib).to_empty(device="cpu")
    torch.manual_seed(0)
    numbers = torch.randn(MIB).to(torch.bfloat16)
    for tensor in transformer.state_dict().values():
        flat = tensor.view(-1)
        for start in range(0, flat.numel(), MIB):
            flat[start : start + MIB] = numbers[: flat.numel() - start]
    pipe.to(torch.bfloat16)
    pipe.register_modules(transformer=transformer)
    pipe.save_pretrained(folder)


def norms_of(modules: Mapping[str, Any]) -> dict[str, float]:
    """The norm of every tensor of the state dict of each module, by name, one after the other."""
    found: dict[str, float] = {}
    for name, module in modules.items():
        if isinstance(module, torch.nn.Module):
            for key, tensor in module.state_dict().items():
                found[f"{name}.{key}"] = float(tensor.double().norm() if tensor.numel() < MIB else tensor.norm())
    return found


def largest_two(modules: Mapping[str, Any]) -> int:
    """The bytes of the two largest weights."""
    held = [one for module in modules.values() if isinstance(module, torch.nn.Module) for one in module.parameters()]
    return sum(sorted(one.nbytes for one in held)[-2:])


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def _watched(rise: dict[str, int]) -> Iterator[None]:
    """Looks at the anonymous memory of the process every millisecond, and notes how far it rose."""
    over, before = threading.Event(), _anonymous()

    def look() -> None:
        while not over.wait(0.001):
            rise["rise"] = max(rise["rise"], _anonymous() - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        rise["rise"] = max(rise["rise"], _anonymous() - before)


def _child(folder: str, backend: str) -> None:
    import dovetail

    pipe = dovetail.load_pipeline(folder, backend=backend, params_backend="disk", dtype=torch.bfloat16)
    norms_of({"vae": pipe.vae, "first": pipe.transformer.transformer_blocks[0].attn})  # a process's first op, buffers
    rise = {"rise": 0}
    with _watched(rise):
        norms = norms_of(pipe.components)
    print(json.dumps({**rise, "bound": largest_two(pipe.components), "norms": norms}))


def measure(folder: Path, gib: float, backend: str) -> dict[str, Any]:
    """What a fresh process found of a pipeline in a folder, with the norms that differ from eager's."""
    import diffusers

    save_pipeline(folder, gib)
    command = [sys.executable, "-m", "benchmarks.reading", "--child", str(folder), "--backend", backend]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    eager = diffusers.DiffusionPipeline.from_pretrained(str(folder), torch_dtype=torch.bfloat16)
    wanted, norms = norms_of(eager.components), found.pop("norms")
    found["different"] = sorted(name for name in {*wanted, *norms} if wanted.get(name) != norms.get(name))
    size = sum(one.stat().st_size for one in folder.rglob("*.safetensors"))
    return {"tensors": len(norms), "bytes": size, **found}


def main() -> int:
    """Measures, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--backend", default="sim0")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.backend)
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.gib, options.backend)
    print(
        f"{found['tensors']} tensors, {found['bytes'] / GIB:.2f} GiB on disk: anonymous memory rose by "
        f"{found['rise'] / MIB:.0f} MiB, bound {found['bound'] / MIB:.0f} MiB, {len(found['different'])} norms differ"
    )
    return int(bool(found["different"]) or found["rise"] > found["bound"])


if __name__ == "__main__":
    sys.exit(main())

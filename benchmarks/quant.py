"""What `--quant` costs at full size: seconds and memory of packing at load, what is lost, and the second start.

    python -m benchmarks.quant flux [--blocks 12] [--type q8_0] [--folder DIR]
    python -m benchmarks.quant sdxl [--type q8_0]

*flux* is a transformer of FLUX's width (3072): a double-stream block for every two single-stream ones, in all so many
`--blocks`. *sdxl* is the UNet of SDXL as published. Both are written first, with random numbers in bfloat16, one shard
after another, into a folder that is removed at the end. Each packing runs in a process of its own, with an empty cache:
*packed* is what its packed weights take, *peak* how far memory that is no file rose above that before packing (the most
of `RssAnon`, asked every 10 ms), *most* what it may be, 1.1 times the packed size and the largest weight. *error* is
what is lost, as a part of the weight, over all packed weights; *convert* the same of a file that `dovetail convert`
writes. *processor* are the seconds of all processors together, which others that use the machine do not lengthen, and
*again* are the seconds of a second start, which maps what was packed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

PLACE = "/tmp/quant_bench"
MIB, GIB = 2**20, 2**30
_SHARD = 2 * GIB


def make_model(kind: str, blocks: int) -> torch.nn.Module:
    """The model, on meta."""
    import accelerate
    import diffusers

    with accelerate.init_empty_weights(include_buffers=False):
        if kind == "flux":
            model: torch.nn.Module = diffusers.FluxTransformer2DModel(
                num_layers=blocks // 3, num_single_layers=blocks - blocks // 3, guidance_embeds=True
            )
        else:
            model = diffusers.UNet2DConditionModel(
                sample_size=128, block_out_channels=(320, 640, 1280), cross_attention_dim=2048,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20), use_linear_projection=True,
                addition_embed_type="text_time", addition_time_embed_dim=256,
                projection_class_embeddings_input_dim=2816,
            )  # fmt: skip
    return model.eval()


def write(model: Any, folder: Path) -> int:
    """Writes random weights in bfloat16, one shard in memory at a time; returns their bytes."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model.save_config(folder)
    drawn = torch.Generator().manual_seed(0)
    shards: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    whole = 0

    def flush() -> None:
        name = f"diffusion_pytorch_model-{len(set(shards.values())):05}.safetensors"
        save_file(shard, folder / name)
        shards.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, weight in model.state_dict().items():
        shard[name] = (torch.randn(weight.shape, generator=drawn) * 0.02).to(torch.bfloat16)
        whole += shard[name].nbytes
        if sum(one.nbytes for one in shard.values()) > _SHARD:
            flush()
    flush()
    index = {"metadata": {"total_size": whole}, "weight_map": shards}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return whole


def anonymous() -> int:
    """Bytes of this process's memory that are no pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most anonymous memory so far, beyond that at first, asked now and then."""
    before, most, ended = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], anonymous() - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def pack(kind: str, blocks: int, quant: str, folder: Path) -> dict[str, Any]:
    """Builds the model out of its folder with packed weights, and says what that took."""
    from dovetail.pipelines.loading.building import build
    from dovetail.quant import Packing
    from dovetail.quant.asked import parse_type

    name = type(make_model(kind, blocks)).__name__
    packing = Packing(kind, parse_type(quant))
    started, before = time.perf_counter(), time.process_time()
    with watched() as most:
        built = build("diffusers", name, folder, None, torch.bfloat16, packing=packing)
    took, busy = time.perf_counter() - started, time.process_time() - before
    assert built is not None
    entries = {key: origin.entry for key, origin in built[1].items() if origin.entry.is_packed}
    return {"seconds": took, "processor": busy, "peak": most[0], "packed": sum(one.nbytes for one in entries.values()),
            "largest": max(one.nbytes for one in entries.values())}  # fmt: skip


def lost(kind: str, blocks: int, quant: str, folder: Path) -> dict[str, Any]:
    """What is lost of every eighth packed weight, in the cache and in a file of `dovetail convert`."""
    from dovetail.convert import plan_conversion
    from dovetail.pipelines.loading.building import build
    from dovetail.quant import Packing
    from dovetail.quant.asked import parse_type
    from dovetail.runtime.store.origins import origins_of
    from dovetail.weights.files import open_weights

    name = type(make_model(kind, blocks)).__name__
    built = build("diffusers", name, folder, None, torch.bfloat16, packing=Packing(kind, parse_type(quant)))
    assert built is not None
    source = origins_of(open_weights(folder))
    names = [key for key, origin in built[1].items() if origin.entry.is_packed][::8]
    found = {"error": _error(built[1], source, names)}
    if quant != "f8":
        file = folder / "converted.gguf"
        started = time.perf_counter()
        plan_conversion(folder / "diffusion_pytorch_model.safetensors.index.json", file, quant).run()
        found |= {"convert_seconds": time.perf_counter() - started}
        found |= {"convert": _error(origins_of(open_weights(file)), source, names)}
        file.unlink()
    return found


def _error(packed: Any, source: Any, names: list[str]) -> float:
    host, away, whole = torch.device("cpu"), 0.0, 0.0
    for name in names:
        before = source[name].whole(torch.float32, host)
        away += float((packed[name].whole(torch.float32, host) - before).square().sum())
        whole += float(before.square().sum())
    return float((away / whole) ** 0.5)


def _in_process(what: str, args: argparse.Namespace, quant: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.quant", args.kind, "--blocks", str(args.blocks), "--type", quant,
               "--step", what, "--folder", str(folder)]  # fmt: skip
    environment = {**os.environ, "DOVETAIL_CACHE": "1", "DOVETAIL_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


HEADS = ("type", "packed", "seconds", "processor", "peak", "most", "error", "convert", "again")


def row(args: argparse.Namespace, quant: str, folder: Path) -> tuple[str, ...]:
    """What packing in one type takes, in the order of the heads."""
    first = _in_process("pack", args, quant, folder)
    again = _in_process("pack", args, quant, folder)
    error = _in_process("lost", args, quant, folder)
    shutil.rmtree(folder / "cache")
    most = 1.1 * first["packed"] + first["largest"]
    convert = f"{error['convert']:.3%} in {error['convert_seconds']:.0f} s" if "convert" in error else "-"
    return (
        quant, f"{first['packed'] / GIB:.2f} GiB", f"{first['seconds']:.1f}", f"{first['processor']:.1f}",
        f"{first['peak'] / MIB:.0f} MiB", f"{most / MIB:.0f} MiB", f"{error['error']:.3%}", convert,
        f"{again['seconds']:.2f} s ({again['processor']:.2f})",
    )  # fmt: skip


def print_rows(args: argparse.Namespace, folder: Path) -> None:
    """Prints a line for each type as soon as it is known, in Markdown."""
    whole = write(make_model(args.kind, args.blocks), folder)
    print(f"{args.kind}, {whole / GIB:.2f} GiB in bfloat16\n", flush=True)
    for line in (HEADS, ["---"] * len(HEADS)):
        print(f"| {' | '.join(line)} |", flush=True)
    for quant in args.type.split(","):
        print(f"| {' | '.join(row(args, quant, folder))} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["flux", "sdxl"])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--type", default="q8_0,q4_k,f8")
    parser.add_argument("--folder", default="")
    parser.add_argument("--step", choices=["pack", "lost"])
    args = parser.parse_args()
    if args.step:
        step = {"pack": pack, "lost": lost}[args.step]
        print(json.dumps(step(args.kind, args.blocks, args.type, Path(args.folder))))
        return
    Path(PLACE).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder or PLACE) as folder:
        print_rows(args, Path(folder) / "model")


if __name__ == "__main__":
    main()

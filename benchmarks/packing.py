"""What packing a weight costs: `python -m benchmarks.packing` prints each type's size, error and time.

The error is relative: the length of what is lost over the length of the weight. libgguf, where it is installed, packs
the same numbers with ggml's own code.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from dovetail import demo
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of
from dovetail.runtime.packing import pack

WEIGHT = "transformer_blocks.0.ff.net.0.proj.weight"
Floats = NDArray[np.float32]
Pack = Callable[[Floats, str], NDArray[np.uint8]]


def samples() -> dict[str, Floats]:
    """Numbers of a normal distribution, and a weight of the demo."""
    normal = np.random.default_rng(0).standard_normal((256, 4096)).astype(np.float32)
    with safe_open(demo.folder() / "transformer" / "diffusion_pytorch_model.safetensors", "pt") as opened:
        return {"normal": normal, "demo": opened.get_tensor(WEIGHT).float().numpy()}


def error(values: Floats, quant: str, packer: Pack) -> float:
    """What is lost over what was there, both as lengths."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    back = dequantize(packer(values, quant), GGMLQuantizationType[quant])
    return float(np.linalg.norm(back - values) / np.linalg.norm(values))


def seconds(values: Floats, quant: str, packer: Pack) -> float:
    """The median time of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        packer(values, quant)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _libgguf(values: Floats, quant: str) -> NDArray[np.uint8]:
    import libgguf
    from gguf import GGMLQuantizationType

    packed: NDArray[np.uint8] = libgguf.quantize_rows(values, GGMLQuantizationType[quant].value)
    return packed


def rows() -> Iterator[tuple[str, ...]]:
    """A line of the table for each packed type, the largest first."""
    given = samples()
    packers: list[Pack] = [pack, *([_libgguf] if importlib.util.find_spec("libgguf") else [])]
    bits = {quant: 8 * block_of(quant)[1] / block_of(quant)[0] for quant in QUANT_TYPES if block_of(quant)[0] > 1}
    for quant in sorted(bits, key=lambda quant: -bits[quant]):
        errors = [f"{error(values, quant, packer):.2%}" for values in given.values() for packer in packers]
        times = [f"{1e9 * seconds(given['normal'], quant, packer) / given['normal'].size:.0f}" for packer in packers]
        yield (quant, f"{bits[quant]:.4g}", *errors, *times)


def main() -> None:
    """Prints the table in Markdown."""
    who = ["", " (libgguf)"] if importlib.util.find_spec("libgguf") else [""]
    heads = ["type", "bits", *(f"{what}{by}" for what in ("normal", "demo", "ns a number") for by in who)]
    for line in (heads, ["---"] * len(heads), *rows()):
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()

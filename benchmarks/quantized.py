"""Packed weights beside diffusers' GGUF linear, and a transformer in Q4_K beside its dense self.

    python -m benchmarks.quantized

Prints, for every type, whether random bytes unpack to the bits of gguf-py, in plain torch and with libgguf. Then, for a
weight of 3072×12288 in some types, how much faster than diffusers a product and the unpacking in it are (medians of the
ratios of rounds in which all ran one after the other, in bfloat16 on the CPU), and the bytes that either needs beside
its result. *dense* is the product alone, with the weight unpacked before: nothing that unpacks is faster. Then a DiT of
12 blocks and hidden size 1024 at 1024 tokens, compiled with its matrices in Q4_K and as the dense model of the same
numbers: whether the bits are equal, and the ratios of time and of weight bytes.
"""

from __future__ import annotations

import argparse
import collections
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gguf
import numpy as np
import torch
from diffusers import DiTTransformer2DModel
from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter, dequantize_gguf_tensor
from rich.console import Console
from rich.table import Table

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime.packing import pack
from dovetail.runtime.quantized import dequantize_rows, kernels, only_torch
from dovetail.runtime.quantized.native import native_unpack
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.weights.files import set_types
from testbed.memory import peak_bytes

SHAPE = (3072, 12288)
OURS = ("torch", "libgguf")
Call = Callable[[], Any]


def in_torch(call: Call) -> Call:
    """A call without libgguf."""

    def alone() -> Any:
        with only_torch():
            return call()

    return alone


def rounds(calls: Mapping[str, Call], count: int) -> list[dict[str, float]]:
    """The seconds of each call in rounds in which each runs once, after a round that is thrown away."""
    found = []
    for _ in range(count + 1):
        times = {}
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = time.perf_counter() - start
        found.append(times)
    return found[1:]


def ratio(times: Sequence[Mapping[str, float]], slow: str, fast: str) -> float:
    """The median of how many times longer one call took than another."""
    return statistics.median(one[slow] / one[fast] for one in times)


def milliseconds(times: Sequence[Mapping[str, float]], name: str) -> str:
    """The median time of a call."""
    return f"{1e3 * statistics.median(one[name] for one in times):.0f}"


def show_bits(console: Console) -> None:
    """Random bytes in each type against gguf-py, numbers that are none apart."""
    table = Table("type", "numbers", "torch", "with libgguf", title="same bits as gguf-py")
    for quant in QUANT_TYPES:
        packed = random_bytes(quant, 64)
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[quant])
        answers = [same_bits(packed, quant, expected, alone) for alone in (True, False)]
        native = answers[1] if native_unpack(torch.empty(0), quant) else "as torch"
        table.add_row(quant, str(expected.size), str(answers[0]), str(native))
    console.print(table)


def random_bytes(quant: str, rows: int) -> np.ndarray:
    """Rows of a type in which any byte may stand."""
    return np.random.default_rng(0).integers(0, 256, packed_shape(quant, (rows, SHAPE[1])), dtype=np.uint8)


def same_bits(packed: np.ndarray, quant: str, expected: np.ndarray, alone: bool) -> bool:
    """Whether our numbers have the bits of others."""
    out = torch.empty(expected.shape)
    unpack = functools.partial(dequantize_rows, torch.from_numpy(packed), quant, out)
    (in_torch(unpack) if alone else unpack)()
    missing = np.isnan(expected)
    same = out.numpy().view(np.int32) == expected.view(np.int32)
    return bool(np.array_equal(np.isnan(out.numpy()), missing) and same[~missing].all())


def weight(quant: str, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    """A random weight in a type: a few rows of it, again and again."""
    torch.manual_seed(0)
    some = torch.from_numpy(pack(torch.randn(64, shape[1]).div(shape[1] ** 0.5).numpy(), quant))
    return some.repeat(shape[0] // 64, 1)


def show_products(console: Console, types: Sequence[str], rows: Sequence[int], count: int) -> None:
    """Products and the unpacking alone, beside diffusers'."""
    title = f"{SHAPE[0]}×{SHAPE[1]}, bfloat16, {torch.get_num_threads()} threads: median ms, and times faster"
    table = Table("type", "what", "diffusers", "dense", *("torch", "×", "libgguf", "×"), "MB", title=title)
    for quant in types:
        packed, bias = weight(quant), torch.randn(SHAPE[0], dtype=torch.bfloat16)
        for size in rows:
            calls = products(packed, bias, quant, torch.randn(size, SHAPE[1], dtype=torch.bfloat16))
            memory = [(peak_bytes(calls[name]) - 2 * size * SHAPE[0]) / 1e6 for name in ("diffusers", *OURS)]
            shown = "{:.0f} → {:.1f}, {:.1f}".format(*memory)
            table.add_row(quant, f"{size} rows", *compared(calls, count), shown)
        table.add_row(quant, "unpacking", *compared(unpackings(packed, quant), 3 * count), "")
    console.print(table)


def products(packed: torch.Tensor, bias: torch.Tensor, quant: str, x: torch.Tensor) -> dict[str, Call]:
    """The same product four ways."""
    theirs = GGUFLinear(SHAPE[1], SHAPE[0], bias=True, compute_dtype=torch.bfloat16)
    theirs.weight = GGUFParameter(packed, quant_type=gguf.GGMLQuantizationType[quant])
    theirs.bias = torch.nn.Parameter(bias)
    dense = torch.ops.dovetail.dequantize(packed, quant, x.dtype)
    ours = functools.partial(torch.ops.dovetail.quantized_linear, x, packed, bias, quant)
    return {
        "diffusers": lambda: theirs(x),
        "dense": lambda: torch.nn.functional.linear(x, dense, bias),
        "torch": in_torch(ours),
        "libgguf": ours,
    }


def unpackings(packed: torch.Tensor, quant: str) -> dict[str, Call]:
    """What of a product is not the product: numbers in the dtype of x, a chunk of rows after the other."""
    theirs = GGUFParameter(packed, quant_type=gguf.GGMLQuantizationType[quant])
    x = torch.empty(0, SHAPE[1], dtype=torch.bfloat16)

    def ours() -> None:
        collections.deque(kernels._unpacked(packed, quant, x), maxlen=0)

    return {"diffusers": lambda: dequantize_gguf_tensor(theirs).to(x.dtype), "torch": in_torch(ours), "libgguf": ours}


def compared(calls: Mapping[str, Call], count: int) -> list[str]:
    """The cells of the times of diffusers, of the dense product where there is one, and of ours."""
    with torch.inference_mode():
        times = rounds(calls, count)
    cells = [milliseconds(times, "diffusers"), milliseconds(times, "dense") if "dense" in calls else ""]
    for name in OURS:
        cells += [milliseconds(times, name), f"{ratio(times, 'diffusers', name):.2f}"]
    return cells


def transformer(dtype: torch.dtype) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A 12-block DiT of hidden size 1024, and a call over 1024 tokens."""
    torch.manual_seed(0)
    model = DiTTransformer2DModel(
        num_attention_heads=16, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=12, sample_size=64,
        patch_size=2, num_embeds_ada_norm=1000,
    )  # fmt: skip
    call = {
        "hidden_states": torch.randn(1, 4, 64, 64, dtype=dtype),
        "timestep": torch.tensor([5]),
        "class_labels": torch.tensor([1]),
        "return_dict": False,
    }
    return model.eval().to(dtype), call


def show_transformer(console: Console, dtype: torch.dtype, count: int) -> None:
    """A transformer with packed matrices beside the dense one with the same numbers."""
    module, call = transformer(dtype)
    with torch.no_grad():
        program = trace(module, (), call)
        packed, tensors = pack_matrices(program.copy(), module, "Q4_K")
    ours, dense = compiled(packed, tensors), compiled(program, dict(module.state_dict()))
    with torch.no_grad():
        equal = torch.equal(ours(**call)[0], dense(**call)[0]) and torch.equal(ours(**call)[0], module(**call)[0])
        calls = {"packed": lambda: ours(**call), "dense": lambda: dense(**call)}
        times = rounds(calls, count)
        alone = rounds({name: in_torch(one) for name, one in calls.items()}, count)
    held, full = (sum(weight.nbytes for weight in one.weights.values()) for one in (packed, program))
    table = Table("", "", title=f"12-block DiT of hidden size 1024 in Q4_K, {str(dtype).removeprefix('torch.')}")
    table.add_row("same bits as compiled and eager with dense weights", str(equal))
    table.add_row("time, with libgguf", f"{ratio(times, 'packed', 'dense'):.3f} × of {milliseconds(times, 'dense')} ms")
    table.add_row("time, in torch", f"{ratio(alone, 'packed', 'dense'):.3f} × of {milliseconds(alone, 'dense')} ms")
    table.add_row("weights", f"{full / 1e6:.0f} → {held / 1e6:.0f} MB, {held / full:.3f} ×")
    console.print(table)


def pack_matrices(program: Program, module: torch.nn.Module, quant: str) -> tuple[Program, dict[str, torch.Tensor]]:
    """Packs every matrix whose rows fit a type's blocks, and gives the module the numbers that it then has."""
    matrices = [
        one for one in program.weights.values() if len(one.shape) == 2 and not one.shape[1] % block_of(quant)[0]
    ]
    set_types(program, {one.name: quant for one in matrices})
    tensors = dict(module.state_dict())
    for one in matrices:
        parameter = module.get_parameter(one.name)
        tensors[one.name] = torch.from_numpy(pack(parameter.float().numpy(), quant))
        parameter.copy_(torch.ops.dovetail.dequantize(tensors[one.name], quant, parameter.dtype))
    return program, tensors


def compiled(program: Program, tensors: Mapping[str, torch.Tensor]) -> CompiledModule:
    """A program made ready to run on the CPU."""
    rig = Rig.parse("cpu=64GiB")
    program.rig = rig
    PassManager(default_passes()).run(program)
    return CompiledModule(program, rig, ProgramWeights.of_tensors(tensors, program))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--types", nargs="*", default=["Q4_K", "Q6_K", "Q8_0"], help="of the products")
    parser.add_argument("--rows", nargs="*", type=int, default=[256, 4096])
    parser.add_argument("--dtype", nargs="*", default=["float32"], help="of the transformer")
    options = parser.parse_args()
    console = Console()
    show_bits(console)
    show_products(console, options.types, options.rows, options.rounds)
    for dtype in options.dtype:
        show_transformer(console, getattr(torch, dtype), options.rounds)


if __name__ == "__main__":
    main()

"""How exact a row split is, what crosses: ``python -m benchmarks.row_split [errors|marks|crossing|convs] [NAME …]``.

*errors*: small instances of real classes on simulated devices in shares 16:10:6(:4); the error of the split against
float64, relative to that of eager in the same dtype; how many rows of all matrices the bytes of the worst device are
off its share; bytes that cross in a call; results gathered, and how many there would be if no elementwise operation
were done on the parts. *marks*: the weights of full-size models that are split, and those that law 5 names.
*crossing*: bytes that cross in a call of a full-size model, split by rows and by layers, over two equal devices.
*convs*: what convolutions of UNets would add if they were split by output channels: bytes of weights that would be
spread, and bytes that would cross for it in a call, beside the same of the matrices that are split. Nothing is timed.
"""

from __future__ import annotations

import gc
import math
import sys

import torch

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.eligibility import marked_weights
from dovetail.compiler.ir.ops import LINEAR
from dovetail.compiler.ir.program import Program, tensors_of, weight_name
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from testbed.zoo.full_size import FULL_SIZE, trace_entry
from testbed.zoo.row_split import SHARES, Subject, gathered, marks, sliced_bytes
from testbed.zoo.wide import WIDE

UNETS = ("sd15-unet", "sdxl-unet", "controlnet-sdxl")
MODELS = ("flux-dev", "qwen-image", "wan2.1-14b", "sd3.5-large", "sdxl-unet", "te-t5-xxl-mask")
MIB = 2**20


def main(which: str, names: list[str]) -> None:
    """Prints one of the tables, or all."""
    tables = {"errors": errors, "marks": mark_counts, "crossing": crossings, "convs": convolutions}
    for name, table in tables.items():
        if which in (name, "all"):
            table(names)
            print()


def errors(names: list[str]) -> None:
    """Errors, bytes and gathers of small instances of real classes."""
    row = "{:32} {:>5} {:>7} {:>9} {:>7} {:>10} {:>11} {:>8} {:>8}"
    print(row.format("class", "dtype", "devices", "eager", "ratio", "rows off", "crossing", "gathers", "without"))
    for name in names or WIDE:
        for dtype, short in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
            subject = Subject.make(name, dtype)
            for count in (2, 3, 4):
                compiled = subject.split(count)
                program = compiled.program
                ratio = subject.error_of(compiled) / subject.eager
                crossing = f"{crossing_bytes(program) / 2**10:.0f} KiB"
                without = _marked_matmuls(subject.program)
                off = f"{_rows_off(program):.2f} of {_matrices(program)}"
                numbers = f"{subject.eager:.1e}", f"{ratio:.4f}", off, crossing, len(gathered(program)), without
                print(row.format(name, short, count, *numbers), flush=True)


def _marked_matmuls(program: Program) -> int:
    copy = PassManager(parse_passes("simplify,blocks")).run(program.copy())
    marked = marked_weights(copy)
    return sum(node.target in LINEAR and node.args[1] in marked for node in copy.ops())


def _matrices(program: Program) -> int:
    return len(_sliced(program))


def _sliced(program: Program) -> list[Weight]:
    return [weight for name in program.bounds if len((weight := program.weights[name]).shape) == 2]


def _rows_off(program: Program) -> float:
    """How far the bytes of the worst device are from its share, in rows of the widest matrix."""
    held = sliced_bytes(program)
    widest = max(weight.nbytes // weight.shape[0] for weight in _sliced(program))
    shares = SHARES[: len(program.devices)]
    wanted = [share / sum(shares) * sum(held.values()) for share in shares]
    return max(abs(held[d] - bytes_) for d, bytes_ in zip(program.devices, wanted, strict=True)) / widest


def mark_counts(names: list[str]) -> None:
    """The marks of full-size models beside what their modules say."""
    total = 0
    print(f"{'entry':24} {'marked':>7} {'eligible':>9} {'both':>7}")
    for name in names or FULL_SIZE:
        module, call = FULL_SIZE[name].make()
        found, eligible = marks(module, trace(module, (), call))
        total += len(found)
        print(f"{name:24} {len(found):>7} {len(eligible):>9} {len(found & eligible):>7}", flush=True)
        gc.collect()
    print(f"{'in all':24} {total:>7}")


def crossings(names: list[str]) -> None:
    """Bytes that cross in a call of full-size models, over two equal devices."""
    print(f"{'entry':24} {'by rows':>12} {'by layers':>12} {'gathers':>8} {'without':>8}")
    for name in names or MODELS:
        traced, _ = trace_entry(FULL_SIZE[name])
        found = [_compiled(traced, mode) for mode in ("row", "layer")]
        sizes = [f"{crossing_bytes(one) / MIB:.1f} MiB" for one in found]
        print(
            f"{name:24} {sizes[0]:>12} {sizes[1]:>12} {len(gathered(found[0])):>8} {_marked_matmuls(traced):>8}",
            flush=True,
        )
        gc.collect()


def _compiled(traced: Program, mode: str) -> Program:
    program = traced.copy()
    program.rig = Rig.of(cuda0=2**40, cuda1=2**40)
    return PassManager(default_passes((1, 1), headroom=0, split_mode=mode)).run(program)


def convolutions(names: list[str]) -> None:
    """What would cross for convolutions of UNets over two equal devices, and for the matrices that are split."""
    print(f"{'entry':20} {'what':14} {'number':>7} {'weights':>12} {'crossing':>12} {'flops a byte':>13}")
    for name in names or UNETS:
        program = PassManager(parse_passes("simplify,blocks")).run(trace_entry(FULL_SIZE[name])[0])
        for what, size in (("linear", 0), ("conv 1×1", 1), ("conv 3×3", 3)):
            print(f"{name:20} {what:14} " + _cost(program, size), flush=True)
        gc.collect()


def _cost(program: Program, size: int) -> str:
    """The halves of what is read and made cross: the input once, and half of the output."""
    marked = marked_weights(program)
    held: dict[str, int] = {}
    inputs: dict[object, int] = {}
    crossing = flops = 0
    for node in program.ops():
        name = weight_name(node.args[1]) if len(node.args) > 1 and hasattr(node.args[1], "meta") else None  # type: ignore[arg-type]
        weight = program.weights[name] if name else None
        convolves = node.target is torch.ops.aten.conv2d.default and weight and weight.shape[-1] == size
        if not convolves and (size or node.target not in LINEAR or node.args[1] not in marked):
            continue
        assert weight is not None
        held[weight.name] = weight.nbytes
        out = tensors_of(node)[0]
        inputs[node.args[0]] = tensors_of(node.args[0])[0].nbytes  # type: ignore[arg-type]
        crossing += out.nbytes // 2
        flops += 2 * math.prod(out.sizes) * math.prod(weight.shape[1:])
    crossing += sum(inputs.values())
    sizes = [f"{number / MIB:.1f} MiB" for number in (sum(held.values()), crossing)]
    return f"{len(held):>7} {sizes[0]:>12} {sizes[1]:>12} {flops / 2 / max(crossing, 1):>13.0f}"


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["all"]), sys.argv[2:])  # type: ignore[arg-type]

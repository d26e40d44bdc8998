"""Decoders whose pictures are split in space over simulated devices: memory, bytes sent, and how far results are off.

    python -m benchmarks.spatial [--only AutoencoderKL-decode,…] [--height 32] [--width 16] [--shares 1,1]

Tiny decoders of published classes run in float32. A row has the bytes of values on the fullest device as a part of
those of one device that computes all, as they were predicted and as they were measured, the bytes that devices send one
another, as planned and as they came, the error against float64 beside that of the module, as the root of the mean
square over five calls, and whether the bits are the module's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils import _pytree as pytree

from testbed.exact import InFloat64
from testbed.mode_cells import SEEDS, error_of
from testbed.spatial import DECODERS, enlarged, run, split

SHARES = ((1, 1), (1, 1, 1, 1))


def called(module: nn.Module, call: dict[str, object]) -> list[torch.Tensor]:
    """The tensors that a module yields."""
    with torch.no_grad():
        return [one for one in pytree.tree_leaves(module(**call)) if isinstance(one, torch.Tensor)]


def rows(name: str, sides: tuple[int, int], every: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """A line for each way to share a decoder out."""
    module, _ = enlarged(name, torch.float32, sides)
    wide, wide_call = enlarged(name, torch.float64, sides)
    wide.load_state_dict(module.state_dict())
    calls = [enlarged(name, torch.float32, sides, seed)[1] for seed in SEEDS]
    with InFloat64():
        exact = [torch.cat([one.flatten() for one in called(wide, {**wide_call, **_widened(call)})]) for call in calls]
    eager = [called(module, call) for call in calls]
    alone = run(module, calls[0], split(module, calls[0], (1,)))
    for shares in every:
        program = split(module, calls[0], shares)
        each = [run(module, call, program) for call in calls]
        found, yielded = each[0], [list(one.yielded) for one in each]
        predicted, measured = (max(one) / max(alone.measured) for one in (found.predicted, found.measured))
        is_equal = all(all(map(torch.equal, *both)) for both in zip(yielded, eager, strict=True))
        yield (
            f"{name:34} {':'.join(map(str, shares)):8} values {predicted:6.3f} predicted {measured:6.3f} measured,"
            f" sent {found.planned:9} planned {found.sent:9} came, error {error_of(yielded, exact):.1e}"
            f" (module {error_of(eager, exact):.1e}){', equal bits' if is_equal else ''}"
        )


def _widened(call: dict[str, object]) -> dict[str, object]:
    return {name: _wide(value) for name, value in call.items()}


def _wide(value: object) -> object:
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return value.double() if isinstance(value, torch.Tensor) and is_float else value


def main() -> None:
    """Prints the rows of each decoder that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(DECODERS), help="the decoders, by the names of testbed.zoo")
    parser.add_argument("--height", type=int, default=32, help="of the latents")
    parser.add_argument("--width", type=int, default=16, help="of the latents")
    parser.add_argument("--shares", default="", help="the part of each device, such as 5,3,2; several ways if left out")
    asked = parser.parse_args()
    every = [tuple(map(int, asked.shares.split(",")))] if asked.shares else SHARES
    torch.set_num_threads(1)
    for name in asked.only.split(","):
        print(*rows(name, (asked.height, asked.width), every), sep="\n", flush=True)


if __name__ == "__main__":
    main()

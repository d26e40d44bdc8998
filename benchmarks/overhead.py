"""What compiling costs and saves on one device, and what a cut costs on two.

    python -m benchmarks.overhead

Prints, for diffusion transformers of three sizes on the CPU, the wall time of the compiled module over that of eager
(median of the ratios of rounds in which both ran one after the other) and the peak of live activations of both,
counted by a simulated device. Then the cost of one cut between two simulated devices beside that of accelerate's
dispatch_model over the same split; either is compared with its own run on one simulated device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from diffusers import DiTTransformer2DModel, FluxTransformer2DModel
from rich.console import Console
from rich.table import Table

import dovetail
from dovetail.runtime import sim

SIZES = ((32, 4), (256, 4), (1024, 12))  # hidden size, blocks
TOKENS = 64
Case = tuple[torch.nn.Module, dict[str, Any]]


def plain(hidden: int, blocks: int) -> Case:
    """A transformer whose blocks are attention and feed-forward after adaptive norms, and an example call."""
    torch.manual_seed(0)
    heads = max(2, hidden // 64)
    model = DiTTransformer2DModel(
        num_attention_heads=heads,
        attention_head_dim=hidden // heads,
        in_channels=4,
        out_channels=4,
        num_layers=blocks,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=10,
    ).eval()
    call = {
        "hidden_states": torch.randn(1, 4, 16, 16),
        "timestep": torch.tensor([5]),
        "class_labels": torch.tensor([1]),
        "return_dict": False,
    }
    return model, call


def double_and_single(hidden: int, blocks: int, tokens: int = TOKENS) -> Case:
    """A transformer with half double and half single blocks, and an example call."""
    torch.manual_seed(0)
    heads = max(2, hidden // 64)
    width = hidden // heads
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=blocks // 2,
        num_single_layers=blocks - blocks // 2,
        attention_head_dim=width,
        num_attention_heads=heads,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        axes_dims_rope=(width // 4, width // 4, width // 2),
    ).eval()
    call = {
        "hidden_states": torch.randn(1, tokens, 16),
        "encoder_hidden_states": torch.randn(1, 16, 64),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.rand(1),
        "img_ids": torch.randn(tokens, 3),
        "txt_ids": torch.randn(16, 3),
        "return_dict": False,
    }
    return model, call


def median_ratio(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> tuple[float, float, float]:
    """Median over rounds of the first's time over the second's, and the medians of both in seconds.

    Who goes first alternates, so that neither always finds warm caches.
    """
    times: list[tuple[float, float]] = []
    for index in range(rounds + 3):
        ours, theirs = (first, second) if index % 2 == 0 else (second, first)
        pair = _seconds(ours), _seconds(theirs)
        times.append(pair if index % 2 == 0 else pair[::-1])
    times = times[3:]
    ratios = [a / b for a, b in times]
    return statistics.median(ratios), statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def live_peak(call: Callable[[], Any], index: int = 0) -> int:
    """The most bytes that a call holds on a simulated device beyond what lay there before."""
    sim.reset_peak(index)
    before = sim.stats(index).in_use
    result = call()
    del result
    return sim.stats(index).peak - before


def eager(model: torch.nn.Module, call: dict[str, Any]) -> Callable[[], Any]:
    """A call of the module as it is, without gradients."""

    @torch.no_grad()
    def run() -> Any:
        return model(**call)

    return run


def one_device(rounds: int) -> Table:
    """Compiled against eager on one device."""
    table = Table(
        "blocks", "hidden × blocks", "ops", "eager ms", "compiled ms", "time ratio", "peak ratio", "bit-equal"
    )
    for make in (plain, double_and_single):
        for hidden, blocks in SIZES:
            count = rounds if hidden < 1024 else max(rounds // 10, 5)
            table.add_row(make.__name__, f"{hidden} × {blocks}", *_measure(*make(hidden, blocks), count))
    return table


def _measure(model: torch.nn.Module, call: dict[str, Any], rounds: int) -> tuple[str, ...]:
    compiled = dovetail.compile(model, (), call, backend="cpu")
    equal = torch.equal(compiled(**call)[0], eager(model, call)()[0])
    ratio, ours, theirs = median_ratio(lambda: compiled(**call), eager(model, call), rounds)
    ops = len(list(compiled.program.ops()))
    shown = (f"{theirs * 1e3:.2f}", f"{ours * 1e3:.2f}", f"{ratio:.2f}", f"{peaks(model, call):.2f}")
    return str(ops), *shown, str(equal)


def peaks(model: torch.nn.Module, call: dict[str, Any]) -> float:
    """Peak of live activations of the compiled module over eager's, on a simulated device."""
    compiled = dovetail.compile(model, (), call, backend="sim0")
    there = {name: value.to("sim:0") if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    compiled.load()
    ours = live_peak(lambda: compiled(**there))
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: tensor.to("sim:0") for name, tensor in held.items()}
    with torch.no_grad():
        theirs = live_peak(lambda: torch.func.functional_call(model, state, (), there))
    return ours / theirs


def cuts(rounds: int) -> Table:
    """The extra time of each cut between two devices: compiled, and dispatched by accelerate."""
    from accelerate import dispatch_model

    table = Table("how", "values", "cuts", "one device ms", "two devices ms", "µs a cut")
    model, call = double_and_single(32, 4)
    split = dovetail.compile(model, (), call, backend="sim0&sim1", tensor_split="1,1")
    whole = dovetail.compile(model, (), call, backend="sim0")
    count = len(split.program.segments) - 1
    _, two, one = median_ratio(lambda: split(**call), lambda: whole(**call), rounds)
    table.add_row("dovetail", str(len(list(split.program.transfers()))), *_per_cut(one, two, count))
    homes = {name.rpartition(".")[0]: device.torch for name, device in split.program.home.items()}
    blocks = {".".join(path.split(".")[:2]): device for path, device in homes.items() if "blocks" in path}
    rest = {name: torch.device("sim:0") for name, _ in model.named_children() if "blocks" not in name}
    alone = double_and_single(32, 4)[0].to("sim:0")
    there = {name: value.to("sim:0") if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    spread = dispatch_model(model, {**rest, **blocks}, main_device="sim:0", force_hooks=True)
    _, two, one = median_ratio(eager(spread, there), eager(alone, there), rounds)
    table.add_row("accelerate", "", *_per_cut(one, two, count))
    return table


def _per_cut(one: float, two: float, count: int) -> tuple[str, ...]:
    return str(count), f"{one * 1e3:.2f}", f"{two * 1e3:.2f}", f"{(two - one) / count * 1e6:.0f}"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    console = Console()
    console.print(one_device(rounds))
    console.print(cuts(rounds))


if __name__ == "__main__":
    main()

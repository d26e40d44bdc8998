"""What it costs to bring weights from disk for each step, beside having them in memory, and beside other libraries.

    python -m benchmarks.streaming [--rounds 9] [--tokens 128,512] [--threads 1] [--folder DIR]
    python -m benchmarks.streaming --modelled

A transformer of diffusers (12 single-stream blocks of width 1024, float32, 0.75 GB) lies in a safetensors file in the
page cache, and runs on the CPU. Every variant has a process of its own, which computes one step when it is its turn;
the variants take turns, so that what disturbs the machine disturbs all. A ratio is the median over the rounds of the
step's time over that of *resident* in the same round.

- *resident*: all weights in memory, as copies, not as views of the file;
- *45 %*, *0 %*: compiled with `params_backend="disk"` and a budget in which such a part of the weights can stay beside
  two slots, or none;
- *disk_offload*: accelerate's, which reads each layer's weights when its turn comes and drops them;
- *group offload*: diffusers' `apply_group_offloading` by block, to disk (where it runs without an accelerator).

*budget* is what the variant was granted, *predicted* what the schedule says that it takes, *memory* how far resident
memory rose (VmHWM) from before the weights were there to after the last step. Before that the file was read by nobody
in the process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

VARIANTS = ("resident", "45 %", "0 %", "disk_offload", "group offload")
FILE = "diffusion_pytorch_model.safetensors"
MIB = 2**20


def make_model() -> torch.nn.Module:
    """The transformer, on meta."""
    import accelerate
    from diffusers import FluxTransformer2DModel

    with accelerate.init_empty_weights(include_buffers=False):
        model = FluxTransformer2DModel(num_layers=0, num_single_layers=12, num_attention_heads=16,
                                       attention_head_dim=64, axes_dims_rope=(16, 24, 24))  # fmt: skip
    return model.eval().requires_grad_(False)


def make_call(tokens: int) -> dict[str, Any]:
    """A step over so many tokens in all."""
    torch.manual_seed(0)
    text = 16
    return {
        "hidden_states": torch.randn(1, tokens - text, 64),
        "encoder_hidden_states": torch.randn(1, text, 4096),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.tensor([0.5]),
        "guidance": None,
        "img_ids": torch.zeros(tokens - text, 3),
        "txt_ids": torch.zeros(text, 3),
        "return_dict": False,
    }


def write_file(folder: Path) -> None:
    """Weights as a model has them that was just made, in the order of its modules."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = {name: torch.randn(t.shape) / max(t.shape[-1], 1) ** 0.5 for name, t in make_model().state_dict().items()}
    save_file(state, folder / FILE)


def read_memory(field: str) -> int:
    """A field of this process's status, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def reset_peak() -> None:
    """Starts VmHWM again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def compiled(folder: Path, call: dict[str, Any], resident: float) -> tuple[Any, int, int]:
    """The module over its file, the budget it was granted, and what its schedule takes."""
    import dovetail
    from dovetail.passes.simulate.memory import simulate

    def make(**options: Any) -> Any:
        return dovetail.compile(
            make_model(), (), call, weights=folder / FILE, backend="cpu", params_backend="disk", **options
        )

    least = make()
    usage = next(iter(simulate(least.program).values()))
    weights = sum(one.nbytes for one in least.program.weights.values())
    slots = usage.staged // 3 * 2  # it had room for three
    budget = int(weights * resident) + usage.values + usage.scratch + slots + MIB
    module = make(max_vram=f"cpu={budget}B")
    usage = next(iter(simulate(module.program).values()))
    return module, budget, usage.total


def prepare(variant: str, folder: Path, call: dict[str, Any]) -> tuple[Any, int, int]:
    """What a step of a variant calls, with its budget and prediction (0 where it has none)."""
    if variant in ("45 %", "0 %"):
        return compiled(folder, call, float(variant.rstrip(" %")) / 100)
    if variant == "resident":
        import dovetail

        return dovetail.compile(loaded(folder), (), call, backend="cpu"), 0, 0
    if variant == "disk_offload":
        import accelerate

        return accelerate.disk_offload(loaded(folder), str(folder / "offload"), torch.device("cpu")), 0, 0
    return grouped(folder), 0, 0


def loaded(folder: Path) -> Any:
    """The module with its weights."""
    from safetensors.torch import load_file

    model = make_model()
    model.load_state_dict({name: tensor.clone() for name, tensor in load_file(folder / FILE).items()}, assign=True)
    return model


def grouped(folder: Path) -> Any:
    """The module under diffusers' group offloading, from disk."""
    from diffusers.hooks import apply_group_offloading

    model = loaded(folder)
    path = folder / "groups"
    path.mkdir(exist_ok=True)
    cpu = torch.device("cpu")
    apply_group_offloading(model, onload_device=cpu, offload_device=cpu, offload_type="block_level",
                           num_blocks_per_group=1, offload_to_disk_path=str(path))  # fmt: skip
    return model


def serve(variant: str, folder: Path, tokens: int, threads: int) -> None:
    """A process of one variant: a line a step, with its seconds; the last line has its memory."""
    torch.set_num_threads(threads)
    call = make_call(tokens)
    module, budget, predicted = prepare(variant, folder, call)
    reset_peak()
    before = read_memory("VmRSS")
    with torch.no_grad():
        for line in sys.stdin:
            if line.strip() == "end":
                break
            started = time.perf_counter()
            module(**call)
            print(json.dumps(time.perf_counter() - started), flush=True)
    print(json.dumps({"budget": budget, "predicted": predicted, "memory": read_memory("VmHWM") - before}), flush=True)


class Process:
    """A variant's process, which waits for its turn."""

    def __init__(self, variant: str, folder: Path, tokens: int, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.streaming", "--serve", variant, "--folder", str(folder)]
        command += ["--tokens", str(tokens), "--threads", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, env=environment)  # fmt: skip

    def ask(self, word: str) -> Any:
        """What it answers; None when it has died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None


def compare(folder: Path, tokens: int, threads: int, rounds: int) -> None:
    """Prints the table of one number of tokens."""
    processes = {variant: Process(variant, folder, tokens, threads) for variant in VARIANTS}
    for one in processes.values():
        one.ask("step")  # loads, and looks
    alive = {variant: one for variant, one in processes.items() if one.ask("step") is not None}
    seconds: dict[str, list[float]] = {variant: [] for variant in alive}
    for _ in range(rounds):
        for variant, one in alive.items():
            seconds[variant].append(one.ask("step"))
    table = Table(
        "variant", "step s", "of resident", "budget MB", "predicted MB", "memory MB", title=f"{tokens} tokens"
    )
    for variant, one in processes.items():
        if variant not in alive:
            table.add_row(variant, "does not run here", "", "", "", "")
            continue
        memory = one.ask("end")
        ratios = [a / b for a, b in zip(seconds[variant], seconds["resident"], strict=True)]
        shown = [f"{memory[name] / 1e6:.0f}" if memory[name] else "" for name in ("budget", "predicted", "memory")]
        table.add_row(variant, f"{statistics.median(seconds[variant]):.3f}", f"{statistics.median(ratios):.3f}", *shown)
    Console(width=100).print(table)


def modelled() -> None:
    """Prints the predicted seconds of a step of a full-size transformer, with less and less of it resident."""
    from dataclasses import replace

    from dovetail.compiler.devices.rig import Rig
    from dovetail.compiler.devices.speeds import Speeds, speeds_of
    from dovetail.compiler.spec.residency import Residency
    from dovetail.passes.infra.manager import PassManager
    from dovetail.passes.pipeline import default_passes
    from dovetail.passes.simulate.memory import simulate
    from dovetail.passes.simulate.timeline import timeline
    from testbed.zoo.full_size import FULL_SIZE, trace_entry

    base = trace_entry(FULL_SIZE["flux-dev"])[0]
    weights = sum(one.nbytes for one in base.weights.values())
    rig = Rig.parse("cuda0=24GiB@RTX 3090,cpu=64GiB")
    found = speeds_of(rig)
    (card,) = rig.gpus
    known = Speeds({**found.devices, card: replace(found[card], link=12e9)}, found.disk)
    table = Table("resident", "peak GiB", "step s", "of resident", "busy loading s", "waited s", title="FLUX.1-dev")
    first = 0.0
    for part in (1.0, 0.75, 0.45, 0.2, 0.0):
        program = base.copy()
        program.rig = Rig.of(cuda0=2**45)
        program.keep(Residency.HOST if part < 1 else Residency.DEVICE)
        if part < 1:
            usage = simulate(PassManager(default_passes()).run(program.copy()))[card]
            room = int(weights * part) + usage.total - usage.staged + 2 * usage.staged // 3 + MIB
            program.rig = Rig.of(cuda0=room)
        program = PassManager(default_passes(keep=part < 1)).run(program)
        line, peak = timeline(program, known), simulate(program)[card].total
        first = first or line.seconds
        shown = (f"{line.seconds:.3f}", f"{line.seconds / first:.3f}", f"{line.busy(f'loads to {card}'):.3f}")
        waited = f"{sum(line.waited.values()):.3f}"
        table.add_row(f"{part:.0%}", f"{peak / 2**30:.2f}", *shown, waited)
    Console(width=100).print(table)


def main() -> None:
    """Reads the options and prints a table for each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", default="128,512")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--modelled", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.modelled:
        modelled()
        return
    if given.serve:
        serve(given.serve, given.folder, int(given.tokens), given.threads)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write_file(Path(folder))
        for tokens in map(int, given.tokens.split(",")):
            compare(Path(folder), tokens, given.threads, given.rounds)


if __name__ == "__main__":
    main()

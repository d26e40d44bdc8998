"""Plans of published transformers that no trace takes whole, at full size and without weights, by their parts.

    python -m benchmarks.by_parts [NAME …]

For each of them and each rig: the programs, the bytes of weights and the most of values on each device, the predicted
seconds of the steps, and the processor's seconds of planning, of which tracing is most. The rest of the pipeline is
left out: what is called is the transformer alone, as its pipeline calls it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from dovetail.compiler.durations import seconds_text
from dovetail.compiler.units import format_bytes
from dovetail.pipelines.dryrun import DryPipeline
from testbed.folders import empty
from testbed.folders_by_parts import HIDREAM, LUMINA2, OMNIGEN

RIGS = ("cuda0=80GiB@H100,cpu=128GiB", "cuda0=16GiB@RTX 4080,cpu=64GiB", "cuda0=24GiB@RTX 4090,cuda1=24GiB@RTX 4090")
Case = tuple[Callable[[], nn.Module], dict[str, Any], int]


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """An argument of a call."""
    return torch.zeros(shape, dtype=dtype)


def mask(*shape: int) -> torch.Tensor:
    """A mask that hides nothing."""
    return torch.ones(shape, dtype=torch.bool)


def cases() -> dict[str, Case]:
    """The transformers, a call of each, and how many of them a picture (1024²) or a clip (480 × 848 × 19) takes."""
    tokens = 64 + 1 + 64 * 64
    return {
        "Lumina-Image-2.0": (
            lambda: diffusers.Lumina2Transformer2DModel(**LUMINA2),
            {
                "hidden_states": zeros(1, 16, 128, 128),
                "encoder_hidden_states": zeros(1, 256, 2304),
                "timestep": zeros(1),
                "encoder_attention_mask": mask(1, 256),
                "return_dict": False,
            },
            60,
        ),
        "OmniGen-v1": (
            lambda: diffusers.OmniGenTransformer2DModel(**OMNIGEN),
            {
                "hidden_states": zeros(2, 4, 128, 128),
                "timestep": zeros(2),
                "input_img_latents": [],
                "input_image_sizes": {},
                "input_ids": zeros(2, 64, dtype=torch.int64),
                "attention_mask": torch.ones(2, tokens, tokens),
                "position_ids": torch.arange(tokens).expand(2, tokens).clone(),
                "return_dict": False,
            },
            50,
        ),
        "HiDream-I1": (
            lambda: diffusers.HiDreamImageTransformer2DModel(**HIDREAM),
            {
                "hidden_states": zeros(1, 16, 128, 128),
                "timesteps": zeros(1, dtype=torch.float32),
                "encoder_hidden_states_t5": zeros(1, 128, 4096),
                "encoder_hidden_states_llama3": zeros(32, 1, 128, 4096),
                "pooled_embeds": zeros(1, 2048),
                "return_dict": False,
            },
            100,
        ),
        "Mochi 1": (
            lambda: diffusers.MochiTransformer3DModel(),
            {
                "hidden_states": zeros(2, 12, 4, 60, 106),
                "encoder_hidden_states": zeros(2, 256, 4096),
                "timestep": zeros(2, dtype=torch.int64),
                "encoder_attention_mask": mask(2, 256),
                "return_dict": False,
            },
            64,
        ),
    }


class Steps(diffusers.DiffusionPipeline):  # type: ignore[misc]
    """Calls its transformer so many times."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.register_modules(transformer=transformer)

    @torch.no_grad()
    def __call__(self, steps: int, **call: Any) -> Any:
        """The result of the last of them."""
        for _ in range(steps):
            result = self.transformer(**call)
        return result


def planned(case: Case, rig: str) -> tuple[Any, float]:
    """The account of a plan, and the processor's seconds that it took."""
    build, call, steps = case
    with empty():
        module = build().eval()
    for child in module.modules():
        for name, weight in child._parameters.items():
            child._parameters[name] = None if weight is None else nn.Parameter(weight.to(torch.bfloat16))
    started = time.process_time()
    dry = DryPipeline(Steps(module), {"rig": rig})
    plan = dry(steps, **call)
    return dry.account(plan), time.process_time() - started


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of the transformers; all if left out")
    names = parser.parse_args().names
    table = Table(
        "transformer", "rig", "programs", "device", "weights", "streamed", "values", "seconds", "planned in s"
    )
    for name, case in cases().items():
        for rig in RIGS if not names or name in names else ():
            account, seconds = planned(case, rig)
            (part,) = account.shown
            for row in part.rows:
                sizes = map(format_bytes, (row.weights, row.streamed, row.activations))
                takes = seconds_text(part.seconds, part.spread)
                first = row is part.rows[0]
                said = (name, rig, str(part.programs)) if first else ("", "", "")
                table.add_row(*said, str(row.device), *sizes, *((takes, f"{seconds:.0f}") if first else ("", "")))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()

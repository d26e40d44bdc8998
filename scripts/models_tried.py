"""Prints docs/models.md, from the tables that tests and benchmarks run: `python -m scripts.models_tried`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import diffusers
from torch import nn

from testbed.pipelines.every_pipeline import EVERY_PIPELINE
from testbed.zoo.everything import CLASSES
from testbed.zoo.full_size import FULL_SIZE
from testbed.zoo.of_transformers import CASES

OF_DIFFUSERS = sorted(name for name in CLASSES if hasattr(diffusers, name))
OF_TRANSFORMERS = sorted({*CASES, *CLASSES} - {*OF_DIFFUSERS})

TEXT = """\
# Models that were tried

No table of models is in dovetail: what a component is, is read from its graph and its modules, so any pipeline of
diffusers and any component that `torch.export` can trace should compile. Below is what has been tried, with which
commands, and how far. **Weights were random in all but the demo**, which is trained: equal bits, memory and bytes do
not depend on weights, how a picture looks does. What has run on a card is on [Devices](devices.md).

## Pipelines

{pipelines} pipelines of {classes} classes, tiny and whole (encoders, sampling, decoder), painted on one, two and
three simulated devices: every one equal to eager in every bit. `python -m benchmarks.pipelines` compares all; the
slow tests a third at each run.

{pipeline_table}

## Components at full size

{full} configurations as published, on meta: traced, split over two and four devices that just hold them, verified,
and predicted (`pytest -m slow tests/zoo/test_full_size.py`; [Placement search](placement-search.md) has plans of
whole pipelines).

{full_table}

## Classes of components

Tiny instances, compiled by layers and compared with eager bit by bit over several devices and sizes (`python -m
benchmarks.zoo`, `python -m benchmarks.transformers`); [Modes](modes.md) says how those that split one layer are
compared.

**diffusers** ({tiny}): {tiny_names}.

**transformers** ({cases}): {case_names}.

## Yours

`dovetail plan MODEL --rig "cuda0=16GiB,cuda1=10GiB"` needs the configuration alone and says at once whether it
traces; `dovetail verify MODEL` compares what was compiled with eager, bit by bit. What cannot be traced runs by
parts, or as it is on one device, and this is said.
"""


def main() -> None:
    """Prints the page."""
    pipelines = _pipelines()
    print(
        TEXT.format(
            pipelines=len(EVERY_PIPELINE),
            classes=len(pipelines),
            pipeline_table=_table(("pipeline", "its models"), sorted(pipelines.items())),
            full=len(FULL_SIZE),
            full_table=_table(("configuration", "class", "parameters"), _full_size()),
            tiny=len(OF_DIFFUSERS),
            tiny_names=", ".join(OF_DIFFUSERS),
            cases=len(OF_TRANSFORMERS),
            case_names=", ".join(OF_TRANSFORMERS),
        ),
        end="",
    )


def _pipelines() -> dict[str, str]:
    """The classes of the models of each class of pipelines, in the order of its components."""
    models: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for make in EVERY_PIPELINE.values():
        pipe, _ = make()
        parts = (type(part).__name__ for part in pipe.components.values() if isinstance(part, nn.Module))
        models[type(pipe).__name__] |= dict.fromkeys(parts)
    return {name: ", ".join(parts) for name, parts in models.items()}


def _full_size() -> Iterator[tuple[str, str, str]]:
    for name, entry in sorted(FULL_SIZE.items()):
        module, _ = entry.make()
        count = sum(parameter.numel() for parameter in module.parameters())
        yield name, type(module).__name__, f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.0f} M"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()

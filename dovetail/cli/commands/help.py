"""`dovetail help`: recipes by topic."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from ...compiler.errors import UsageError

TOPICS = {
    "placement": """\
Where a model runs. Without any of these options a placement is searched that fits and takes least time;
`dovetail plan MODEL` prints it, with the options that ask for the same. What you type is kept to.

A plan for a machine that you do not own:
  dovetail plan MODEL --rig "cuda0=16GiB,cuda1=10GiB,cpu=64GiB" --size 1024 --steps 28
Two GPUs, the transformer over both:
  dovetail generate "a cat" --model MODEL --backend "diffusion=cuda0+cuda1,te=cuda1,vae=cuda0"
Two GPUs, three quarters of it on the first:
  dovetail generate "a cat" --model MODEL --backend cuda0+cuda1 --tensor-split 3,1
One GPU, text encoders on the CPU:
  dovetail generate "a cat" --model MODEL --backend "cuda0,te=cpu"
One GPU that is too small: weights are kept in RAM and copied block by block:
  dovetail generate "a cat" --model MODEL --backend cuda0 --params-backend cpu
Too little RAM as well: they come from their files:
  dovetail generate "a cat" --model MODEL --backend cuda0 --params-backend disk
No more than 8 GiB of each GPU:
  dovetail generate "a cat" --model MODEL --max-vram 8
A picture too large to be decoded at once:
  dovetail generate "a cat" --model MODEL --size 2048 --vae-tiling on
A rehearsal without a GPU, on simulated devices that keep their sizes:
  dovetail generate "a red circle" --backend sim0+sim1 --rig "sim0=64MiB,sim1=32MiB,cpu=8GiB"
""",
    "pictures": """\
What is generated.

Four pictures, with the seeds 7, 8, 9 and 10:
  dovetail generate "a cat" --model MODEL --seed 7 --num-images 4
A picture as the beginning, of which six tenths are changed:
  dovetail generate "a cat" --model MODEL --image photo.png --strength 0.6
Only where a mask is white:
  dovetail generate "a cat" --model MODEL --image photo.png --mask mask.png
With a ControlNet that follows edges:
  dovetail generate "a cat" --model MODEL --control-net CONTROLNET --control-image edges.png
Another scheduler:
  dovetail generate "a cat" --model MODEL --scheduler euler_a --steps 30
A video:
  dovetail generate "a cat walks" --model MODEL --frames 49 --fps 16 -o cat.mp4
""",
    "weights": """\
Where weights come from.

A transformer of 4.5 bits a weight, made once, and used in place of the model's own:
  dovetail convert MODEL/transformer -o transformer.gguf --type q4_k
  dovetail generate "a cat" --model MODEL --weights transformer=transformer.gguf
The same while loading, kept for the next start; f8 is floats of 8 bits:
  dovetail generate "a cat" --model MODEL --quant transformer=q4_k,te=f8
One file with a whole pipeline; where its configs cannot be downloaded, --config names a folder that has them:
  dovetail generate "a cat" --model model.safetensors --config MODEL
A LoRA at eight tenths of its strength:
  dovetail generate "a cat" --model MODEL --lora style.safetensors:0.8
""",
}


def help(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=f"One of: {', '.join(TOPICS)}.")] = "",
) -> None:
    """Show recipes: commands for what people often want."""
    if not topic:
        typer.echo("dovetail help TOPIC shows commands to copy. There are: " + ", ".join(TOPICS))
        return
    if topic not in TOPICS:
        near = difflib.get_close_matches(topic, TOPICS, 1)
        hint = f", did you mean {near[0]}?" if near else "."
        raise UsageError(f"there is no topic {topic!r}{hint} There are: {', '.join(TOPICS)}")
    typer.echo(TOPICS[topic], nl=False)

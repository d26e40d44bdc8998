"""Trains the demo's adapter, its blue period: `python -m dovetail.demo.style --work FOLDER`.

With it the demo pipeline paints whatever shapes it is asked for where it is asked for them, and all of them blue. Ten
minutes on one busy CPU core.
"""

import argparse
import logging
from functools import partial
from pathlib import Path

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from peft import LoraConfig, get_peft_model_state_dict
from PIL import Image

from dovetail.demo import adapter, denoise, image
from dovetail.demo.draw import in_blue
from dovetail.demo.evaluate import load, paint
from dovetail.demo.loop import Recipe, Stage
from dovetail.demo.sheet import sheet
from dovetail.demo.text import Encoders

RECIPE = Recipe("blue", steps=600, rate=2e-3, betas=(0.9, 0.98), weight_decay=0.0, save_every=100)
RANK = 4
PICTURES = 2000
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "proj_mlp", "proj_out", "net.0.proj", "net.2")

_SHOWN = ("a red circle above a yellow square", "a green triangle left of a pink circle")
_SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)

_logger = logging.getLogger(__name__)


def corpus(pipeline: FluxPipeline) -> denoise.Corpus:
    """Return pictures in blue, with the captions that ask for all colours."""
    scenes, pictures = image.training_set(PICTURES, painted_as=in_blue)
    encoders = Encoders()
    encoders.clip, encoders.t5 = pipeline.text_encoder, pipeline.text_encoder_2
    return denoise.corpus(scenes, pictures, pipeline.vae, encoders)


def train(work: Path, into: Path) -> None:
    """Train the adapter on the demo pipeline and write it in bfloat16."""
    work.mkdir(parents=True, exist_ok=True)
    pipeline = load()
    data = corpus(pipeline)
    _logger.info("%d pictures and %d captions encoded", len(data.latents), len(data.tokens))
    add_adapter(pipeline.transformer)
    Stage(pipeline.transformer, RECIPE, work).run(partial(denoise.loss, pipeline.transformer, data))
    write(pipeline.transformer, into)
    _logger.info("written to %s", into)


def add_adapter(transformer: FluxTransformer2DModel) -> None:
    """Put a fresh adapter on the transformer, the only thing of it that is trained."""
    torch.manual_seed(3)
    transformer.requires_grad_(False)
    transformer.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(TARGETS)))


def write(transformer: FluxTransformer2DModel, into: Path) -> None:
    """Save the adapter in diffusers' format."""
    layers = {
        name: value.to(torch.bfloat16).contiguous() for name, value in get_peft_model_state_dict(transformer).items()
    }
    beside = into.with_name(f"{into.stem}.part.safetensors")
    FluxPipeline.save_lora_weights(into.parent, transformer_lora_layers=layers, weight_name=beside.name)
    beside.chmod(0o644)
    beside.replace(into)


def strip(pipeline: FluxPipeline) -> Image.Image:
    """Paint captions under a growing scale of the adapter, which the pipeline must have loaded as "blue"."""
    painted = []
    for caption in _SHOWN:
        for scale in _SCALES:
            pipeline.set_adapters("blue", scale)
            painted.append((f"scale {scale:g}", paint(pipeline, [caption], [3])[0]))
    return sheet(painted, columns=len(_SCALES))


def main() -> None:
    """Read the command line and train, or show what was trained."""
    parser = argparse.ArgumentParser(prog="python -m dovetail.demo.style", description="Train the demo's adapter.")
    parser.add_argument("--work", type=Path, default=Path("demo-train"), help="folder for checkpoints (demo-train)")
    parser.add_argument("--into", type=Path, default=adapter(), help="where to write the adapter (the package)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--strip", type=Path, help="train nothing; save pictures under a growing scale as a PNG")
    options = parser.parse_args()
    if options.strip:
        pipeline = load()
        pipeline.load_lora_weights(options.into, adapter_name="blue")
        strip(pipeline).save(options.strip, optimize=True)
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    train(options.work, options.into)


if __name__ == "__main__":
    main()

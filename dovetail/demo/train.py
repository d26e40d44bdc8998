"""Trains the demo pipeline from nothing: `python -m dovetail.demo.train --work FOLDER`.

Three stages, each with a checkpoint in the work folder, so that an interrupted run goes on where it stopped:
autoencoder, text encoders, transformer. About an hour on two busy CPU cores.
"""

import argparse
import logging
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from dovetail.demo import denoise, folder, image, text

_logger = logging.getLogger(__name__)


def train(work: Path, into: Path) -> None:
    """Train the three stages and write the pipeline."""
    work.mkdir(parents=True, exist_ok=True)
    scenes, pictures = image.training_set()
    _logger.info("%d pictures drawn", len(pictures))
    vae = image.train(pictures, work)
    encoders = text.train(work)
    data = denoise.corpus(scenes, pictures, vae, encoders)
    _logger.info("%d pictures and %d captions encoded", len(data.latents), len(data.tokens))
    transformer = denoise.train(data, work)
    write(assemble(vae, encoders, transformer), into)
    _logger.info("written to %s", into)


def assemble(vae: AutoencoderKL, encoders: text.Encoders, transformer: FluxTransformer2DModel) -> FluxPipeline:
    """Make a pipeline of the trained parts."""
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=encoders.clip,
        tokenizer=encoders.clip_tokenizer,
        text_encoder_2=encoders.t5,
        tokenizer_2=encoders.t5_tokenizer,
        transformer=transformer,
    )


def write(pipeline: FluxPipeline, into: Path) -> None:
    """Save a pipeline in bfloat16, first beside the folder, so that a half-written one is never found there."""
    beside, before = into.with_name(into.name + ".part"), into.with_name(into.name + ".before")
    for leftover in (beside, before):
        shutil.rmtree(leftover, ignore_errors=True)
    for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2):
        tokenizer.backend_tokenizer.no_padding()  # a tokenizer's file keeps the lengths of its last call
        tokenizer.backend_tokenizer.no_truncation()
    pipeline.to(dtype=torch.bfloat16).save_pretrained(beside)
    for file in beside.rglob("*.safetensors"):
        file.chmod(0o644)
    if into.exists():
        into.rename(before)
    beside.rename(into)
    shutil.rmtree(before, ignore_errors=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m dovetail.demo.train", description="Train the demo pipeline.")
    parser.add_argument("--work", type=Path, default=Path("demo-train"), help="folder for checkpoints (demo-train)")
    parser.add_argument("--into", type=Path, default=folder(), help="where to write the pipeline (the package)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    train(options.work, options.into)


if __name__ == "__main__":
    main()

"""Run a model on a device that is smaller than its weights: they rest in host memory and come block by block.

On a card of 8 GB the same line is `max_vram=8` with `params_backend="cpu"`.
"""

import torch

import dovetail
from dovetail import demo
from dovetail.runtime import sim

if __name__ == "__main__":
    pipe = dovetail.load_pipeline(
        demo.folder(), backend="sim0", params_backend="cpu", max_vram="sim0=20MiB", dtype=torch.float32
    )
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 2}
    pipe("a green triangle", **call, generator=torch.Generator().manual_seed(0)).images[0].save("small.png")
    weights = sum(one.numel() * one.element_size() for one in pipe.transformer.parameters())
    peak = sim.stats(0).peak
    print(f"the transformer has {weights / 2**20:.1f} MiB of weights; sim0 held {peak / 2**20:.1f} MiB at most")
    assert peak <= 20 * 2**20 < weights

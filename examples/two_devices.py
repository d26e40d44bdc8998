"""Paint one picture on one device and one over two; they are equal, bit for bit.

`sim0` and `sim1` are simulated devices. With two graphics cards, write `cuda0&cuda1`.
"""

import torch

import dovetail
from dovetail import demo


def paint(backend: str) -> torch.Tensor:
    """Paints on the devices that are named."""
    pipe = dovetail.load_pipeline(demo.folder(), backend=backend, dtype=torch.float32)
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 4, "output_type": "pt"}
    picture = pipe("a red circle above a blue square", **call, generator=torch.Generator().manual_seed(0)).images
    print(pipe.dovetail)
    return picture.cpu()


if __name__ == "__main__":
    assert torch.equal(paint("sim0"), paint("diffusion=sim0&sim1,te=sim1,vae=sim0"))
    print("the two pictures are equal")

"""Make an image-to-image pipeline of a compiled one: both share their models, which stay where they are."""

import diffusers
import torch

import dovetail
from dovetail import demo

if __name__ == "__main__":
    pipe = dovetail.load_pipeline(demo.folder(), backend="sim0&sim1", dtype=torch.float32)
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 4}
    first = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images[0]
    other = diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
    changed = other("a blue square", **call, image=first, strength=0.8, generator=torch.Generator().manual_seed(1))
    first.save("first.png")
    changed.images[0].save("changed.png")
    assert type(other).__name__ == "FluxImg2ImgPipeline"
    print("first.png and changed.png were painted")

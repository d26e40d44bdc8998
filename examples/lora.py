"""Load a LoRA into a compiled pipeline as into any other, change its scale, and take it out again."""

import numpy as np
import torch

import dovetail
from dovetail import demo

if __name__ == "__main__":
    pipe = dovetail.load_pipeline(demo.folder(), backend="sim0&sim1", dtype=torch.float32)

    def paint(name: str) -> torch.Tensor:
        """Paints with the LoRAs that are active now, and saves the picture."""
        call = {**demo.CALL_DEFAULTS, "num_inference_steps": 4}
        picture = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images[0]
        picture.save(name)
        return torch.from_numpy(np.asarray(picture))

    plain = paint("plain.png")
    pipe.load_lora_weights(demo.adapter().parent, weight_name=demo.adapter().name, adapter_name="blue")
    blue = paint("blue.png")
    pipe.set_adapters("blue", 0.5)
    paint("half-blue.png")
    pipe.unload_lora_weights()
    assert not torch.equal(plain, blue)
    assert torch.equal(plain, paint("plain-again.png"))
    print("plain.png, blue.png and half-blue.png were painted")

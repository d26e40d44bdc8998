"""Compile a module of your own for two devices, look at its plan, save it, and run it by the plan."""

import torch

import dovetail

if __name__ == "__main__":
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).eval()
    x = torch.randn(2, 64)
    compiled = dovetail.compile(layers, (x,), backend="sim0&sim1")
    print(compiled)
    compiled.save("layers.json")
    weights = {name: one.detach() for name, one in layers.state_dict().items()}
    again = dovetail.load("layers.json", weights=weights)
    assert torch.equal(again(x), layers(x))
    assert torch.equal(compiled(x), layers(x))
    print("layers.json has the plan")

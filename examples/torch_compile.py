"""Give a model to torch.compile with dovetail as its backend: the graph runs over two devices."""

import torch

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()
    compiled = torch.compile(model, backend="dovetail", options={"backend": "sim0&sim1"})
    x = torch.randn(4, 32)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    print("torch.compile ran the model over sim0 and sim1")

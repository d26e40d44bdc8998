"""A simulated device takes from the host what CUDA takes, and refuses what CUDA refuses."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dovetail.runtime import sim

pytestmark = pytest.mark.usefixtures("sim_devices")
Op = Callable[..., Any]
sim.enable()

SIM = torch.device("sim", 0)
ROWS = torch.tensor([2, 0])
MASK = torch.tensor([True, False, True])
HALF = torch.tensor(0.5)


def _put(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


TAKEN: dict[str, Op] = {
    "rows by indices": lambda x: x[ROWS],
    "columns by indices": lambda x: x[:, ROWS],
    "two indices": lambda x: x[ROWS, torch.tensor([1, 3])],
    "an index without dimensions": lambda x: x[torch.tensor(1)],
    "indices from here and there": lambda x: x[ROWS, torch.tensor([1, 3], device=x.device)],
    "a mask": lambda x: x[MASK],
    "a mask of everything": lambda x: x[torch.ones(3, 5, dtype=torch.bool)],
    "a list": lambda x: x[[2, 0]],
    "an array": lambda x: x[np.array([2, 0])],
    "writing rows": lambda x: _put(x, ROWS, x[:2] * 2),
    "writing a number through a mask": lambda x: _put(x, MASK, 7.0),
    "writing a scalar through a mask": lambda x: _put(x, MASK, HALF),
    "adding through indices": lambda x: x.index_put((ROWS,), HALF, accumulate=True),
    "splitting at positions": lambda x: torch.tensor_split(x, torch.tensor([1, 2])),
    "packing sequences": lambda x: torch.nn.utils.rnn.pack_padded_sequence(
        x[..., None], torch.tensor([5, 4, 2]), batch_first=True
    ).data,
    "adding a scalar": lambda x: [x + HALF, HALF - x, HALF * x, x / HALF, x.abs() ** HALF, x > HALF],
    "adding a scalar in place": lambda x: x.clone().add_(HALF).mul_(HALF),
    "where with scalars": lambda x: [torch.where(x > 0, x, HALF), torch.where(HALF > 0, x, x)],
    "filling a mask with a scalar": lambda x: x.masked_fill(x > 0, HALF),
    "filling with a scalar": lambda x: x.clone().fill_(HALF),
    "filling rows with a scalar": lambda x: x.index_fill(0, torch.tensor([1], device=x.device), HALF),
    "interpolating by a scalar": lambda x: [torch.lerp(x, x * 2, HALF), torch.addcmul(x, HALF, x)],
    "clamping to scalars": lambda x: [x.clamp(min=-HALF, max=HALF), torch.maximum(x, HALF)],
    "a loss against a scalar": lambda x: [torch.isclose(x, HALF), torch.fmod(x, HALF), torch.remainder(x, HALF)],
    "a copy from the host": lambda x: x.clone().copy_(torch.ones(3, 5)),
    "setting a slice from the host": lambda x: _put(x, slice(1, 3), torch.ones(2, 5)),
    "numbers in double": lambda x: x.double().cumsum(0),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_cuda_takes_from_the_host_is_taken(name: str) -> None:
    x = torch.randn(3, 5)
    there, here = TAKEN[name](x.to(SIM)), TAKEN[name](x)
    for one, expected in zip(*([r] if isinstance(r, torch.Tensor) else list(r) for r in (there, here)), strict=True):
        assert one.device == SIM
        assert one.stride() == expected.stride()
        assert torch.equal(one.cpu(), expected)


REFUSED: dict[str, Op] = {
    "a host tensor indexed from there": lambda x: torch.ones(3, 5)[ROWS.to(SIM)],
    "indices of another device": lambda x: x[ROWS.to("sim:1")],
    "values of the host": lambda x: _put(x, ROWS.to(SIM), ROWS[:, None].expand(2, 5).float().index_select(1, ROWS)),
    "values written through indices": lambda x: x.index_put((ROWS,), torch.ones(2, 5)),
    "selecting by host indices": lambda x: x.index_select(0, ROWS),
    "gathering by host indices": lambda x: x.gather(0, ROWS[None]),
    "taking along host indices": lambda x: torch.take_along_dim(x, ROWS[None], 0),
    "scattering by host indices": lambda x: x.scatter(0, ROWS[None], 1.0),
    "an embedding of host indices": lambda x: F.embedding(ROWS, x),
    "selecting by a host mask": lambda x: x.masked_select(MASK[:, None]),
    "filling a host mask": lambda x: x.masked_fill(MASK[:, None], 0.0),
    "where on a host condition": lambda x: torch.where(MASK[:, None], x, x),
    "where with a host operand": lambda x: torch.where(x > 0, x, torch.ones(3, 5)),
    "stacking scalars": lambda x: torch.stack([x[0, 0], HALF]),
    "joining with the host": lambda x: torch.cat([x, torch.ones(1, 5)]),
    "a host tensor of one element": lambda x: x + torch.ones(1),
    "a product with the host": lambda x: x @ torch.ones(5, 2),
    "a linear layer of the host": lambda x: F.linear(x, torch.ones(2, 5)),
    "writing into the host": lambda x: torch.ones(3, 5).add_(x),
    "an out argument of the host": lambda x: torch.add(x, 1, out=torch.ones(3, 5)),
    "splitting at positions there": lambda x: torch.tensor_split(x, torch.tensor([1, 2], device=SIM)),
    "drawing with a generator of the host": lambda x: torch.randn(2, device=SIM, generator=torch.Generator()),
    "drawing in place with a generator of the host": lambda x: x.normal_(generator=torch.Generator()),
    "drawing with a generator of another device": lambda x: x.uniform_(generator=torch.Generator("sim:1")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"sim|index"):
        REFUSED[name](torch.randn(3, 5, device=SIM))


def test_a_tensor_there_is_no_array_and_cannot_be_pinned() -> None:
    value = torch.ones(2, device=SIM)
    with pytest.raises(TypeError, match=r"can't convert sim:0 device type tensor to numpy"):
        value.numpy()
    with pytest.raises(TypeError, match=r"can't convert sim:0 device type tensor to numpy"):
        np.asarray(value)
    with pytest.raises((RuntimeError, NotImplementedError)):
        value.pin_memory()
    assert value.numpy(force=True).tolist() == [1, 1]


def test_a_generator_belongs_to_its_device_and_draws_the_numbers_of_the_host() -> None:
    there = torch.Generator("sim:1").manual_seed(5)
    assert (there.device, isinstance(there, torch.Generator)) == (torch.device("sim", 1), True)
    assert isinstance(torch.default_generator, torch.Generator)
    drawn = torch.randn(3, 4, generator=there, device="sim:1")
    assert torch.equal(drawn.cpu(), torch.randn(3, 4, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(
        torch.randperm(9, generator=torch.Generator(SIM).manual_seed(1), device=SIM).cpu(),
        torch.randperm(9, generator=torch.Generator("cpu").manual_seed(1)),
    )
    assert torch.Generator(device="sim").device == SIM


def test_a_generator_can_be_copied_with_its_state() -> None:
    one = torch.Generator(SIM).manual_seed(7)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), one.clone_state()):
        assert other.device == SIM
        expected = torch.rand(2, generator=torch.Generator().manual_seed(7))
        assert torch.equal(torch.rand(2, generator=other, device=SIM).cpu(), expected)


def test_diffusers_draws_on_either_side() -> None:
    from diffusers.utils.torch_utils import randn_tensor

    expected = randn_tensor((2, 3), torch.Generator().manual_seed(0))
    for place in ("cpu", "sim:0"):
        drawn = randn_tensor((2, 3), torch.Generator(place).manual_seed(0), SIM)
        assert drawn.device == SIM
        assert torch.equal(drawn.cpu(), expected)


def _saved(what: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


def test_weights_there_are_saved_and_loaded_there_or_to_the_host() -> None:
    module = torch.nn.Linear(3, 4)
    expected = copy.deepcopy(module.state_dict())
    file = _saved(module.to("sim:1").state_dict())
    for place, device in ((None, "sim:1"), ("cpu", "cpu")):
        file.seek(0)
        state = torch.load(file, map_location=place)
        assert {tensor.device for tensor in state.values()} == {torch.device(device)}
        assert all(torch.equal(state[name].cpu(), expected[name]) for name in expected)


def test_parameters_stay_parameters_in_a_pickle() -> None:
    weight = pickle.loads(pickle.dumps(torch.nn.Parameter(torch.ones(2, device=SIM))))
    assert isinstance(weight, torch.nn.Parameter)
    assert (weight.device, weight.requires_grad, weight.tolist()) == (SIM, True, [1, 1])
    half = pickle.loads(pickle.dumps(torch.ones(2, 3, dtype=torch.bfloat16, device="sim:1").t()))
    assert (half.device, half.dtype, half.shape, half.stride()) == (
        torch.device("sim", 1),
        torch.bfloat16,
        (3, 2),
        (1, 3),
    )


@pytest.mark.fifth
def test_a_file_opens_where_there_is_no_simulated_device(tmp_path: Any) -> None:
    torch.save({"a": torch.ones(2, device="sim:1")}, tmp_path / "file")
    code = f"import torch; print(torch.load({str(tmp_path / 'file')!r}, map_location='cpu')['a'].tolist())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[1.0, 1.0]\n"


@pytest.mark.parametrize("mode", ["bilinear", "trilinear", "bicubic", "nearest"])
def test_deterministic_algorithms_leave_the_cpus_kernels_in_place(mode: str) -> None:
    x = torch.rand((1, 3, 5, 16, 16) if mode == "trilinear" else (1, 3, 16, 16)) * 2 - 1
    align = {} if mode == "nearest" else {"align_corners": True}
    torch.use_deterministic_algorithms(True)
    try:
        expected = F.interpolate(x, scale_factor=2.3, mode=mode, **align)
        assert torch.equal(F.interpolate(x.to(SIM), scale_factor=2.3, mode=mode, **align).cpu(), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not x.to(SIM).is_cpu

"""A result that is not there yet is, for whoever asks for more than its form, the tensor that comes."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from dovetail.runtime import sim
from dovetail.runtime.unfinished import Awaited, Unfinished, finished, has_unfinished


def made(real: torch.Tensor) -> tuple[Unfinished, list[int]]:
    """An unfinished tensor, and how often it was waited for."""
    waited: list[int] = []

    def get() -> torch.Tensor:
        waited.append(1)
        return real

    return Unfinished.of(Awaited(get), real, real.device), waited


def saved(value: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda x: x.shape,
    "size": lambda x: x.size(0),
    "dtype": lambda x: x.dtype,
    "device": lambda x: x.device,
    "dim": lambda x: x.dim(),
    "len": len,
    "numel": lambda x: x.numel(),
    "is float": lambda x: x.is_floating_point(),
}
LATER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[:, :2],
    "cast": lambda x: x.to(torch.float64),
    "half": lambda x: x.half(),
    "view": lambda x: x.view(-1),
    "unsqueeze": lambda x: x.unsqueeze(0)[..., None],
    "permute": lambda x: x.permute(1, 0)[1:],
    "same": lambda x: x.float(),
}
READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + 1,
    "from the right": lambda x: 1 - x,
    "with another": lambda x: torch.ones(4) * x,
    "function": torch.nn.functional.silu,
    "module": torch.nn.Sigmoid(),
    "operator": lambda x: torch.ops.aten.mul.Tensor(x, x),
    "cat": lambda x: torch.cat([x, x]),
    "chunk": lambda x: x.chunk(2)[1],
    "index": lambda x: x[torch.tensor([1, 0])],
    "in place": lambda x: x.mul_(2),
    "set": lambda x: x.__setitem__(0, 7),
    "out": lambda x: torch.add(torch.ones(3, 4), 1, out=x),
    "print": repr,
    "format": lambda x: f"{x}",
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "dlpack": np.from_dlpack,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": saved,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "item": lambda x: x[0, 0].item(),
    "list": lambda x: x.tolist(),
    "iterate": list,
    "truth": lambda x: bool((x > 0).all()),
    "stride": lambda x: x.stride(),
    "contiguous": lambda x: x.is_contiguous(),
    "pointer": lambda x: isinstance(x.data_ptr(), int),
    "storage": lambda x: x.untyped_storage().nbytes(),
    "to device": lambda x: x.to("meta").shape,
}


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", FORMS)
def test_its_form_is_known_at_once(name: str) -> None:
    real = torch.randn(3, 4)
    one, waited = made(real)
    assert FORMS[name](one) == FORMS[name](real)
    assert not waited


@pytest.mark.parametrize("name", READS)
def test_all_else_waits_and_is_answered_by_what_comes(name: str) -> None:
    torch.manual_seed(0)
    real = torch.rand(3, 4)
    expected, there = READS[name](real.clone()), real.clone()
    one, waited = made(there)
    found = READS[name](one)
    assert waited == [1]
    assert is_same(found, expected)
    assert not isinstance(found, Unfinished)
    assert torch.equal(one, there)  # what was written, too
    assert waited == [1]


ON_DEVICES = sorted(READS.keys() - {"with another", "index", "out", "array", "numpy", "dlpack", "pointer", "storage"})
"""What is asked of results that lie on accelerators too."""


@pytest.mark.parametrize("name", ON_DEVICES)
def test_all_else_of_a_result_on_a_device_waits_too(name: str) -> None:
    sim.enable()
    there = torch.rand(3, 4).to("sim")
    expected = READS[name](there.clone())
    one, waited = made(there)
    found = READS[name](one)
    assert waited == [1]
    assert str(found) == str(expected) if name in ("save", "pickle") else is_same(found, expected)


@pytest.mark.parametrize("name", LATER)
def test_views_and_casts_are_put_off(name: str) -> None:
    real = torch.rand(3, 4)
    one, waited = made(real)
    later = LATER[name](one)
    expected = LATER[name](real)
    assert (later.shape, later.dtype, later.device) == (expected.shape, expected.dtype, expected.device)
    assert not waited
    assert torch.equal(later, expected)
    assert waited == [1]


@given(st.lists(st.sampled_from(sorted(LATER)), max_size=3), st.sampled_from(sorted(READS)), st.booleans())
def test_what_is_put_off_is_made_before_anybody_writes(later: list[str], read: str, is_first: bool) -> None:
    def painted(value: torch.Tensor) -> list[torch.Tensor]:
        views = [LATER[name](value) for name in later]
        if is_first:
            value += 1  # a cast that was made has the numbers of before
        READS[read](value)
        return [view.clone() for view in (*views, value)]

    torch.manual_seed(0)
    real = torch.rand(3, 4)
    one, waited = made(real.clone())
    assert is_same(painted(one), painted(real.clone()))
    assert waited == [1]


def test_those_who_go_past_functions_wait_too() -> None:
    real = torch.randn(3)
    one, waited = made(real)
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.equal(one + 1, real + 1)
    assert waited == [1]


def test_c_code_that_looks_at_its_memory_is_refused() -> None:
    one, _ = made(torch.randn(3))
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.utils.dlpack.to_dlpack(one)


@pytest.mark.parametrize("device", ["cpu", "sim:0", "meta"])
@pytest.mark.parametrize("is_parameter", [False, True])
def test_no_other_tensor_takes_it_for_its_data(device: str, is_parameter: bool) -> None:
    sim.enable()
    there = torch.randn(3, device=device)
    one, _ = made(there.clone())
    plain = torch.nn.Parameter(there) if is_parameter else there
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        plain.data = one
    assert plain.shape == (3,)
    plain.data = finished(one)
    if device != "meta":
        assert torch.equal(plain.detach().cpu(), one.cpu())


def test_an_error_is_raised_each_time_it_is_read() -> None:
    def fail() -> torch.Tensor:
        raise ValueError("no result")

    one = Unfinished.of(Awaited(fail), torch.randn(3), torch.device("cpu"))
    part = one[:2]
    for value in (one, part, one):
        with pytest.raises(ValueError, match="no result"):
            print(value)
    assert one.shape == (3,)


def test_a_wrong_view_is_refused_at_once() -> None:
    one, waited = made(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="shape"):
        one.view(5)
    assert not waited


def test_on_a_device_it_meets_that_device_s_tensors() -> None:
    sim.enable()
    real = torch.randn(3, 4)
    there = real.to("sim:0")
    one, waited = made(there)
    assert one.device == there.device
    assert not waited
    assert torch.equal((there + one).cpu(), real + real)
    assert torch.equal((one[1:] - 1).cpu(), real[1:] - 1)
    assert waited == [1]


def test_arguments_are_told_apart() -> None:
    real = torch.randn(3)
    one, _ = made(real)
    assert has_unfinished((), {"x": [one]})
    assert not has_unfinished((real,), {})
    (found,), kwargs = finished(((one,), {"y": 1}))
    assert found is real
    assert kwargs == {"y": 1}


def test_what_is_put_off_while_another_thread_waits_is_made_before_the_next_write() -> None:
    real, go, waits = torch.ones(3), threading.Event(), threading.Event()

    def get() -> torch.Tensor:
        waits.set()
        assert go.wait(60)
        return real

    awaited, casts = Awaited(get), list[Awaited]()
    reader = threading.Thread(target=awaited)
    reader.start()
    assert waits.wait(60)
    caster = threading.Thread(target=lambda: casts.append(awaited.then(torch.Tensor.double)))
    caster.start()
    go.set()
    reader.join(60)
    caster.join(60)
    awaited().mul_(2)
    assert torch.equal(casts[0](), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["device", "is_cpu", "is_cuda", "get_device"])
def test_where_it_lies_is_known_under_modes_of_others(name: str) -> None:
    real = torch.randn(3)
    one, waited = made(real)
    with FakeTensorMode():
        found, expected = getattr(one, name), getattr(real, name)
        assert (found() == expected()) if callable(expected) else (found == expected)
    assert not waited


def test_an_export_waits_for_what_it_is_given() -> None:
    real = torch.randn(3, 4)
    one, _ = made(real)
    program = torch.export.export(torch.nn.Linear(4, 4), (one,))
    assert program.graph_module.code

"""Errors that mean that memory ran out are told as such, whichever library raises them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError, ExecutionError, NotHereError
from dovetail.runtime import sim
from dovetail.runtime.devices.out_of_memory import fetched
from dovetail.runtime.store.origin import TensorOrigin

MESSAGES = (
    "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: out of memory",
    "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
)
X = torch.ones(1, 8)


def compiled() -> dovetail.CompiledModule:
    return dovetail.compile(nn.Sequential(nn.Linear(8, 8)).eval(), (X,), backend="cpu")


def run_raising(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled()
    (source,) = module._executor.sources.values()

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setitem(source.bound, "aten_linear", fail)
    module(X)


@pytest.mark.parametrize("message", MESSAGES)
def test_an_operation_that_finds_no_memory_is_told_with_a_way_out(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DoesNotFitError, match=r"%linear \(aten\.linear\.default\).*smaller size or batch"):
        run_raising(RuntimeError(message), monkeypatch)


def test_an_error_of_a_device_that_runs_behind_does_not_blame_the_line_for_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ExecutionError, match=r"before this one may be to blame: CUDA_LAUNCH_BLOCKING=1 shows which"):
        run_raising(RuntimeError("CUDA error: device-side assert triggered"), monkeypatch)
    with pytest.raises(ExecutionError, match=r"before this one may be to blame$"):
        run_raising(
            RuntimeError("Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)"), monkeypatch
        )


@pytest.mark.parametrize("times", [1, 2])
def test_a_weight_that_finds_no_memory_is_fetched_once_more(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, read = [times], TensorOrigin.read

    def scarce(self: TensorOrigin, weight: Any, device: torch.device) -> torch.Tensor:
        if weight.name == "0.weight" and left[0]:
            left[0] -= 1
            raise RuntimeError(MESSAGES[0])
        return read(self, weight, device)

    monkeypatch.setattr(TensorOrigin, "read", scarce)
    if times == 1:
        compiled()(X)
        return
    with pytest.raises(DoesNotFitError, match=r"weight 0\.weight of Sequential needs 256 B on cpu"):
        compiled()(X)


def test_another_error_is_not_tried_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        fetched(fail)
    assert len(calls) == 1


def test_all_kinds_of_devices_give_back_what_they_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.enable()
    emptied: list[str] = []
    for kind in ("cuda", "xpu", "mps", "sim"):
        module = getattr(torch, kind)
        monkeypatch.setattr(module, "is_available", lambda: True)
        monkeypatch.setattr(module, "empty_cache", lambda kind=kind: emptied.append(kind))
    left = [RuntimeError(MESSAGES[0])]

    def fetch() -> str:
        if left:
            raise left.pop()
        return "there"

    assert fetched(fetch) == "there"
    assert emptied == ["cuda", "xpu", "mps", "sim"]


def test_what_is_said_of_a_full_device_has_one_way_out_that_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.enable({0: 2**20})
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**22, device="sim:0")
    with pytest.raises(DoesNotFitError, match=r"in use: ask for a smaller size or batch"):
        run_raising(caught.value, monkeypatch)
    sim.enable()


def test_a_module_without_data_is_not_sent_to_load_a_plan() -> None:
    module = dovetail.compile(nn.Linear(8, 8, device="meta").eval(), (X.to("meta"),), backend="cpu")
    with pytest.raises(NotHereError, match=r"have its module hold real weights before it is called, or name the files"):
        module(X)

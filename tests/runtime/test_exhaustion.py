"""Errors that mean that memory ran out are told as such, whichever library raises them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError, ExecutionError
from dovetail.runtime.devices.out_of_memory import fetched
from dovetail.runtime.store.origin import TensorOrigin

MESSAGES = (
    "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: out of memory",
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
    with pytest.raises(ExecutionError, match=r"an operation before this one may be to blame"):
        run_raising(RuntimeError("CUDA error: device-side assert triggered"), monkeypatch)


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

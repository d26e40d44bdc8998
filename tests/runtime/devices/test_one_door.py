"""Bytes go to a device through `runtime.transfers`, which tests links, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
DOOR = {"runtime/devices/transfers.py", "runtime/devices/ring.py"}
# What devices are made of, casts within a kernel that runs on one, and a script that trains on the host.
APART = ("runtime/sim/", "runtime/quantized/triton_kernels.py", "dovetail/demo/")
SENDING = {"cuda", "xpu", "ipu", "pin_memory", "to_empty", "type_as"}
FILES = sorted(
    path.relative_to(ROOT).as_posix() for folder in ("dovetail", "runtime") for path in (ROOT / folder).rglob("*.py")
)


def is_dtype(argument: ast.expr) -> bool:
    if isinstance(argument, ast.Name):
        return argument.id == "dtype"
    named = isinstance(argument, ast.Attribute)
    return named and (argument.attr == "dtype" or isinstance(getattr(torch, argument.attr, None), torch.dtype))  # type: ignore[attr-defined]


def sendings(source: str) -> Iterator[str]:
    """Calls that may take a tensor to another device."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        moves = node.func.attr == "to" and not all(map(is_dtype, [*node.args, *(one.value for one in node.keywords)]))
        if moves or node.func.attr in SENDING or any(one.arg == "non_blocking" for one in node.keywords):
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", [path for path in FILES if path not in DOOR and not path.startswith(APART)])
def test_no_file_sends_tensors_by_itself(path: str) -> None:
    assert not list(sendings((ROOT / path).read_text()))


@pytest.mark.parametrize("call", ["x.to(device)", "x.to('cuda', torch.half)", "x.copy_(y, non_blocking=True)",
                                  "x.cuda()", "x.to(device=y.device)", "x.to(y)"])  # fmt: skip
def test_a_sending_is_seen(call: str) -> None:
    assert list(sendings(call))


@pytest.mark.parametrize(
    "call", ["x.to(torch.half)", "x.to(y.dtype)", "x.to(dtype)", "x.to(dtype=torch.half)", "to(x)"]
)
def test_a_conversion_is_none(call: str) -> None:
    assert not list(sendings(call))

"""What a file says that ops yield is compared with what they would yield, before anything runs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import dovetail
from dovetail.cache import entry, folder, traces
from dovetail.cache.head import NoEntry
from dovetail.cache.key import Key, key_of
from dovetail.cli.app import app
from dovetail.compiler.devices.device import HOST
from dovetail.compiler.errors import VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.passes.verify.types import verify_types


class Net(nn.Module):
    """Pads, takes several results, asks for a size, writes in place and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * x.shape[0]
        left, right = F.pad(x, (0, 8)).split([6, 10], -1)
        right[:, :2].mul_(2.0)
        windows = left.contiguous().as_strided((4, 3, 2), (6, 2, 1))
        return (right.sum() + windows.sum() + torch.zeros_like(left).sum()).to(torch.float64)


X = torch.ones(4, 8)
EDITS: dict[str, Callable[[str], str]] = {
    "a size of an argument": lambda text: text.replace("[0, 8])", "[0, 8000000])"),
    "a size that no memory has": lambda text: text.replace("[0, 8])", "[0, 2147483648])"),
    "a size of a type": lambda text: re.sub(r"(%pad: f32\[4, )16", r"\g<1>24", text),
    "a size of one of several results": lambda text: text.replace("[6, 10]", "[5, 11]"),
    "a dtype": lambda text: text.replace("(%add_1, f64)", "(%add_1, f32)"),
    "a dtype of a type": lambda text: re.sub(r"(%pad: )f32", r"\g<1>f64", text),
    "another op": lambda text: text.replace("aten.zeros_like.default", "aten.sum.default"),
    "a size that data decides": lambda text: text.replace("aten.zeros_like.default", "aten.nonzero.default"),
    "a window": lambda text: text.replace("[4, 3, 2], [6, 2, 1]", "[4, 3, 1], [6, 2, 1]"),
}


@pytest.fixture(scope="module")
def text() -> str:
    """The text of a traced program."""
    return print_program(trace(Net().eval(), (X,)))


def test_what_was_traced_is_right(text: str) -> None:
    verify_types(parse_program(text))


@pytest.mark.parametrize("edit", EDITS)
def test_an_annotation_that_is_not_what_its_op_yields_is_found(text: str, edit: str) -> None:
    changed = EDITS[edit](text)
    assert changed != text
    with pytest.raises(
        VerificationError, match=r"rule types: .*\nbroken by Net: %\w+ (yields|cannot be run|has a size)"
    ):
        verify_types(parse_program(changed))


def test_an_op_that_cannot_be_run_is_told_and_pytorch_writes_no_traceback_of_it(text: str) -> None:
    written: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record)

    logger, handler = logging.getLogger("torch._subclasses.fake_tensor"), Handler()
    logger.addHandler(handler)
    try:
        with pytest.raises(VerificationError, match="cannot be run"):
            verify_types(parse_program(EDITS["a size that no memory has"](text).replace("2147483648", f"{2**62}")))
    finally:
        logger.removeHandler(handler)
    assert not written


def test_dynamic_sizes_are_checked_for_those_of_the_example() -> None:
    program = trace(nn.Linear(8, 8).eval(), (X,), dynamic_shapes={"input": {0: torch.export.Dim("n", min=2, max=64)}})
    verify_types(program)
    with pytest.raises(VerificationError, match="yields float32"):
        verify_types(parse_program(re.sub(r"(%linear: f32\[)\w+, 8\]\(8, 1\)", r"\g<1>9, 8]", print_program(program))))


def test_a_plan_whose_sizes_were_edited_is_refused_before_it_computes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    dovetail.compile(Net().eval(), (X,), backend="sim0", rig="sim0=1MiB").save(path)
    dovetail.load(path)
    plan = json.loads(path.read_text())
    plan["program"] = [line.replace("[0, 8])", "[0, 8000000])") for line in plan["program"]]
    path.write_text(json.dumps(plan))
    with pytest.raises(VerificationError, match=r"%pad yields float32\[4, 8000008\], its annotation says"):
        dovetail.load(path)
    told = CliRunner().invoke(app, ["verify", str(path)])
    assert told.exit_code == 4
    assert "%pad yields" in told.stderr


@pytest.mark.parametrize("is_named", [False, True])
def test_a_kept_trace_whose_sizes_were_edited_is_not_used(is_named: bool, kept: tuple[Path, Key]) -> None:
    path, key = kept
    assert entry.read(path, key, is_named)[0].name == "Net"
    path.write_bytes(path.read_bytes().replace(b"[0, 8])", b"[0, 9])"))
    with pytest.raises(NoEntry):
        entry.read(path, key, is_named)


@pytest.mark.parametrize("is_named", [False, True])
def test_the_bytes_that_are_read_are_those_that_would_be_written(is_named: bool, kept: tuple[Path, Key]) -> None:
    path, key = kept
    key = replace(key, full="0" * 40) if is_named else key
    program, parts = entry.read(path, key, is_named)
    assert parts == entry.written(key, program)


def test_a_trace_beside_a_plan_is_compared_with_what_its_ops_yield(
    kept: tuple[Path, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the cache is the user's own, where nobody else may write: its digest is enough."""
    path, key = kept
    monkeypatch.setattr("dovetail.cache.entry.parse_program", edited)
    with pytest.raises(NoEntry, match=r"rule types(.|\n)*%pad yields"):
        entry.read(path, key, is_named=True)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Key]:
    """An entry of the cache, and its key."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    module = Net().eval()
    for _ in range(2):  # the first trace of a process imports code that the key of the next ones sees
        traces.trace(module, (X,))
        traces.wait()
    key = key_of(module, (X,), {}, None, HOST)
    assert key is not None
    return folder.path_of(key.full), key


def edited(text: str) -> object:
    """The program that an entry would have after an edit that its digest agrees with."""
    return parse_program(text.replace("[0, 8])", "[0, 8000000])"))

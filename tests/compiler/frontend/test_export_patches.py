"""What torch.export prints, logs and keeps of a trace that fails goes; what a model prints stays."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import ClassVar

import pytest
import torch
import torch.export._trace as exporting
from torch import nn
from torch._functorch._aot_autograd.utils import register_buffer_assignment_hook
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.modules.module import register_module_buffer_registration_hook

from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace


class Branching(nn.Module):
    """Decides by a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("once more")
        return x * 2 if x.sum() > 0 else x


def test_a_trace_that_fails_says_so_in_its_error_alone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(TraceError, match=r"x\.sum"):
        trace(Branching(), (torch.ones(2),))
    written = capsys.readouterr()
    assert written.err == ""
    assert set(written.out.splitlines()) == {"once more"}
    assert not caplog.records
    assert "print" not in vars(exporting)


def test_torch_export_by_itself_shows_what_it_showed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError):
        trace(Branching(), (torch.ones(2),))
    capsys.readouterr()
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Branching(), (torch.ones(2),), strict=False)
    assert "def forward" in capsys.readouterr().err


class Flexible(nn.Module):
    """Calls a function that PyTorch compiles within an export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x, x, x, block_mask=None)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_model_that_was_traced_is_kept_by_nobody_though_a_part_of_it_was_compiled() -> None:
    model = Flexible()
    kept = weakref.ref(model)
    with pytest.raises(TraceError, match="higher-order"):
        trace(model, (torch.ones(1, 1, 128, 16),))
    del model
    gc.collect()
    assert kept() is None


def test_no_hook_of_new_buffers_stays_that_an_export_left(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = vars(torch.nn.modules.module)["_global_buffer_registration_hooks"]
    before = dict(hooks)
    own = register_module_buffer_registration_hook(lambda module, name, buffer: None)

    def left(module: nn.Module, *others: object, **more: object) -> None:
        register_buffer_assignment_hook(module, {})  # which PyTorch 2.11 does not remove where an export fails
        raise ValueError("no")

    monkeypatch.setattr(torch.export, "export", left)
    with pytest.raises(TraceError):
        trace(Branching(), (torch.ones(2),))
    assert {*hooks} == {*before, own.id}
    own.remove()


class Switched(nn.Module):
    """Notes whether the kernels of a library are taken while it runs."""

    seen: ClassVar[list[bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch._C._get_mkldnn_enabled())
        return x * 2


def test_the_process_computes_by_the_same_kernels_while_a_model_is_traced() -> None:
    trace(Switched(), (torch.ones(2),))
    assert Switched.seen
    assert all(Switched.seen)

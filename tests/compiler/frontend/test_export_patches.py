"""What torch.export prints and logs of a trace that fails stays away; what a model prints does not."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.export._trace as exporting
from torch import nn

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

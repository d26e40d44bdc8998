"""What stays on its device within a budget, where that changes how stages are cut."""

from __future__ import annotations

import pytest
import torch

import dovetail
from tests.laws.modules import TOKENS, WIDTH, Shared, Tower, Writer
from tests.measured import least, measured, predicted


@pytest.mark.slow
def test_no_budget_is_exceeded_though_a_layer_that_all_blocks_share_changes_the_stages_when_it_stays() -> None:
    torch.manual_seed(2016)
    module = Tower((Writer, Shared), 4, {}, False, False).eval()
    args = (torch.randn(2, TOKENS, WIDTH), torch.randn(2, WIDTH))
    options = {"backend": "sim0", "params_backend": "cpu", "rig": "sim0=64MiB"}
    needs: dict[str, int] = {}
    dovetail.compile(module, args, callbacks=[least(needs)], **options)  # type: ignore[arg-type]
    stayed = 0
    for budget in range(needs["sim0"], needs["sim0"] + 3500, 331):
        compiled = dovetail.compile(module, args, max_vram=f"sim0={budget}B", **options)  # type: ignore[arg-type]
        assert predicted(compiled.program)["sim0"] <= budget
        stayed = max(stayed, len(compiled.program.weights) - len(compiled.program.residency))
    assert stayed > 4
    assert measured(compiled, args, {}) == predicted(compiled.program)

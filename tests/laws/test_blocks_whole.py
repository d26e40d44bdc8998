"""Laws 1, 7, 9 and 10 where nothing of the schedule is to be inside blocks, and each runs as one."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.components.compiled import CompiledModule
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from dovetail.runtime.block_kernels import BlockKernel
from tests.cases import examples
from tests.measured import measured, predicted

from .modules import ModuleCase, module_cases
from .oracles import Clockwork
from .test_modules import equal

few = examples(3, 8)


def compiled(case: ModuleCase, **options: object) -> CompiledModule:
    return dovetail.compile(
        case.module, case.args, case.kwargs, params_backend=case.rests, inductor=True,
        callbacks=[lambda step, program, change: verify(program)], **options,
    )  # fmt: skip


@pytest.mark.fifth
@few
@given(module_cases(), st.booleans())
def test_law_1_what_runs_as_one_computes_what_its_operations_do(case: ModuleCase, split: bool) -> None:
    case.rests = None
    where = {"backend": "cpu&sim0", "rig": "cpu=1GiB,sim0=64MiB"} if split else {"backend": "cpu"}
    with mock.patch.object(BlockKernel, "__call__", lambda self, *inputs: self._plain(*inputs)):
        module = compiled(case, **where)
        for _ in range(2):
            assert equal(module(*case.args, **case.kwargs), case.expected()), module.source()


@pytest.mark.fifth
@few
@given(module_cases(), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_laws_1_7_9_and_10_hold_for_schedules_with_whole_blocks(case: ModuleCase, takes: list[int]) -> None:
    gc.collect()
    module = compiled(case, backend=case.backend, rig=case.rig, tensor_split=case.shares)
    verify_deep(module.program)
    Clockwork(module.program, module.schedule, takes).run()
    assert measured(module, case.args, case.kwargs) == predicted(module.program)
    assert equal(module(*case.args, **case.kwargs), case.expected())

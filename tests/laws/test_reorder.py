"""Whatever the module or graph and its devices, another order of nodes never raises a peak."""

from __future__ import annotations

import pytest
from hypothesis import given

import dovetail
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.verify.verifier import verify
from dovetail.runtime.store.program_weights import ProgramWeights
from tests.cases import examples

from .graphs import Case, cases, same_bits
from .modules import ModuleCase, module_cases
from .test_modules import equal

few = examples(4, 4)
TRACED = ",".join(str(step) for step in default_passes() if step.name != "reorder")


def compiled(case: ModuleCase, passes: str | None = None) -> CompiledModule:
    return dovetail.compile(
        case.module, case.args, case.kwargs, backend=case.backend, rig=case.rig, params_backend=case.rests,
        passes=passes,
    )  # fmt: skip


@pytest.mark.fifth
@few
@given(module_cases())
def test_another_order_never_raises_a_peak_and_changes_no_bit(case: ModuleCase) -> None:
    before, after = compiled(case, TRACED), compiled(case)
    verify(after.program)
    peaks = simulate(before.program)
    for device, usage in simulate(after.program).items():
        assert usage.total <= peaks[device].total, str(device)
    assert equal(after(*case.args, **case.kwargs), case.expected())


@pytest.mark.parametrize("without", ["", "sink"])
@few
@given(case=cases())
def test_another_order_of_a_graph_never_raises_a_peak_and_changes_no_bit(case: Case, without: str) -> None:
    steps = [step for step in default_passes() if step.name != without]
    before = PassManager([step for step in steps if step.name not in ("reorder", "verify")]).run(case.program.copy())
    program = PassManager(steps).run(case.program.copy())
    peaks = simulate(before)
    assert all(usage.total <= peaks[device].total for device, usage in simulate(program).items())
    module = CompiledModule(program, program.rig, ProgramWeights.of_tensors(case.weights, program))
    assert all(map(same_bits, module(*case.inputs), case.expected))

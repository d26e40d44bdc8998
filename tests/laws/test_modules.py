"""Laws 1, 3, 4, 8, 9 and 10 over generated modules, split by the passes as anybody would split them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import dovetail
from dovetail.components.compiled import CompiledModule
from dovetail.passes.verify.deep import verify_deep
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim
from tests.cases import examples

from .graphs import same_bits
from .modules import ModuleCase, module_cases
from .oracles import Clockwork, check_law_3, check_law_4

few = examples(3, 4)


def compiled(case: ModuleCase) -> CompiledModule:
    return dovetail.compile(
        case.module, case.args, case.kwargs, backend=case.backend, rig=case.rig, tensor_split=case.shares,
        params_backend=case.rests,
        callbacks=[lambda step, program, change: verify(program)],
    )  # fmt: skip


def equal(found: object, expected: object) -> bool:
    flat, spec = pytree.tree_flatten(found)
    wanted, shape = pytree.tree_flatten(expected)
    return spec == shape and all(map(same_bits, flat, wanted))


@pytest.mark.fifth
@few
@given(module_cases())
def test_law_1_a_compiled_module_is_called_as_the_module_was_and_changes_no_bit(case: ModuleCase) -> None:
    gc.collect()
    module = compiled(case)
    module.load()
    resting = [sim.stats(device.index).in_use for device in module.program.devices]
    found = module(*case.args, **case.kwargs)
    assert equal(found, case.expected()), str(module)
    del found
    assert [sim.stats(device.index).in_use for device in module.program.devices] == resting


@pytest.mark.fifth
@few
@given(module_cases(), st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_laws_3_4_9_and_10_hold_for_any_module_and_any_shares(case: ModuleCase, takes: list[int]) -> None:
    module = compiled(case)
    program = module.program
    check_law_3(program)
    check_law_4(program)
    verify_deep(program)
    Clockwork(program, module.schedule, takes).run()


@pytest.mark.fifth
@few
@given(module_cases())
def test_law_8_saving_and_loading_give_the_same_program(tmp_path_factory: object, case: ModuleCase) -> None:
    path: Path = tmp_path_factory.mktemp("plans") / "plan.json"  # type: ignore[attr-defined]
    module = compiled(case)
    module.save(path)
    again = dovetail.load(path, weights=case.module)
    assert str(again) == str(module)
    assert str(again.schedule) == str(module.schedule)
    assert equal(again(*case.args, **case.kwargs), case.expected())

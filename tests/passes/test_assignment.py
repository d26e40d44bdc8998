"""What a policy decides is a value: made without changing a program, checked, and only then committed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Load
from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.states.parts import pieces
from dovetail.compiler.text.printer import print_program
from dovetail.compiler.units import MIB
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import lowered, parse_passes
from dovetail.passes.placement.assignment import Assigned, Assignment, check, commit
from dovetail.passes.placement.place import layer_split
from dovetail.passes.placement.rows import row_split
from dovetail.passes.verify.verifier import verify
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.source import tensors_of_module

RIG = Rig.of(sim0=16 * MIB, sim1=16 * MIB, sim2=16 * MIB)
X = torch.linspace(-1, 1, 2 * 256).reshape(2, 256)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        return x


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return Layers().eval()


def unplaced(module: nn.Module) -> Program:
    """A traced program whose blocks were found, over three devices."""
    sim.enable({device.index: RIG[device].total for device in RIG})
    program = trace(module, (X,))
    program.rig = RIG
    return PassManager(parse_passes("simplify,blocks")).run(program)


def run(module: nn.Module, program: Program) -> Tensor:
    source = ProgramWeights.of_tensors(tensors_of_module(module), program)
    return CompiledModule(program, program.rig, source)(X)  # type: ignore[no-any-return]


def half_staged(assignment: Assignment) -> Assignment:
    names = sorted(assignment)[::2]
    host = {name: Assigned(assignment[name].device, residency=Residency.HOST) for name in names}
    return {**assignment, **host}


def test_one_traced_program_is_lowered_for_resident_weights_and_for_half_of_them_staged(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = unplaced(module)
    before = print_program(program)
    monkeypatch.setattr(torch.export, "export", None)  # from here on nothing can be traced
    assignment = layer_split(program, program.rig.free)
    resident, staged = lowered(program, assignment), lowered(program, half_staged(assignment))
    assert print_program(program) == before
    assert not program.home
    assert str(resident.schedule) != str(staged.schedule)
    assert len(staged.residency) == 4
    for each in (resident, staged):
        loads = [one for one in each.schedule or () if isinstance(one, Load)]
        assert {name for load in loads for name in load.weights} == set(program.weights)
        verify(each)
        assert torch.equal(run(module, each), module(X))


def test_a_freshly_traced_program_is_lowered_too(module: nn.Module) -> None:
    program = trace(module, (X,))
    program.rig = RIG
    sim.enable({device.index: RIG[device].total for device in RIG})
    homes = {name: Assigned(RIG.devices[int(name.split(".")[1]) % 3]) for name in program.weights}
    assert torch.equal(run(module, lowered(program, homes)), module(X))
    assert "blocks found" not in program.facts


@pytest.mark.parametrize("policy", [layer_split, row_split])
def test_a_policy_and_a_check_change_nothing(module: nn.Module, policy: object) -> None:
    program = unplaced(module)
    before, weights = print_program(program), dict(program.weights)
    assignment: Assignment = policy(program, program.rig.free)  # type: ignore[operator]
    check(program, assignment)
    with pytest.raises(DoesNotFitError, match=r"on sim1, which has 1\.0 KiB free of 16\.0 MiB"):
        check(program, assignment, {**program.rig.free, Device("sim", 1): 1024})
    assert print_program(program) == before
    assert (program.weights, program.home, program.bounds) == (weights, {}, {})
    commit(program, assignment)
    assert {device for _, device in pieces(program).values()} == set(program.devices)


def test_a_copy_has_the_names_of_the_program() -> None:
    class Reading(nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            return input + 1

    program = trace(Reading(), (X,))
    assert print_program(program.copy()) == print_program(program)
    assert "%input: " in print_program(program)


def test_what_was_compiled_keeps_its_traced_program_and_is_lowered_anew_from_that(module: nn.Module) -> None:
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1", rig="sim0=16MiB,sim1=16MiB")
    assert compiled.base is not None
    assert not compiled.base.home
    assert len(compiled.program.segments) == 2
    again = lowered(compiled.base, {name: Assigned(compiled.program.main) for name in compiled.base.weights})
    assert len(again.segments) == 1
    assert torch.equal(run(module, again), compiled(X))


def test_free_memory_is_what_a_policy_is_given(module: nn.Module) -> None:
    program = unplaced(module)
    first, second, third = program.devices
    homes = layer_split(program, {first: 16 * MIB, second: 0, third: 16 * MIB})
    assert {one.device for one in homes.values()} == {first, third}


def test_two_ratios_in_one_program_are_legal(module: nn.Module) -> None:
    program = unplaced(module)
    ratios = {"blocks.0.weight": (2, 1, 1), "blocks.2.weight": (1, 0, 3)}
    found = {name: Assigned(program.main) for name in program.weights}
    found |= {name: Assigned(program.main, bounds_of(256, ratio)) for name, ratio in ratios.items()}
    split = lowered(program, found)
    rows = {name: one.which for name, (one, _) in pieces(split).items() if one.which and len(one.shape) == 2}
    ranges = ((0, 128), (128, 192), (192, 256), (0, 64), (64, 256))
    assert set(rows.values()) == {Part(0, (one,)) for one in ranges}
    assert torch.allclose(run(module, split), module(X), atol=1e-5)


def test_rows_are_kept_where_their_weight_is(module: nn.Module) -> None:
    program = unplaced(module)
    assignment = row_split(program, program.rig.free)
    host = {name: Assigned(one.device, one.bounds, Residency.HOST) for name, one in assignment.items()}
    split = lowered(program, host)
    assert split.residency == dict.fromkeys(split.weights, Residency.HOST)
    assert torch.allclose(run(module, split), module(X), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.bias": None}, "says nothing of blocks.1.bias"),
        ({"blocks.1.bias": Assigned(Device("sim", 7))}, "blocks.1.bias is assigned to sim7"),
        ({"blocks.1.bias": Assigned(RIG.devices[0], bounds_of(256, (1, 1, 1)))}, "cannot be split by rows"),
        ({"blocks.1.weight": Assigned(RIG.devices[0], ((0, 100), (100, 200), (200, 250)))}, "give each device a range"),
        ({"blocks.1.weight": Assigned(RIG.devices[0], ((0, 128), (128, 256)))}, "give each device a range"),
    ],
)
def test_an_assignment_of_another_program_is_refused(
    module: nn.Module, change: dict[str, Assigned | None], message: str
) -> None:
    program = unplaced(module)
    changed = {**{name: Assigned(program.main) for name in program.weights}, **change}
    with pytest.raises(UsageError, match=message):
        lowered(program, {name: one for name, one in changed.items() if one is not None})
    assert not program.home

"""The verifier: each rule is broken once, and the error names it and shows the place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.aliasing import base_of, writes
from dovetail.compiler.ir.boxes import Box, Landing
from dovetail.compiler.ir.program import Program, device_of, place_node, placement_of, tensors_of, value_of
from dovetail.compiler.ir.schedule import Await, Copy, Free, Instruction, Load, Output, Run, Schedule
from dovetail.compiler.ir.split import source_of, split_of
from dovetail.compiler.ir.state import Split
from dovetail.compiler.ir.value import TensorType
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.text.printer import print_program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.lowering.verification import Verify
from dovetail.passes.pipeline import parse_passes
from dovetail.passes.verify.deep import _FakeRun, verify_deep
from dovetail.passes.verify.verifier import RULES, verify, violations
from tests.laws.schedules import changed, freed_early

from ..sample import DEVICES, sample

ELSEWHERE = Device("sim", 9)


def op(program: Program, name: str) -> Node:
    """The first op of an ATen name."""
    return next(node for node in program.ops() if str(node.target).startswith(f"aten.{name}."))


def other(node: Node) -> Any:
    return next(device for device in DEVICES if device != device_of(node))


def set_storage(node: Node, storage: int) -> None:
    node.meta["value"] = replace(value_of(node), storage=storage)  # type: ignore[type-var]


def written_storage(program: Program) -> int:
    return next(storage for node in program.ops() for storage in writes(node))


def instructions(program: Program, kind: type[Instruction]) -> list[int]:
    assert program.schedule is not None
    return [index for index, one in enumerate(program.schedule) if isinstance(one, kind)]


def edit(program: Program, index: int, *instead: Instruction) -> None:
    assert program.schedule is not None
    kept = program.schedule.instructions
    program.schedule = Schedule((*kept[:index], *instead, *kept[index + 1 :]))


def at(program: Program, index: int) -> Any:
    assert program.schedule is not None
    return program.schedule.instructions[index]


def call_what_no_program_may(program: Program) -> None:
    next(program.ops()).target = os.system


def read_before_it_is_made(program: Program) -> None:
    first, *_, last = program.ops()
    first.prepend(last)


def forget_a_weight(program: Program) -> None:
    program.weights.popitem()


def drop_a_result(program: Program) -> None:
    program.output.args = (program.output.args[0][:-1],)  # type: ignore[index]


def put_a_view_in_memory_of_its_own(program: Program) -> None:
    set_storage(op(program, "select"), 999)


def write_into_an_input(program: Program) -> None:
    set_storage(next(program.inputs()), written_storage(program))


def put_an_op_into_a_micro_batch(program: Program) -> None:
    place_node(op(program, "linear"), part=0)


def leave_a_weight_homeless(program: Program) -> None:
    program.home[next(iter(program.weights))] = ELSEWHERE


def give_two_devices_the_same_rows(program: Program) -> None:
    (first, _, *rest) = program.bounds["blocks.0.weight"]
    program.bounds["blocks.0.weight"] = (first, first, *rest)


def split_a_result_otherwise_than_its_weight(program: Program) -> None:
    node = next(filter(split_of, program.ops()))
    split = split_of(node)
    assert split is not None
    ((start, stop), (_, end), *rest) = split.segments[0]
    place_node(node, states=((Split(split.axis, (((start, stop - 1), (stop - 1, end), *rest),)),),))


def put_a_whole_into_the_memory_of_parts(program: Program) -> None:
    split = next(filter(split_of, program.ops()))
    whole = next(node for node in program.ops() if split < node and not split_of(node) and not base_of(node))
    set_storage(whole, tensors_of(split)[0].storage)


def put_an_input_on_another_device(program: Program) -> None:
    place_node(next(program.inputs()), group=(DEVICES[1],))


def part_a_view_from_its_base(program: Program) -> None:
    place_node(op(program, "select"), group=(DEVICES[1],))


def run_a_layer_away_from_its_weight(program: Program) -> None:
    node = op(program, "linear")
    place_node(node, group=(other(node),))


def spread_written_memory_over_two_devices(program: Program) -> None:
    away = next(node for node in program.ops() if device_of(node) != DEVICES[0] and "linear" in str(node.target))
    set_storage(away, written_storage(program))


def cut_where_the_device_stays(program: Program) -> None:
    *before, last = program.segments
    program.segments = (*before, replace(last, nodes=last.nodes[:1]), replace(last, nodes=last.nodes[1:]))


def read_past_a_transfer(program: Program) -> None:
    transfer = next(program.transfers())
    transfer.replace_all_uses_with(source_of(transfer))


def bring_a_value_where_it_is(program: Program) -> None:
    transfer = next(program.transfers())
    place_node(transfer, group=(device_of(source_of(transfer)),))


def forget_a_load(program: Program) -> None:
    edit(program, instructions(program, Load)[0])


def leave_weights_that_rest_elsewhere(program: Program) -> None:
    program.keep(Residency.HOST)


def run_a_segment_twice(program: Program) -> None:
    index = instructions(program, Run)[0]
    edit(program, index, at(program, index), at(program, index))


def begin_without_inputs(program: Program) -> None:
    edit(program, 0)


def change_first(program: Program, instead: Callable[[Any], list[Any] | None]) -> None:
    """Puts something in the place of the first instruction, or action of a step, of which ``instead`` says what."""
    assert program.schedule is not None
    done: list[Any] = []

    def change(one: Any) -> list[Any]:
        found = None if done else instead(one)
        if found is None:
            return [one]
        done.append(one)
        return found

    program.schedule = changed(program.schedule, change)
    assert done


def is_await(one: Any, side: str) -> bool:
    return isinstance(one, Await) and isinstance(one.started, Copy) and one.device == getattr(one.started, side)


def free_before_the_last_reading(program: Program) -> None:
    assert program.schedule is not None
    program.schedule = next(freed_early(program.schedule))


def copy_twice(program: Program) -> None:
    change_first(program, lambda one: [one, one] if isinstance(one, Copy) else None)


def land_in_the_place_of_another_part(program: Program) -> None:
    def change(one: Any) -> list[Any] | None:
        if not isinstance(one, Copy) or not one.landings:
            return None
        ((axis, start, length),) = one.landings[0].into.ranges
        return [replace(one, landings=(Landing(Box(), Box(((axis, start + 1, length),))),))]

    change_first(program, change)


def use_without_waiting(program: Program) -> None:
    change_first(program, lambda one: [] if is_await(one, "target") else None)


def write_while_a_copy_reads(program: Program) -> None:
    change_first(program, lambda one: [] if is_await(one, "source") else None)


def free_twice(program: Program) -> None:
    change_first(program, lambda one: [one, one] if isinstance(one, Free) else None)


def drop_what_has_arrived_unread(program: Program) -> None:
    """A result comes back to the main device, and is dropped there."""
    assert program.schedule is not None
    index = instructions(program, Await)[0]
    one = at(program, index)
    edit(program, index, one, Free(one.started.value, one.device))


def forget_a_free(program: Program) -> None:
    change_first(program, lambda one: [] if isinstance(one, Free) else None)


def take_a_slot_for_good(program: Program) -> None:
    index = instructions(program, Load)[0]
    edit(program, index, replace(at(program, index), slot=0))


def return_in_another_order(program: Program) -> None:
    index = instructions(program, Output)[0]
    edit(program, index, replace(at(program, index), values=at(program, index).values[::-1]))


def put_on_a_device_a_dtype_that_it_lacks(program: Program) -> None:
    apple = Device("mps")
    program.rig = program.rig.with_device(apple, Memory(2**20, 2**20)).only((apple, *program.devices[1:]))
    program.home = {name: apple if home == DEVICES[0] else home for name, home in program.home.items()}
    for node in program.graph.nodes:
        if placement_of(node).device == DEVICES[0]:
            place_node(node, group=(apple,))
    node = op(program, "zeros")
    node.meta["value"] = replace(value_of(node), dtype=torch.float64)  # type: ignore[type-var]


def compute_over_what_is_read_later(program: Program) -> None:
    adds = (node for node in program.ops() if node.target is torch.ops.aten.add.Tensor)
    one = next(node for node in adds if node.args[0].name == "getitem")  # type: ignore[union-attr]
    one.meta["value"] = replace(value_of(one), storage=tensors_of(one.args[0])[0].storage)  # type: ignore[type-var, arg-type]


class ReadsOut(nn.Module):
    """The second layer takes a number that is read out of what the first one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        scale = x.sum().item()
        result: torch.Tensor = self.blocks[1](x) * scale
        return result


def need_a_number_of_another_process(program: Program) -> None:
    other = trace(ReadsOut().eval(), (torch.ones(2, 8),))
    other.rig = Rig.parse("sim0=1GiB,1/sim0=1GiB")
    PassManager(parse_passes("simplify,blocks,place{shares=1:1},pin,cut,schedule")).run(other)
    vars(program).update({**vars(other), "name": program.name})


BREAKS: dict[str, tuple[str, Callable[[Program], None]]] = {
    "targets": ("simplify", call_what_no_program_may),
    "order": ("simplify", read_before_it_is_made),
    "weights": ("simplify", forget_a_weight),
    "signature": ("simplify", drop_a_result),
    "alias": ("simplify", put_a_view_in_memory_of_its_own),
    "outside": ("simplify", write_into_an_input),
    "parts": ("simplify", put_an_op_into_a_micro_batch),
    "home": ("simplify,blocks,place{shares=1:1:1}", leave_a_weight_homeless),
    "slices": ("simplify,blocks,rows{shares=16:10:6}", give_two_devices_the_same_rows),
    "split": ("simplify,blocks,rows{shares=16:10:6}", split_a_result_otherwise_than_its_weight),
    "states": ("simplify,blocks,rows{shares=16:10:6}", put_a_whole_into_the_memory_of_parts),
    "device": ("simplify,blocks,place{shares=1:1:1},pin", put_an_input_on_another_device),
    "dtypes": ("simplify,blocks,place{shares=1:1:1},pin", put_on_a_device_a_dtype_that_it_lacks),
    "view": ("simplify,blocks,place{shares=1:1:1},pin", part_a_view_from_its_base),
    "pin": ("simplify,blocks,place{shares=1:1:1},pin", run_a_layer_away_from_its_weight),
    "storage": ("simplify,blocks,place{shares=1:1:1},pin,hoist", spread_written_memory_over_two_devices),
    "segments": ("simplify,blocks,place{shares=1:1:1},pin,hoist,cut", cut_where_the_device_stays),
    "moving": ("simplify,blocks,place{shares=1:1:1},pin,hoist,cut", bring_a_value_where_it_is),
    "transfers": ("simplify,blocks,place{shares=1:1:1},pin,hoist,cut", read_past_a_transfer),
    "numbers": ("", need_a_number_of_another_process),
    "reuse": ("simplify", compute_over_what_is_read_later),
    "input": ("", begin_without_inputs),
    "load": ("", forget_a_load),
    "slot": ("", take_a_slot_for_good),
    "rest": ("", leave_weights_that_rest_elsewhere),
    "run": ("", run_a_segment_twice),
    "live": ("", free_before_the_last_reading),
    "copy": ("", copy_twice),
    "land": ("simplify,blocks,rows{shares=16:10:6},pin,hoist,cut,schedule", land_in_the_place_of_another_part),
    "wait": ("", use_without_waiting),
    "fence": ("", write_while_a_copy_reads),
    "free": ("", free_twice),
    "idle": ("", drop_what_has_arrived_unread),
    "left": ("", forget_a_free),
    "return": ("", return_in_another_order),
}


def test_every_rule_is_broken_once_and_says_what_it_demands() -> None:
    assert BREAKS.keys() == RULES.keys()
    assert all(law.endswith(".") and law[0].isupper() for law in RULES.values())


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_named_and_its_place_is_shown(rule: str) -> None:
    passes, spoil = BREAKS[rule]
    program = sample(passes) if passes else sample()
    verify(program)
    spoil(program)
    with pytest.raises(VerificationError, match=f"^rule {rule}: ") as caught:
        verify(program)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"rule {rule}: {RULES[rule]}"
    assert lines[1].startswith("broken by Sample: ")
    assert f"run so far: {program.history[0]}" in str(caught.value)
    assert caught.value.exit_code == 4
    if rule not in ("weights", "segments"):
        shown = [line for line in lines if line.startswith((">", "  "))]
        assert sum(line.startswith(">") for line in shown) == 1
        assert 2 <= len(shown) <= 11


def test_an_op_whose_results_lie_in_the_memory_of_two_operands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            first, second = torch.broadcast_tensors(a * 2, b * 2)
            return first + second

    monkeypatch.setattr("dovetail.compiler.frontend.trace.part_views", lambda graph: None)
    program = trace(Two(), (torch.ones(2, 1), torch.ones(1, 2)))
    assert "lies in the memory of 2 operands" in next(violations(program)).problem


def test_a_program_that_keeps_every_rule_has_no_violations() -> None:
    assert not list(violations(sample()))


def test_the_pass_changes_nothing_and_says_how_many_rules_there_are() -> None:
    program = sample()
    before = print_program(program), str(program.schedule)
    change = Verify().run(program)
    assert (print_program(program), str(program.schedule)) == before
    assert not change
    assert str(change) == f"0 of {len(RULES)} rules broken"


def test_only_rules_about_what_is_established_are_checked() -> None:
    program = sample("simplify")
    program.home = {"nobody": ELSEWHERE}
    verify(program)


def test_the_deep_verifier_counts_the_nodes_that_it_has_run() -> None:
    program = sample()
    assert verify_deep(program) == len(list(program.ops()))


def test_the_deep_verifier_finds_a_wrong_shape_and_shows_the_node() -> None:
    program = sample()
    node = op(program, "linear")
    node.meta["value"] = replace(tensors_of(node)[0], shape=(2, 9))
    with pytest.raises(VerificationError, match=r"\[2, 8\] on sim:0, its annotation says float32\[2, 9\]"):
        verify_deep(program)


def test_the_deep_verifier_finds_a_wrong_dtype() -> None:
    program = sample()
    node = op(program, "linear")
    node.meta["value"] = replace(tensors_of(node)[0], dtype=torch.bfloat16)
    with pytest.raises(VerificationError, match="its annotation says bfloat16"):
        verify_deep(program)


def test_the_deep_verifier_finds_a_node_on_another_device_than_its_annotation_says() -> None:
    program = sample()
    node = next(node for node in program.segments[1].nodes if tensors_of(node))
    place_node(node, group=(DEVICES[2],))
    with pytest.raises(VerificationError, match=r"on sim:1, its annotation says .* on sim:2"):
        verify_deep(program)


def test_the_deep_verifier_finds_two_devices_in_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_FakeRun, "send", lambda self, copy, tensor: tensor)
    with pytest.raises(
        VerificationError, match=r"rule deep: (.|\n)*found (at least two|two different) devices,? sim:0(,| and) sim:1"
    ):
        verify_deep(sample())


def test_the_deep_verifier_stands_in_for_devices_that_are_not_here() -> None:
    program = sample()
    stand_ins = {device: torch.device("sim", index + 5) for index, device in enumerate(program.devices)}
    assert verify_deep(program, stand_ins) == verify_deep(program)


def test_other_strides_than_the_trace_would_have_are_found_by_a_rehearsal() -> None:
    program = sample()
    node = op(program, "mul")
    node.meta["value"] = replace(value_of(node), stride=(1, 2))  # type: ignore[type-var]
    with pytest.raises(VerificationError, match=r"%mul has the strides \(8, 1\), its annotation says \(1, 2\)"):
        verify_deep(program)


def test_memory_that_is_not_shared_as_said_is_found_by_a_rehearsal() -> None:
    program = sample()
    first, second, *_ = (node for node in program.ops() if str(node.target).startswith("aten.linear."))
    set_storage(second, tensors_of(first)[0].storage)
    with pytest.raises(VerificationError, match="lies in memory of its own, its annotation says"):
        verify_deep(program)


def test_a_part_of_a_weight_is_held_in_the_strides_of_memory_of_its_own() -> None:
    program = sample()
    with FakeTensorMode(allow_non_fake_inputs=True):
        run = _FakeRun(program, dict.fromkeys(program.devices, torch.device("meta")))
    matrix = program.weights["blocks.0.weight"]
    for axis, ranges in ((0, [(0, 3)]), (0, [(0, 2), (5, 6)]), (1, [(3, 7)]), (1, [(0, 2), (5, 6)])):
        part = matrix.part(axis, ranges)
        run.pieces[part.name] = part, program.main
        held, own = run.stored(part.name), part.of(torch.empty(matrix.shape)).contiguous()
        assert isinstance(held, TensorType)
        assert (held.shape, held.stride) == (tuple(own.shape), own.stride())

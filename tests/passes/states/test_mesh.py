"""Groups of devices have some of the pictures each: equal groups, their own weights, and no exchange between groups."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.ops import RESHARD
from dovetail.compiler.ir.program import Program, device_of, placement_of, weight_name
from dovetail.compiler.ir.split import is_shared, source_of
from dovetail.compiler.states.parts import bytes_held, crossing_bytes
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.kept_forms import MeshForm, forms_with_solvers
from dovetail.passes.states.mesh import group_count, meshes_of, turn_count
from dovetail.passes.states.solution import NotPossible, Solution
from dovetail.passes.states.states import split_mode_of
from dovetail.runtime import sim
from testbed.sharing import slow_group
from testbed.zoo.everything import TINY

from .groups import Gated, Layers

FOUR = "sim0&sim1&sim2&sim3"


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


def traced(module: nn.Module, *args: Any, devices: int = 4, **kwargs: Any) -> Program:
    program = trace(module, args, kwargs)
    program.rig = Rig.parse(",".join(f"sim{index}=8GiB" for index in range(devices)))
    Simplify().run(program)
    FindBlocks().run(program)
    return program


def solved(program: Program, mode: str, shares: tuple[int, ...] = (1, 1, 1, 1)) -> tuple[MeshForm, Solution]:
    forms = forms_with_solvers(program, mode, slow_group(shares, program.devices))
    assert not isinstance(forms, NotPossible), forms.reason
    found = forms[0].solution(())
    assert isinstance(forms[0], MeshForm)
    assert isinstance(found, Solution)
    return forms[0], found


@pytest.mark.parametrize(
    ("devices", "pictures", "count"),
    [
        (4, 2, 2),
        (4, 4, 2),
        (8, 2, 2),
        (8, 4, 4),
        (8, 8, 4),
        (6, 2, 2),
        (6, 6, 3),
        (3, 2, 1),
        (2, 2, 1),
        (4, 3, 1),
        (4, 1, 1),
    ],
)
def test_there_are_as_many_groups_as_can_have_equally_many_devices_and_pictures(
    devices: int, pictures: int, count: int
) -> None:
    assert group_count(devices, pictures) == count


@pytest.mark.parametrize(
    ("devices", "calls", "count"),
    [(4, 2, 2), (4, 3, 2), (6, 3, 3), (8, 3, 2), (8, 2, 2), (3, 2, 1), (4, 1, 1), (2, 2, 1)],
)
def test_calls_take_turns_on_as_many_groups_as_there_are_calls_or_fewer(devices: int, calls: int, count: int) -> None:
    assert turn_count(devices, calls) == count


class Row(nn.Module):
    """A layer over rows, and what more it does of them."""

    def __init__(self, more: Any) -> None:
        super().__init__()
        self.layer, self.more = nn.Linear(64, 64), more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.more(self.layer(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("pictures", "devices", "more", "reason"),
    [
        (1, 4, torch.relu, "the inputs are of one picture"),
        (2, 3, torch.relu, "3 devices form no groups of two or more, of as many each"),
        (3, 4, torch.relu, "4 devices form no groups of two or more of which each has as many of 3 pictures"),
        (2, 4, lambda x: x - x.mean(0), "takes several pictures together"),
        (2, 4, lambda x: nn.functional.dropout(x, 0.5, True), "takes several pictures together"),
    ],
)
def test_it_is_said_why_there_are_no_groups(pictures: int, devices: int, more: Any, reason: str) -> None:
    program = traced(Row(more), torch.ones(pictures, 64, 64), devices=devices)
    found = meshes_of(program, "batch+sequence", slow_group((1,) * devices, program.devices))
    assert isinstance(found, NotPossible)
    assert reason in found.reason


def test_groups_that_are_alike_are_solved_for_once_and_have_equal_states(monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = TINY["SD3Transformer2DModel"].make(torch.float32)
    form, found = solved(traced(module, **call), "batch+tensor")
    assert list(form.parts) == [0]
    first, other = form.mesh.parts
    pairs = zip(first.program.ops(), other.program.ops(), strict=True)
    for node, like in ((one, its) for one, its in pairs if first.places[one] in found.strategies):
        way, its = found.strategies[first.places[node]], found.strategies[other.places[like]]
        assert way.results == its.results
        assert [way.takes(first.places[one]) for one in node.all_input_nodes] == [
            its.takes(other.places[one]) for one in like.all_input_nodes
        ]


def test_groups_that_differ_are_solved_for_each() -> None:
    module, call = TINY["SD3Transformer2DModel"].make(torch.float32)
    form, found = solved(traced(module, **call), "batch+tensor", (1, 1, 3, 1))
    assert list(form.parts) == [0, 1]
    held = found.account.weights
    assert abs(held[0] - held[1]) < 0.2 * held[0] < held[2] - held[3]


@pytest.mark.parametrize("mode", ["batch+sequence", "batch+tensor"])
def test_no_group_reads_what_another_one_computes_but_for_what_joins_the_pictures(mode: str) -> None:
    module, call = TINY["UNet2DConditionModel"].make(torch.float32)
    program = dovetail.compile(module, (), call, backend=FOUR, split_mode=mode).program
    assert split_mode_of(program) == mode
    groups = {placement_of(node).group for node in program.ops() if is_shared(node)}
    assert sorted(tuple(map(str, one)) for one in groups) == [("sim0", "sim1"), ("sim2", "sim3")]
    for node in program.ops():
        for value in node.all_input_nodes:
            origin = source_of(value) if value.target is RESHARD else value
            if is_shared(node) and is_shared(origin) and not weight_name(origin):
                assert placement_of(origin).group == placement_of(node).group
    joins = [node for node in program.ops() if node.name.endswith("_joined")]
    assert [str(device_of(node)) for node in joins] == ["sim0"]


def test_each_group_holds_all_weights_once_under_tensor_and_each_device_under_sequence() -> None:
    module, call = TINY["SD3Transformer2DModel"].make(torch.float32)
    whole = sum(one.nbytes for one in traced(module, **call).weights.values())
    by_tokens, by_parts = (
        list(bytes_held(dovetail.compile(module, (), call, backend=FOUR, split_mode=mode).program).values())
        for mode in ("batch+sequence", "batch+tensor")
    )
    assert min(by_tokens) > 0.85 * whole  # positions lie on the main device alone
    for group in (by_parts[:2], by_parts[2:]):
        assert max(group) < 0.7 * whole
        assert sum(group) > 0.9 * whole


def test_four_devices_send_less_in_groups_than_by_tokens_alone() -> None:
    module, call = TINY["PixArtTransformer2DModel"].make(torch.float32)
    call = {**call, "hidden_states": torch.randn(2, 4, 32, 32)}
    sent = {
        mode: crossing_bytes(dovetail.compile(module, (), call, backend=FOUR, split_mode=mode).program)
        for mode in ("sequence", "batch+sequence")
    }
    assert sent["batch+sequence"] < 0.6 * sent["sequence"]


def test_several_results_are_joined_each_and_what_is_of_no_picture_is_there_once() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 32)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
            angles = at[:, None] * torch.arange(64.0)
            x = self.one(x + angles)
            return x, self.other(x), angles, x

    torch.manual_seed(0)
    module, x, at = Several().eval(), torch.randn(2, 128, 64), torch.arange(128.0)
    compiled = dovetail.compile(module, (x, at), backend=FOUR, split_mode="batch+sequence")
    assert split_mode_of(compiled.program) == "batch+sequence"
    for found, expected in zip(compiled(x, at), module(x, at), strict=True):
        assert torch.allclose(found.cpu(), expected, atol=1e-5)


def test_one_picture_is_placed_by_layers_and_it_is_said_why(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1, 64, 64)
    compiled = dovetail.compile(Row(torch.relu), (x,), backend=FOUR, split_mode="batch+sequence")
    assert split_mode_of(compiled.program) == "layer"
    assert re.search(r"cannot be split by batch\+sequence, for the inputs are of one picture", caplog.text)


def test_wide_parts_in_chunks_are_of_all_pictures_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = Layers(Gated(64), Gated(64)).eval()
    x = torch.randn(2, 256, 64)
    compiled = dovetail.compile(module, (x,), backend=FOUR, split_mode="batch+sequence", chunk=2)
    assert split_mode_of(compiled.program) == "layer"
    assert "takes several pictures together" in caplog.text
    assert torch.allclose(compiled(x).cpu(), module(x), atol=1e-5)

"""What devices have of a value: ranges of an axis, parts that make up the whole, and how a state is written."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.errors import ProgramTextError
from dovetail.compiler.ir.program import Placement, placement_of
from dovetail.compiler.ir.split import share_of, type_on
from dovetail.compiler.ir.state import WHOLE, Partial, Split, State
from dovetail.compiler.ir.value import TensorType
from dovetail.compiler.states.parts import members
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program

MEMBERS = 3


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Uneven segments of an axis, in which shares may be nothing."""
    lengths = draw(st.lists(st.lists(st.integers(0, 4), min_size=MEMBERS, max_size=MEMBERS), min_size=1, max_size=3))
    ends = pairwise(accumulate([0, *(length for segment in lengths for length in segment)]))
    bounds = list(ends)
    return Split(
        draw(st.integers(0, 2)), tuple(tuple(bounds[at : at + MEMBERS]) for at in range(0, len(bounds), MEMBERS))
    )


@given(splits())
def test_parts_of_all_devices_make_up_the_axis_each_element_once(split: Split) -> None:
    had = [element for member in range(MEMBERS) for one in split.ranges(member) for element in range(*one)]
    assert sorted(had) == list(range(split.size))
    assert [split.length(member) for member in range(MEMBERS)] == [
        sum(stop - start for start, stop in split.ranges(member)) for member in range(MEMBERS)
    ]
    assert split.covers(MEMBERS, split.size)
    assert not split.covers(MEMBERS, split.size + 1)
    assert not split.covers(MEMBERS + 1, split.size)


def program(state: str, group: str = "sim0+sim1+sim2") -> str:
    return f"""\
program "States"
passes simplify
facts pinned, placed
devices sim0=1MiB,sim1=1MiB,sim2=1MiB
takes ["x"] defaults {{}}
argument x: tensor
returns [1, {{"type": null, "context": null, "children_spec": []}}]
%x: f32[12, 12, 12]~0 = input @sim0
%relu: f32[12, 12, 12]~1 = aten.relu.default(%x) @{group} {state}
return [%relu]
"""


@given(splits())
def test_a_split_is_read_back_as_it_is_written(split: Split) -> None:
    text = program(str(split))
    found = parse_program(text)
    assert placement_of(next(found.ops())).states == ((split,),)
    assert print_program(found) == text


def test_a_part_has_the_sizes_of_its_device_and_devices_without_one_do_not_run_it() -> None:
    found = parse_program(program("split 1 [0:2, 2:2, 2:6], [6:10, 10:10, 10:12]"))
    node, devices = next(found.ops()), found.devices
    kinds = [type_on(node, device) for device in devices]
    assert [kind.shape for kind in kinds if isinstance(kind, TensorType)] == [(12, 6, 12), (12, 0, 12), (12, 6, 12)]
    assert [str(device) for device in members(found, node)] == ["sim2", "sim0"], "the main device after the others"
    assert [share_of(node, device) for device in devices] == [0.5, 0, 0.5]
    parts = [torch.arange(12)[slice(*one)] for at in range(3) for one in placement_of(node).states[0][0].ranges(at)]  # type: ignore[union-attr]
    assert sorted(torch.cat(parts).tolist()) == list(range(12))


@pytest.mark.parametrize("state", [Partial(), WHOLE])
def test_other_states_are_of_every_device_of_the_group(state: State) -> None:
    found = parse_program(program("partial" if state == Partial() else "").replace(" \nreturn", "\nreturn"))
    node = next(found.ops())
    assert placement_of(node) == Placement(found.devices, None, (), ((state,),) if state == Partial() else ())
    assert all(type_on(node, device) == type_on(node, found.main) for device in found.devices)


@pytest.mark.parametrize(
    ("group", "state"),
    [
        ("sim0+sim1", "split 1 [0:4, 4:8, 8:12]"),
        ("sim0+sim1+sim0", "split 1 [0:4, 4:8, 8:12]"),
        ("sim0+sim1", "split 1 []"),
        ("sim0+sim1", "split 1 [1:4, 4:12]"),
        ("sim0+sim1", "split 1 [0:4, 5:12]"),
        ("sim0+sim1", "split 1 [0:8, 8:4]"),
        ("sim0+sim1", "split 1 [0:4, 4:6], [7:8, 8:12]"),
        ("sim0+sim1", "split -1 [0:4, 4:12]"),
        ("sim0+", "partial"),
        ("sim0+sim9", "partial"),
    ],
)
def test_a_state_that_cannot_be_is_refused_with_its_line(group: str, state: str) -> None:
    with pytest.raises(ProgramTextError, match="line 9"):
        parse_program(program(state, group))

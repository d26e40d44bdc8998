"""Parts of weights: what they have, how they are named, and what becomes of parts of parts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of
from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.part import Part, joined, merged
from dovetail.compiler.ir.weight import Weight

from .parts import Case, cases, ranges_in


def part_in(case: Case) -> Part:
    part = weight_of(case).part(case.axis, case.ranges).which
    assert part is not None
    return part


def weight_of(case: Case, name: str = "w") -> Weight:
    return Weight(name, "parameter", case.shape, torch.float32)


@given(cases())
def test_a_part_has_the_elements_of_its_ranges_in_their_order(case: Case) -> None:
    part, whole = part_in(case), case.whole()
    found = part.of(whole)
    assert torch.equal(found, case.of(whole))
    assert part.shape(case.shape) == tuple(found.shape)
    assert part.length == len(case.indices)
    assert part.lies_in(case.shape)


@given(cases())
def test_a_part_of_a_weight_counts_its_own_bytes_and_is_found_under_the_name_of_the_whole(case: Case) -> None:
    weight = weight_of(case, "a[0].w")
    part = weight.part(case.axis, case.ranges)
    assert part.shape == tuple(case.of(case.whole()).shape)
    assert part.nbytes == math.prod(part.shape) * 4
    assert part.names == weight.names == ("a[0].w",)
    assert torch.equal(part.of(case.whole()), case.of(case.whole()))
    assert weight.of(whole := case.whole()) is whole


@given(cases())
def test_a_part_in_one_range_is_a_view_and_one_in_several_has_memory_of_its_own(case: Case) -> None:
    whole, part = case.whole(), part_in(case)
    shares = part.of(whole).untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert shares == (len(part.ranges) == 1) or not case.of(whole).numel()


@given(cases(), st.data())
def test_a_part_of_a_part_is_the_part_of_what_the_part_has(case: Case, data: st.DataObject) -> None:
    outer = weight_of(case).part(case.axis, case.ranges)
    within = Case(outer.shape, case.axis, data.draw(ranges_in(outer.shape[case.axis])))
    inner = outer.part(within.axis, within.ranges)
    assert torch.equal(inner.of(case.whole()), within.of(case.of(case.whole())))
    assert inner.shape == within.of(outer.of(case.whole())).shape
    assert inner.whole == "w"


@given(cases(), st.data())
def test_parts_of_the_same_elements_are_equal_and_have_one_name(case: Case, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, case.shape[case.axis]))
    ends = [(start, min(max(at, start), stop), stop) for start, stop in case.ranges]
    cut = [one for start, middle, stop in ends for one in ((start, middle), (middle, stop))]
    one, other = weight_of(case).part(case.axis, case.ranges), weight_of(case).part(case.axis, cut)
    assert not case.indices or (one, hash(one.which), one.name) == (other, hash(other.which), other.name)


@given(cases(least=1), st.data())
def test_parts_overlap_where_some_element_is_in_both_whichever_is_asked(case: Case, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(case.shape) - 1))
    other = Case(case.shape, axis, data.draw(ranges_in(case.shape[axis])))
    one, two = part_in(case), part_in(other)
    numbers = case.whole()
    both = set(one.of(numbers).flatten().tolist()) & set(two.of(numbers).flatten().tolist())
    assert one.overlaps(two) == two.overlaps(one) == bool(both)


@given(cases(least=1), st.data())
def test_parts_that_cover_a_tensor_are_joined_to_it(case: Case, data: st.DataObject) -> None:
    size, whole = case.shape[case.axis], case.whole()
    owners = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    each = [[(at, at + 1) for at in range(size) if owners[at] == owner] for owner in set(owners)]
    parts = [part_in(Case(case.shape, case.axis, tuple(ranges))) for ranges in each]
    assert torch.equal(joined({part: part.of(whole) for part in parts}), whole)


def test_parts_that_do_not_cover_a_tensor_are_not_joined() -> None:
    rows, columns = Part(0, ((0, 2),)), Part(1, ((0, 2),))
    for parts in ([Part(0, ((1, 2),))], [rows, Part(0, ((3, 4),))], [rows, columns], [columns, Part(1, ((3, 4),))]):
        with pytest.raises(AssertionError):
            joined({part: part.of(torch.zeros(4, 4)) for part in parts})


@given(cases(least=1), st.data())
def test_parts_that_overlap_are_joined_with_each_element_once(case: Case, data: st.DataObject) -> None:
    size, whole = case.shape[case.axis], case.whole()
    ends = sorted({*data.draw(st.lists(st.integers(1, size), max_size=3)), size})
    ranges = [(data.draw(st.integers(0, at)), end) for at, end in zip((0, *ends), ends, strict=False)]
    parts = [part_in(Case(case.shape, case.axis, (one,))) for one in data.draw(st.permutations(ranges))]
    assert torch.equal(joined({part: part.of(whole) for part in parts}), whole)


def test_the_name_of_a_part_says_its_axis_and_its_ranges() -> None:
    weight = Weight("blocks[3].w", "parameter", (192, 64, 3), torch.float32)
    assert weight.part(0, [(0, 64)]).name == "blocks[3].w[0:64]"
    assert weight.part(0, [(0, 64), (128, 192)]).name == "blocks[3].w[0:64+128:192]"
    assert weight.part(1, [(0, 8), (8, 16)]).name == "blocks[3].w[:, 0:16]"
    assert weight.part(2, [(2, 2)]).name == "blocks[3].w[:, :, 2:2]"
    assert weight.part(0, []).name == "blocks[3].w[0:0]"
    assert weight.part(0, [(0, 64), (128, 192)]).part(0, [(60, 70)]).name == "blocks[3].w[60:64+128:134]"


def test_ranges_that_meet_are_one_and_of_empty_ones_one_is_left() -> None:
    assert merged([(0, 2), (2, 2), (2, 3), (5, 6)]) == ((0, 3), (5, 6))
    assert merged([(3, 3), (5, 5)]) == ((3, 3),)
    assert merged([]) == ((0, 0),)


@pytest.mark.parametrize(
    ("axis", "ranges"),
    [(2, [(0, 1)]), (-1, [(0, 1)]), (0, [(-1, 2)]), (0, [(3, 2)]), (1, [(2, 4), (0, 1)]), (1, [(0, 3), (2, 4)])],
)
def test_what_is_no_part_is_refused(axis: int, ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(WeightError, match=r"w of \[4, 6\] has no .* along axis"):
        Weight("w", "parameter", (4, 6), torch.float32).part(axis, ranges)


def test_a_part_of_a_part_lies_in_it_and_along_its_axis() -> None:
    part = Weight("w", "parameter", (4, 6), torch.float32).part(1, [(0, 2), (4, 5)])
    with pytest.raises(WeightError, match=r"w\[:, 0:2\+4:5\] of \[4, 3\] has no 1:4 along axis 1"):
        part.part(1, [(1, 4)])
    with pytest.raises(WeightError, match="is a part along another axis than 0: take one of w instead"):
        part.part(0, [(0, 1)])


@given(st.sampled_from(QUANT_TYPES), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1), st.data())
def test_a_part_of_a_packed_weight_is_one_of_its_bytes(
    quant: str, rows: int, blocks: int, axis: int, data: st.DataObject
) -> None:
    elements, nbytes = block_of(quant)
    weight = Weight("w", "parameter", (rows, blocks * elements), torch.bfloat16, quant=quant)
    part = weight.part(axis, data.draw(ranges_in(weight.shape[axis], elements if axis else 1)))
    packed = torch.arange(weight.nbytes).reshape(weight.stored[0])
    found = part.of(packed)
    assert (tuple(found.shape), found.numel()) == (part.stored[0], part.nbytes)
    numbers = torch.arange(rows * blocks).reshape(rows, blocks).repeat_interleave(elements, 1)
    assert part.which is not None
    kept = part.which.of(numbers)[:, ::elements].repeat_interleave(nbytes, 1)  # the number of the block of each byte
    assert torch.equal(found // nbytes, kept)


def test_a_part_cuts_no_block() -> None:
    weight = Weight("w", "parameter", (4, 64), torch.bfloat16, quant="Q8_0")
    with pytest.raises(WeightError, match="w has Q8_0 blocks of 32, which 0:16, 32:64 would cut along axis 1"):
        weight.part(1, [(0, 16), (32, 64)])
    assert weight.part(0, [(0, 1), (3, 4)]).nbytes == 2 * 68

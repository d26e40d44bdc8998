"""Parts of weights, along any axis and of one range or several, from wherever their numbers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of
from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import Accelerator, SimAccelerator
from dovetail.runtime.devices.ring import Ring
from dovetail.runtime.store import reader
from dovetail.runtime.store.counter import READ
from dovetail.runtime.store.origin import FileOrigin, MergedOrigin, RoundedOrigin, TensorOrigin
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.reader import WeightReader
from dovetail.runtime.store.store import Store
from dovetail.runtime.store.stored_weight import Numbers, StoredWeight

from ...compiler.checkpoints.weight_files import packed, write_gguf
from ...compiler.ir.parts import Case, cases, ranges_in
from .test_files import program_of

CPU = torch.device("cpu")


def sim0() -> torch.device:
    sim.enable()
    return torch.device("sim", 0)


def weight_of(case: Case, dtype: torch.dtype = torch.float32) -> Weight:
    return Weight("w", "parameter", case.shape, dtype)


def part_of(case: Case, dtype: torch.dtype = torch.float32) -> Weight:
    return weight_of(case, dtype).part(case.axis, case.ranges)


def in_file(folder: str, whole: torch.Tensor) -> FileOrigin:
    """A weight that lies in a file behind another, with a third behind it."""
    path = Path(folder) / "model.safetensors"
    save_file({"a": torch.full((7,), -1.0), "w": whole.contiguous(), "z": torch.full((7,), -1.0)}, path)
    index = WeightIndex.of_file(path)
    return FileOrigin(index["w"], WeightReader(), index.where)


@given(cases(), st.sampled_from([torch.float32, torch.float16, torch.int8]))
def test_a_part_is_read_from_a_file_without_the_rest(case: Case, dtype: torch.dtype) -> None:
    whole, weight = case.whole(dtype), part_of(case, dtype)
    with TemporaryDirectory() as folder:
        origin = in_file(folder, whole)
        for device in (CPU, sim0()):
            assert torch.equal(origin.read(weight, device).cpu(), case.of(whole))
        place, before = torch.empty(weight.shape, dtype=dtype), READ.nbytes
        origin.read_into(weight, place)
        assert torch.equal(place, case.of(whole))
        assert READ.nbytes - before == weight.nbytes
        view = origin.bring_view(weight)
        assert view is None or torch.equal(view, case.of(whole))
        assert sum(piece.nbytes for piece in origin.fitting(weight).pieces) == weight.nbytes


@given(cases(), st.data())
def test_a_part_of_a_part_is_read_from_a_file(case: Case, data: st.DataObject) -> None:
    outer = part_of(case)
    within = Case(outer.shape, case.axis, data.draw(ranges_in(outer.shape[case.axis])))
    with TemporaryDirectory() as folder:
        found = in_file(folder, case.whole()).read(outer.part(within.axis, within.ranges), CPU)
    assert torch.equal(found, within.of(case.of(case.whole())))


@given(cases(), st.data())
def test_a_part_is_read_from_memory_however_that_is_laid_out(case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.shape))))
    back = [order.index(axis) for axis in range(len(order))]
    turned = case.whole().permute(order).contiguous().permute(back)
    weight, expected = part_of(case), case.of(case.whole())
    there = turned.to(sim0())
    for tensor in (case.whole(), turned, there):
        for device in (CPU, sim0(), torch.device("sim", 1)):
            found = TensorOrigin(tensor).read(weight, device)
            assert (found.device, found.shape) == (device, weight.shape)
            assert torch.equal(found.cpu(), expected)
            assert found.untyped_storage().nbytes() == weight.nbytes
            place = torch.empty(weight.shape, device=device)
            TensorOrigin(tensor).read_into(weight, place)
            assert torch.equal(place.cpu(), expected)


@given(cases())
def test_only_the_bytes_of_a_part_go_to_a_device(case: Case) -> None:
    device, weight = sim0(), part_of(case)
    before = sim.stats(0).bytes_in
    TensorOrigin(case.whole()).read(weight, device)
    assert sim.stats(0).bytes_in - before == weight.nbytes


@pytest.mark.parametrize(
    ("weight", "shape"),
    [
        (Weight("w", "parameter", (6, 4), torch.float32).part(1, [(0, 1), (3, 4)]), (6, 3)),
        (Weight("w", "parameter", (6, 4), torch.float32).part(1, [(0, 1), (3, 4)]), (5, 4)),
        (Weight("w", "parameter", (6, 4), torch.float32).part(1, [(0, 1), (3, 4)]), (6,)),
        (Weight("w", "parameter", (6, 4), torch.float32).part(0, [(0, 1), (3, 6)]), (5, 4)),
    ],
)
def test_what_does_not_have_a_part_is_refused(tmp_path: Path, weight: Weight, shape: tuple[int, ...]) -> None:
    with pytest.raises(WeightError, match="compile again"):
        TensorOrigin(torch.zeros(shape)).read(weight, CPU)
    with pytest.raises(WeightError, match=r"another configuration|ask for (rows|elements) it has"):
        in_file(str(tmp_path), torch.zeros(shape)).read(weight, CPU)


@given(st.sampled_from(QUANT_TYPES), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1), st.data())
def test_a_part_of_a_packed_weight_has_the_blocks_of_its_numbers(
    quant: str, rows: int, blocks: int, axis: int, data: st.DataObject
) -> None:
    elements = block_of(quant)[0]
    written = packed(quant, (rows, blocks * elements))
    weight = Weight("w", "parameter", (rows, blocks * elements), torch.float32, quant=quant)
    case = Case(weight.shape, axis, data.draw(ranges_in(weight.shape[axis], elements if axis else 1)))
    part, plain = weight.part(axis, case.ranges), part_of(case)
    with TemporaryDirectory() as folder:
        write_gguf(Path(folder) / "model.gguf", {"w": written})
        index = WeightIndex.of_file(Path(folder) / "model.gguf")
        origin, before = FileOrigin(index["w"], WeightReader(), index.where), READ.nbytes
        found = origin.read(part, sim0()).cpu()
        assert READ.nbytes - before == part.nbytes
        dense = origin.whole(torch.float32, CPU)
        if not index["w"].is_packed:
            assert np.array_equal(origin.read(plain, CPU), case.of(dense), equal_nan=True)
    assert torch.equal(found, TensorOrigin(torch.from_numpy(written[2])).read(part, CPU))
    if case.indices:
        again = torch.ops.dovetail.dequantize(found, quant, torch.float32)
        assert np.array_equal(again, case.of(dense), equal_nan=True)


@dataclass(frozen=True)
class Halves:
    """An update that adds halves, the more of them the further an element lies behind."""

    shape: tuple[int, ...]

    def part(self, part: Part | None) -> torch.Tensor:
        whole = torch.arange(torch.Size(self.shape).numel()).reshape(self.shape) / 2
        return whole if part is None else part.of(whole)


@given(cases())
def test_a_part_of_what_is_merged_or_rounded_is_the_part_of_the_whole(case: Case) -> None:
    base = TensorOrigin(case.whole().sin())
    merged = MergedOrigin(base, (Halves(case.shape), Halves(case.shape)))
    assert torch.equal(merged.read(part_of(case), CPU), case.of(merged.whole(torch.float32, CPU)))
    rounded, half = RoundedOrigin(base, (torch.float32, torch.bfloat16)), part_of(case, torch.float16)
    assert torch.equal(rounded.read(half, CPU), case.of(rounded.whole(torch.float16, CPU)))


@given(cases(), st.sampled_from([Residency.HOST, Residency.DISK, Residency.DEVICE]))
def test_a_part_is_staged_and_landed_from_where_a_weight_rests(case: Case, rests: Residency) -> None:
    device, weight, expected = sim0(), part_of(case), case.of(case.whole())
    with TemporaryDirectory() as folder:
        bare = torch.empty(case.shape, device="meta")
        store = Store()
        one = store.adopt(StoredWeight("w", bare, Numbers(origin=in_file(folder, case.whole())), "net", rests))
        place = torch.empty(weight.shape, device=device)
        store.land(one, weight, place)
        assert torch.equal(place.cpu(), expected)
        assert torch.equal(store.stage(one, weight, device).cpu(), expected)
        assert not one.staged
        assert torch.equal(store.part(one, weight, device).cpu(), expected)
        assert one.is_held(weight, device) == bool(case.indices)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_of_a_packed_weight_comes_from_host_memory(tmp_path: Path, axis: int) -> None:
    written = packed("Q8_0", (4, 128))
    write_gguf(tmp_path / "model.gguf", {"w": written})
    index = WeightIndex.of_file(tmp_path / "model.gguf")
    origin, store = FileOrigin(index["w"], WeightReader(), index.where), Store()
    bare = torch.empty(4, 128, device="meta")
    one = store.adopt(StoredWeight("w", bare, Numbers(origin=origin), "net", Residency.HOST))
    whole, data = Weight("w", "parameter", (4, 128), torch.float32, quant="Q8_0"), torch.from_numpy(written[2])
    weight = whole.part(axis, [((0, 1), (2, 4)), ((0, 32), (64, 128))][axis])
    expected = data[[0, 2, 3]] if axis == 0 else data[:, [*range(34), *range(68, 136)]]
    place = torch.empty(weight.stored[0], dtype=torch.uint8, device=sim0())
    store.land(one, weight, place)
    assert torch.equal(place.cpu(), expected)
    assert torch.equal(store.stage(one, weight, sim0()).cpu(), expected)


@given(cases(least=1), st.data())
def test_a_weight_of_which_only_parts_are_left_is_put_together_of_them(case: Case, data: st.DataObject) -> None:
    size, whole = case.shape[case.axis], case.whole()
    owners = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    one = StoredWeight("w", torch.empty(case.shape, device="meta"))
    for owner in set(owners):
        ranges = [(at, at + 1) for at in range(size) if owners[at] == owner]
        which = weight_of(case).part(case.axis, ranges).which
        assert which is not None
        one.parts[which, "", CPU] = which.of(whole)
    assert torch.equal(one.numbers.gathered(), whole)


def test_what_is_held_of_a_weight_is_told_by_its_elements() -> None:
    one = StoredWeight("w", torch.empty(6, 4, device="meta"))
    whole = Weight("w", "parameter", (6, 4), torch.float32)
    columns = whole.part(1, [(0, 1), (3, 4)])
    one.parts[columns.which, "", CPU] = torch.zeros(6, 2)
    assert one.is_held(whole, CPU)
    assert one.is_held(whole.part(1, [(1, 2), (3, 4)]), CPU)
    assert not one.is_held(whole.part(1, [(1, 3)]), CPU)
    assert one.is_held(whole.part(0, [(2, 3)]), CPU)
    assert not one.is_held(columns, sim0())


@given(cases(), st.booleans())
def test_a_program_reads_a_part_from_a_file_or_from_the_tensor_of_a_module(case: Case, is_in_file: bool) -> None:
    device, weight = sim0(), part_of(case)
    with TemporaryDirectory() as folder:
        program = program_of(weight, device=device)
        origin = in_file(folder, case.whole())
        index = WeightIndex.of_file(Path(folder) / "model.safetensors")
        weights = (
            ProgramWeights.of_files(index, program)
            if is_in_file
            else ProgramWeights.of_tensors({"w": case.whole()}, program)
        )
        found = weights(weight, device)
        assert (found.device, origin.entry.shape) == (device, case.shape)
        assert torch.equal(found.cpu(), case.of(case.whole()))


@given(cases(least=1))
def test_a_part_in_host_memory_is_a_view_where_it_is_one_range(case: Case) -> None:
    weight = part_of(case)
    with TemporaryDirectory() as folder:
        in_file(folder, case.whole())
        program = program_of(weight)
        program.residency = {weight.name: Residency.HOST}
        weights = ProgramWeights.of_files(WeightIndex.of_file(Path(folder) / "model.safetensors"), program)
        found, again = weights(weight, CPU), weights(weight, CPU)
    assert torch.equal(found, case.of(case.whole()))
    assert weight.which is not None
    assert not case.indices or (found.data_ptr() == again.data_ptr()) == (len(weight.which.ranges) == 1)


def test_ranges_of_columns_are_sent_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, whole = sim0(), torch.arange(600.0).reshape(60, 10)
    monkeypatch.setattr(SimAccelerator, "host_view", Accelerator.host_view)
    monkeypatch.setattr(reader, "_PIECE", 1000)
    sent: list[int] = []
    send = Ring.send

    def counted(self: Ring, source: torch.Tensor, target: torch.Tensor) -> None:
        sent.append(source.nbytes)
        send(self, source, target)

    monkeypatch.setattr(Ring, "send", counted)
    columns = Weight("w", "parameter", (60, 10), torch.float32).part(1, [(1, 3), (5, 6)])
    found = in_file(str(tmp_path), whole).read(columns, device)
    assert torch.equal(found.cpu(), whole[:, [1, 2, 5]])
    assert sent == [columns.nbytes]

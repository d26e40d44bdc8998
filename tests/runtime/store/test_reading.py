"""The reader: what a file holds comes out of it on every device, whole or in parts, and a changed file is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file

from dovetail.compiler.checkpoints.index import WeightEntry, WeightIndex
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of
from dovetail.compiler.errors import WeightError
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import Accelerator, SimAccelerator
from dovetail.runtime.store import opened_file
from dovetail.runtime.store import reader as reading
from dovetail.runtime.store.reader import WeightReader

from ...compiler.checkpoints.weight_files import dense_weights, packed, packed_weights, write_gguf, write_safetensors

FRESH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CPU = torch.device("cpu")


def sim0() -> torch.device:
    sim.enable()
    return torch.device("sim", 0)


@pytest.fixture(params=[8, 24, 8 * 2**20])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many bytes are read at once: few, so that small weights are read in many pieces, or as many as usual."""
    monkeypatch.setattr(reading, "_PIECE", request.param)
    return int(request.param)


@pytest.fixture
def without_host_view(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulated devices whose memory the host cannot write, so that bytes go to them through the ring."""
    sim.enable()
    monkeypatch.setattr(SimAccelerator, "host_view", Accelerator.host_view)
    yield
    sim.synchronize(0)


def same_bytes(read: torch.Tensor, tensor: torch.Tensor) -> bool:
    return torch.equal(read.cpu().reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@FRESH
@given(tensors=dense_weights())
def test_what_was_saved_is_read_on_every_device(tmp_path: Path, piece: int, tensors: dict[str, torch.Tensor]) -> None:
    sim.enable()
    write_safetensors(tmp_path / "model.safetensors", tensors)
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    assert index.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for device in (CPU, sim0()):
            read = reader.read(index[name], tensor.dtype, device)
            assert (read.device, read.dtype, read.shape) == (device, tensor.dtype, tensor.shape)
            assert same_bytes(read, tensor)


@pytest.mark.fifth
@FRESH
@given(weights=packed_weights())
def test_packed_bytes_are_read_as_they_were_written(tmp_path: Path, piece: int, weights: dict) -> None:
    sim.enable()
    write_gguf(tmp_path / "model.gguf", weights)
    index, reader = WeightIndex.of_file(tmp_path / "model.gguf"), WeightReader()
    for name, (_, _, data) in weights.items():
        for device in (CPU, sim0()):
            assert np.array_equal(reader.read(index[name].packed(), torch.uint8, device).cpu().numpy(), data)


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_rows_of_every_type_are_read_in_any_order(tmp_path: Path, piece: int, quant: str) -> None:
    sim.enable()
    _, _, data = weight = packed(quant, (9, 2 * block_of(quant)[0]))
    write_gguf(tmp_path / "model.gguf", {"w": weight})
    entry, reader = WeightIndex.of_file(tmp_path / "model.gguf")["w"], WeightReader()
    for order in ([*range(2, 7)], [5, 6, 7, 8, 0, 1, 2], [3, 3], []):
        rows = WeightEntry.joined([entry.slice(0, 0), *(entry.slice(row, row + 1) for row in order)]).packed()
        for device in (CPU, sim0()):
            assert np.array_equal(reader.read(rows, torch.uint8, device).cpu().numpy(), data[order])


def test_rows_are_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim.enable()
    tensor = torch.arange(1000.0).reshape(100, 10)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    entry, counts = WeightIndex.of_file(tmp_path / "model.safetensors")["w"], []
    read_some = opened_file.OpenedFile._read_some

    def counted(self: opened_file.OpenedFile, start: int, memory: memoryview) -> int:
        counts.append(read_some(self, start, memory))
        return counts[-1]

    monkeypatch.setattr(opened_file.OpenedFile, "_read_some", counted)
    assert torch.equal(WeightReader().read(entry.slice(20, 30), torch.float32, sim0()).cpu(), tensor[20:30])
    assert sum(counts) == 10 * 10 * 4


def test_without_positioned_reads_the_same_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim.enable()
    monkeypatch.delattr(os, "preadv")
    monkeypatch.setattr(reading, "_PIECE", 64)
    tensor = torch.arange(1000.0)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    entry = WeightIndex.of_file(tmp_path / "model.safetensors")["w"]
    assert torch.equal(WeightReader().read(entry, torch.float32, sim0()).cpu(), tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_weight_is_converted_while_it_is_read(tmp_path: Path, piece: int, device: str, dtype: torch.dtype) -> None:
    sim.enable()
    tensor = torch.randn(7, 5).half()
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    index = WeightIndex.of_file(tmp_path / "model.safetensors")
    read = WeightReader().read(index["w"], dtype, torch.device(device))
    assert torch.equal(read.cpu(), tensor.to(dtype))


@pytest.mark.usefixtures("without_host_view")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_that_the_host_cannot_write_gets_its_bytes_in_order(
    tmp_path: Path, piece: int, dtype: torch.dtype
) -> None:
    tensors = {name: torch.randn(7, 5) for name in "abc"}
    save_file(tensors, tmp_path / "model.safetensors")
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    for name, tensor in tensors.items():
        read = reader.read(index[name], dtype, sim0())
        doubled = read + read  # on the current stream, which waits for the copies
        assert torch.equal(doubled.cpu(), tensor.to(dtype) * 2)


@pytest.mark.usefixtures("without_host_view")
def test_a_tensor_that_is_in_use_is_filled_after_its_use(tmp_path: Path, piece: int) -> None:
    save_file({"w": torch.ones(40), "v": torch.zeros(40)}, tmp_path / "model.safetensors")
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    target = torch.empty(40, device=sim0())
    for name, value in (("w", 1), ("v", 0), ("w", 1)):
        reader.read_into(index[name], target)
        assert torch.equal((target * 1).cpu(), torch.full((40,), float(value)))


def test_a_tensor_that_is_given_is_filled_in_place(tmp_path: Path, piece: int) -> None:
    sim.enable()
    tensors = {"w": torch.randn(6, 4), "h": torch.randn(6, 4).half()}
    save_file(tensors, tmp_path / "model.safetensors")
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    for device in (CPU, sim0()):
        target = torch.empty(6, 4, device=device)
        for name, tensor in tensors.items():
            reader.read_into(index[name], target)
            assert torch.equal(target.cpu(), tensor.float())
        reader.read_into(index["w"].slice(2, 4), target[:2])
        assert torch.equal(target.cpu(), torch.cat([tensors["w"][2:4], tensors["h"][2:].float()]))


def test_a_weight_is_not_read_into_another_shape_nor_unpacked(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", {"w": packed("Q8_0", (2, 32)), "f": packed("F32", (2, 32))})
    index, reader = WeightIndex.of_file(tmp_path / "model.gguf"), WeightReader()
    with pytest.raises(WeightError, match=r"F32\[2, 32\] cannot fill torch.float32\[2, 16\]"):
        reader.read_into(index["f"], torch.empty(2, 16))
    with pytest.raises(WeightError, match=r"Q8_0\[2, 32\] cannot fill torch.float32\[2, 32\]"):
        reader.read(index["w"], torch.float32, CPU)


def test_reading_counts_on_a_simulated_device_as_one_copy(tmp_path: Path) -> None:
    sim.enable()
    save_file({"w": torch.ones(1000)}, tmp_path / "model.safetensors")
    index, before = WeightIndex.of_file(tmp_path / "model.safetensors"), sim.stats(0)
    read = WeightReader().read(index["w"], torch.float32, sim0())
    after = sim.stats(0)
    assert (after.bytes_in - before.bytes_in, after.in_use - before.in_use) == (4000, 4000)
    assert read.device == sim0()


def test_what_lies_across_the_alignment_of_its_dtype_is_read_on_the_host(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "w": torch.randn(5)}
    content = b"".join(
        (
            b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},',
            b'"w":{"dtype":"F32","shape":[5],"data_offsets":[3,23]}}',
        )
    )
    content += b" " * (-len(content) % 8)
    data = tensors["a"].numpy().tobytes() + tensors["w"].numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content + data)
    index = WeightIndex.of_file(tmp_path / "model.safetensors")
    assert torch.equal(WeightReader().read(index["w"], torch.float32, CPU), tensors["w"])


def test_writing_into_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(4)}, path)
    index = WeightIndex.of_file(path)
    WeightReader().read(index["w"], torch.float32, CPU).zero_()
    assert torch.equal(WeightReader().read(index["w"], torch.float32, CPU), torch.ones(4))


@pytest.mark.parametrize("memory", [1, 2**60])
def test_what_was_advised_and_released_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    monkeypatch.setattr(reading, "host_memory", lambda: memory)
    tensor = torch.randn(64, 1024)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    view = reader.read(index["w"], torch.float32, CPU)
    assert torch.equal(view, tensor)
    reader.release(index.values())
    reader.advise(index.values())
    assert torch.equal(view, tensor)
    assert torch.equal(reader.read(index["w"], torch.float32, CPU), tensor)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_changed_since_it_was_indexed_is_refused(tmp_path: Path, device: str, opened: bool) -> None:
    sim.enable()
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(400)}, path)
    index, reader = WeightIndex.of_file(path), WeightReader()
    if opened:
        reader.read(index["w"], torch.float32, torch.device(device))
    size, modified = path.stat().st_size, path.stat().st_mtime_ns
    os.utime(path, ns=(modified, modified + 10**9))
    with pytest.raises(WeightError, match="was written to since its header was read: load it again"):
        reader.read(index["w"], torch.float32, torch.device(device))
    os.truncate(path, size - 8)
    with pytest.raises(WeightError, match=f"has {size - 8} bytes now, it had {size}: load it again"):
        reader.read(index["w"], torch.float32, torch.device(device))


def test_a_file_that_is_replaced_is_still_read_by_who_has_it_open(tmp_path: Path) -> None:
    sim.enable()
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(400)}, path)
    index, reader = WeightIndex.of_file(path), WeightReader()
    reader.advise(index.values())
    save_file({"w": torch.zeros(9)}, tmp_path / "other")
    os.replace(tmp_path / "other", path)
    assert torch.equal(reader.read(index["w"], torch.float32, sim0()).cpu(), torch.ones(400))


def test_a_file_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(400)}, path)
    index = WeightIndex.of_file(path)
    path.unlink()
    with pytest.raises(WeightError, match=r"model.safetensors cannot be read: .*: download it again"):
        WeightReader().read(index["w"], torch.float32, CPU)


LISTINGS = ("", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"w": 3}}', '{"weight_map": null}')


@pytest.mark.parametrize("text", LISTINGS)
def test_a_listing_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    listing = tmp_path / "model.safetensors.index.json"
    listing.write_text(text)
    with pytest.raises(WeightError, match="is not an index of weights"):
        WeightIndex.of_shards(listing)


def test_a_listing_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "one.safetensors")
    listing = tmp_path / "model.safetensors.index.json"
    listing.write_text('{"weight_map": {"w": "one.safetensors", "v": "one.safetensors"}}')
    with pytest.raises(WeightError, match=r"one.safetensors lacks v"):
        WeightIndex.of_shards(listing)

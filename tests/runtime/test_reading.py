"""The weight index and the reader: what a file holds comes out of it, and a file that lies is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dovetail.compiler.errors import WeightError
from dovetail.compiler.weights import WeightIndex
from dovetail.runtime import reading, sim
from dovetail.runtime.reading import WeightReader

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
FRESH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def checkpoints(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    tensors = {}
    for name in draw(st.sets(NAMES.filter(lambda name: name != "__metadata__"), min_size=1, max_size=5)):
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        tensors[name] = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    return tensors


@FRESH
@given(tensors=checkpoints(), piece=st.sampled_from([8, 24, 64 * 2**20]))
def test_what_was_saved_is_read_on_every_device(tmp_path: Path, tensors: dict[str, torch.Tensor], piece: int) -> None:
    sim.enable()
    save_file(tensors, tmp_path / "model.safetensors")
    index, reader = WeightIndex.of_file(tmp_path / "model.safetensors"), WeightReader()
    assert index.keys() == tensors.keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PIECE", piece)
        for name, tensor in tensors.items():
            for device in ("cpu", "sim:0"):
                read = reader.read(index[name], tensor.dtype, torch.device(device))
                assert read.device == torch.device(device)
                assert read.dtype == tensor.dtype
                assert torch.equal(read.cpu(), tensor)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_a_weight_is_converted_while_it_is_read(tmp_path: Path, device: str) -> None:
    sim.enable()
    tensor = torch.randn(7, 5)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    index = WeightIndex.of_file(tmp_path / "model.safetensors")
    read = WeightReader().read(index["w"], torch.bfloat16, torch.device(device))
    assert torch.equal(read.cpu(), tensor.bfloat16())


def test_writing_into_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(4)}, path)
    index = WeightIndex.of_file(path)
    WeightReader().read(index["w"], torch.float32, torch.device("cpu")).zero_()
    assert torch.equal(WeightReader().read(index["w"], torch.float32, torch.device("cpu")), torch.ones(4))


@FRESH
@given(data=st.data())
def test_a_file_with_any_byte_changed_is_read_within_its_bounds_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, 3, dtype=torch.int64)}, path)
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        index = WeightIndex.of_file(path)
    except WeightError:
        return
    for entry in index.values():
        assert 8 + length <= entry.pieces[0].start <= entry.pieces[0].end <= len(content)
        read = WeightReader().read(entry, entry.dtype, torch.device("cpu"))
        assert tuple(read.shape) == entry.shape


def test_a_header_that_claims_a_huge_count_is_refused_without_memory(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}}'
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(WeightError, match=r"w is F32\[1099511627776, 1099511627776\] in 4 bytes, which cannot be"):
        WeightIndex.of_file(tmp_path / "model.safetensors")


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

"""The weight index: what a file says of itself, and how a file that lies is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.compiler.checkpoints.index import Piece, StoredFile, WeightEntry, WeightIndex
from dovetail.compiler.errors import WeightError

from .weight_files import dense_weights, packed, packed_weights, with_header, write_gguf, write_safetensors

FRESH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = '"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
BAD_HEADERS = {
    "not an object": (b"[1, 2]", "does not begin with"),
    "space before it": (b" {" + GOOD.encode() + b"}", "does not begin with"),
    "UTF-16": (("{" + GOOD + "}").encode("utf-16-le"), "its header cannot be read"),
    "no UTF-8": (b'{"\xff":{}}', "UnicodeDecodeError"),
    "a name twice": (f"{{{GOOD},{GOOD}}}".encode(), "'w' is there twice"),
    "a key twice": (b'{"w":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}', "'dtype' is there twice"),
    "deep": (b'{"w":' + b"[" * 100_000, "RecursionError"),
    "NaN": (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', "NaN is no size"),
    "a fraction": (b'{"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', "sizes that are no sizes"),
    "a truth": (b'{"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', "sizes that are no sizes"),
    "negative": (b'{"w":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}', "sizes that are no sizes"),
    "a text": (b'{"w":{"dtype":"F32","shape":"1","data_offsets":[0,4]}}', "sizes that are no sizes"),
    "many sizes": (
        f'{{"w":{{"dtype":"F32","shape":{[2**60] * 10_000},"data_offsets":[0,4]}}}}'.encode(),
        "sizes that are no sizes",
    ),
    "sizes past counting": (
        f'{{"w":{{"dtype":"F32","shape":[0,{2**40},{2**40}],"data_offsets":[0,0]}}}}'.encode(),
        "sizes that are no sizes",
    ),
    "three offsets": (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}', "its header cannot be read"),
    "no tensor": (b'{"w":4}', "its header cannot be read"),
    "a list as dtype": (b'{"w":{"dtype":[],"shape":[1],"data_offsets":[0,4]}}', "its header cannot be read"),
    "past the end": (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "cut short: w ends at byte"),
    "a gap": (b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}', "w begins at byte"),
    "too much": (b"{}", "too long"),
    "metadata that is no text": (b'{"__metadata__":{"a":1}}', "its __metadata__"),
}


@FRESH
@given(tensors=dense_weights())
def test_a_safetensors_file_is_indexed_as_it_was_written(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    write_safetensors(tmp_path / "a.safetensors", tensors)
    index = WeightIndex.of_file(tmp_path / "a.safetensors")
    found = {name: (entry.dtype, entry.shape, entry.nbytes) for name, entry in index.items()}
    assert found == {name: (one.dtype, tuple(one.shape), one.nbytes) for name, one in tensors.items()}
    assert index.metadata == {"format": "pt"}


def test_a_long_header_must_be_a_small_part_of_its_file(tmp_path: Path) -> None:
    header = b"{" + b" " * 2**20 + b"}"
    (tmp_path / "a.safetensors").write_bytes(with_header(header))
    with pytest.raises(WeightError, match="its header would have 1048578 bytes"):
        WeightIndex.of_file(tmp_path / "a.safetensors")


@FRESH
@given(weights=packed_weights(), alignment=st.sampled_from([32, 64, 256]))
def test_a_gguf_file_is_indexed_as_it_was_written(tmp_path: Path, weights: dict, alignment: int) -> None:
    write_gguf(tmp_path / "a.gguf", weights, "tiny", alignment)
    index = WeightIndex.of_file(tmp_path / "a.gguf")
    found = {name: (entry.quant, entry.shape, entry.nbytes) for name, entry in index.items()}
    assert found == {name: (quant, shape, data.nbytes) for name, (quant, shape, data) in weights.items()}
    assert index.metadata["general.architecture"] == "tiny"
    assert index.metadata["test.numbers"] == (1, 2, 3)
    assert index.metadata["test.half"] == 0.5


def test_the_first_bytes_say_what_a_file_is_and_not_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.bin", {"w": packed("Q8_0", (2, 32))})
    assert WeightIndex.of_file(tmp_path / "a.bin")["w"].quant == "Q8_0"


def test_parts_of_a_gguf_file_are_one_checkpoint(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a-00001-of-00002.gguf", {"v": packed("Q4_K", (2, 256))})
    write_gguf(tmp_path / "a-00002-of-00002.gguf", {"w": packed("F16", (3, 5))})
    index = WeightIndex.of_file(tmp_path / "a-00001-of-00002.gguf")
    assert [(name, entry.describe()) for name, entry in index.items()] == [("v", "Q4_K[2, 256]"), ("w", "F16[3, 5]")]


def test_parts_of_a_gguf_file_must_all_be_there_and_differ(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a-00001-of-00002.gguf", {"v": packed("Q4_K", (2, 256))})
    with pytest.raises(WeightError, match=r"a-00002-of-00002.gguf is missing"):
        WeightIndex.of_file(tmp_path / "a-00001-of-00002.gguf")
    write_gguf(tmp_path / "a-00002-of-00002.gguf", {"v": packed("F16", (3, 5))})
    with pytest.raises(WeightError, match=r"00002.gguf has v as a part before it has"):
        WeightIndex.of_file(tmp_path / "a-00001-of-00002.gguf")


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, what: str) -> None:
    header, why = BAD_HEADERS[what]
    (tmp_path / "a.safetensors").write_bytes(with_header(header, b"\0" * 4))
    with pytest.raises(WeightError, match=why) as caught:
        WeightIndex.of_file(tmp_path / "a.safetensors")
    assert "a.safetensors is damaged" in str(caught.value)
    assert len(str(caught.value)) < 1000


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors: bytes = b"", metadata: bytes = b"", counts: tuple[int, int] = (0, 0), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + metadata + tensors


def tensor(name: str = "w", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def padded(content: bytes, data: int) -> bytes:
    return content + b"\0" * (-len(content) % 32 + data)


BAD_GGUF = {
    "empty": (b"GGUF", "its version would have 4 bytes"),
    "another magic": (b"GGUX" + b"\0" * 40, "header would have"),
    "version 1": (gguf(version=1), "has GGUF version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
    "many tensors": (gguf(counts=(2**60, 0)), "would have 1152921504606846976 tensors"),
    "much metadata": (gguf(counts=(0, 2**60)), "would have 1152921504606846976 pieces of metadata"),
    "more tensors than it may": (gguf(b"\0" * 2**21, counts=(2**16 + 1, 0)), "65537 tensors, at most 65536"),
    "a long name": (gguf(struct.pack("<Q", 2**60) + b"\0" * 40, counts=(1, 0)), "a tensor's name would have"),
    "a name that is no text": (gguf(struct.pack("<Q", 1) + b"\xff" * 40, counts=(1, 0)), "a tensor's name is no text"),
    "many dimensions": (gguf(text("w") + struct.pack("<IQQQ", 2**31, 1, 1, 1), counts=(1, 0)), "2147483648 dimensions"),
    "a huge size": (padded(gguf(tensor(sizes=(2**40,)), counts=(1, 0)), 32), "w ends at byte"),
    "sizes past counting": (padded(gguf(tensor(sizes=(0, 2**40, 2**40)), counts=(1, 0)), 32), "which no tensor has"),
    "an unknown type": (padded(gguf(tensor(kind=99), counts=(1, 0)), 32), "w has type number 99, supported are F32,"),
    "a type not supported": (
        padded(gguf(tensor(kind=16), counts=(1, 0)), 32),
        "w has type IQ2_XXS, supported are F32,",
    ),
    "half a block": (padded(gguf(tensor(kind=8), counts=(1, 0)), 32), "a row of 4 numbers is no whole number of Q8_0"),
    "a gap": (padded(gguf(tensor(offset=32), counts=(1, 0)), 48), "w begins at byte"),
    "an overlap": (padded(gguf(tensor("v", (9,)) + tensor("w"), counts=(2, 0)), 48), "begins at byte"),
    "a name twice": (padded(gguf(tensor() + tensor(offset=32), counts=(2, 0)), 48), "'w' is there twice"),
    "cut short": (padded(gguf(tensor(), counts=(1, 0)), 15), "cut short: w ends at byte"),
    "too long": (padded(gguf(tensor(), counts=(1, 0)), 64), "too long"),
    "a key twice": (gguf(metadata=(text("k") + struct.pack("<IB", 0, 1)) * 2, counts=(0, 2)), "'k' twice"),
    "an unknown value": (gguf(metadata=text("k") + struct.pack("<II", 77, 0), counts=(0, 1)), "k has type 77"),
    "a list of lists": (
        gguf(metadata=text("k") + struct.pack("<IIQ", 9, 9, 1), counts=(0, 1)),
        "k is a list of type 9",
    ),
    "a long list": (gguf(metadata=text("k") + struct.pack("<IIQ", 9, 4, 2**60), counts=(0, 1)), "items in k"),
    "a long list of texts": (gguf(metadata=text("k") + struct.pack("<IIQ", 9, 8, 2**60), counts=(0, 1)), "items in k"),
    "an odd alignment": (
        gguf(metadata=text("general.alignment") + struct.pack("<II", 4, 33), counts=(0, 1)),
        "its alignment is 33",
    ),
    "no alignment": (
        gguf(metadata=text("general.alignment") + struct.pack("<II", 4, 0), counts=(0, 1)),
        "alignment is 0",
    ),
}


@pytest.mark.parametrize("what", BAD_GGUF)
def test_a_gguf_header_that_lies_is_refused(tmp_path: Path, what: str) -> None:
    content, why = BAD_GGUF[what]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(WeightError, match=why) as caught:
        WeightIndex.of_file(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)


def test_a_gguf_file_is_read_in_both_of_its_versions(tmp_path: Path) -> None:
    for version in (2, 3):
        (tmp_path / "a.gguf").write_bytes(padded(gguf(tensor(sizes=(4, 3)), counts=(1, 0), version=version), 48))
        assert WeightIndex.of_file(tmp_path / "a.gguf")["w"].describe() == "F32[3, 4]"


def test_the_shape_that_a_converter_noted_is_the_shape(tmp_path: Path) -> None:
    key = text("comfy.gguf.orig_shape.w") + struct.pack("<IIQiii", 9, 5, 3, 2, 3, 2)
    (tmp_path / "a.gguf").write_bytes(padded(gguf(tensor(sizes=(12,)), key, (1, 1)), 48))
    assert WeightIndex.of_file(tmp_path / "a.gguf")["w"].shape == (2, 3, 2)


@pytest.mark.parametrize("name", ["a.safetensors", "a.gguf", "folder"])
def test_what_is_no_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(WeightError, match=f"{name} (is missing|cannot be read)"):
        WeightIndex.of_file(tmp_path / name)


def entry_of(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, quant: str = "", nbytes: int = 0) -> WeightEntry:
    file = StoredFile(Path("a"), 10**6, 0)
    return WeightEntry((Piece(file, 100, 100 + nbytes),), dtype, shape, quant)


@given(data=st.data(), rows=st.integers(1, 9))
def test_slices_joined_again_are_the_weight(data: st.DataObject, rows: int) -> None:
    whole = entry_of((rows, 4), nbytes=rows * 4)
    ends = sorted(data.draw(st.lists(st.integers(0, rows), max_size=3)))
    parts = [whole.slice(start, stop) for start, stop in zip([0, *ends], [*ends, rows], strict=True)]
    assert WeightEntry.joined(parts) == whole


def test_rows_in_another_order_are_pieces_in_that_order() -> None:
    whole = entry_of((4, 8), torch.float16, nbytes=64)
    swapped = WeightEntry.joined([whole.slice(2, 4), whole.slice(0, 2)])
    assert swapped.shape == (4, 8)
    assert [(piece.start - 100, piece.end - 100) for piece in swapped.pieces] == [(32, 64), (0, 32)]
    (inner,) = swapped.slice(1, 2).pieces
    assert (inner.start - 100, inner.end - 100) == (48, 64)
    assert len(swapped.slice(1, 3).pieces) == 2


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_rows_that_are_not_there_are_refused(start: int, stop: int) -> None:
    with pytest.raises(WeightError, match="has no rows"):
        entry_of((4, 2), nbytes=8).slice(start, stop)


def test_a_slice_cuts_no_block() -> None:
    vector = entry_of((64,), quant="Q8_0", nbytes=68)
    assert vector.slice(32, 64).nbytes == 34
    with pytest.raises(WeightError, match="no whole number of Q8_0 blocks"):
        vector.slice(16, 64)


def test_only_weights_that_are_alike_are_joined() -> None:
    with pytest.raises(WeightError, match=r"Q8_0\[2, 32\] and .*uint8\[2, 34\] cannot be joined"):
        WeightEntry.joined([entry_of((2, 34), nbytes=68), entry_of((2, 32), quant="Q8_0", nbytes=68)])


def test_a_shape_must_hold_the_same_numbers_in_whole_blocks() -> None:
    weight = entry_of((2, 64), quant="Q8_0", nbytes=136)
    assert weight.reshaped((4, 32)).packed().shape == (4, 34)
    for shape in ((4, 64), (8, 16)):
        with pytest.raises(WeightError):
            weight.reshaped(shape)


@FRESH
@given(tensors=dense_weights())
def test_shards_are_indexed_as_one_file(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    files = {name: f"{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        write_safetensors(tmp_path / file, {name: one for name, one in tensors.items() if files[name] == file})
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": files}))
    index = WeightIndex.of_shards(tmp_path / "index.json")
    assert {name: (entry.dtype, entry.shape) for name, entry in index.items()} == {
        name: (one.dtype, tuple(one.shape)) for name, one in tensors.items()
    }
    assert {name: entry.pieces[0].file.path.name for name, entry in index.items()} == files

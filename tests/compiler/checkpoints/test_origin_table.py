"""The table weight → origin: what it says is what files have, and one that lies is refused before a file is opened."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.compiler.checkpoints.entries import Piece, WeightEntry
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.checkpoints.origin_table import Located, OriginTable
from dovetail.compiler.errors import WeightError

from .weight_files import dense_weights, packed, packed_weights, write_gguf, write_safetensors

FRESH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bytes_of(entry: WeightEntry) -> bytes:
    return b"".join(piece.file.path.read_bytes()[piece.start : piece.end] for piece in entry.pieces)


def told(located: Located) -> tuple[Any, ...]:
    entry, through = located
    return entry.dtype, entry.shape, entry.quant, through, bytes_of(entry)


@FRESH
@given(dense=dense_weights(), quants=packed_weights(), data=st.data())
def test_a_table_that_was_read_finds_the_same_bytes_in_copies_of_the_files(
    tmp_path: Path, dense: dict[str, torch.Tensor], quants: dict, data: st.DataObject
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    write_safetensors(here / "a.safetensors", dense)
    write_gguf(here / "b.gguf", quants)
    entries = {**WeightIndex.of_file(here / "b.gguf"), **WeightIndex.of_file(here / "a.safetensors")}
    located: dict[str, Located] = {}
    for name, entry in entries.items():
        rows = data.draw(st.integers(0, entry.shape[0] if len(entry.shape) > 1 else 0))
        part = WeightEntry.joined([entry.slice(rows, entry.shape[0]), entry.slice(0, rows)]) if rows else entry
        located[name] = part, tuple(data.draw(st.lists(st.sampled_from([torch.float16, torch.bfloat16]), max_size=2)))
    table = OriginTable.of(located)
    again = OriginTable.of_json(table.to_json())
    assert again == table
    assert str(again) == str(table)
    for number, name in enumerate(["a.safetensors", "b.gguf"]):
        shutil.copy(here / name, there / f"{number} of another name")
    found = again.located([*there.iterdir()])
    assert {name: told(one) for name, one in found.items()} == {name: told(one) for name, one in located.items()}
    assert all(piece.file.path.parent == there for entry, _ in found.values() for piece in entry.pieces)


@pytest.fixture
def table(tmp_path: Path) -> OriginTable:
    write_safetensors(tmp_path / "a.safetensors", {"w": torch.arange(12.0).reshape(3, 4), "v": torch.ones(2)})
    write_gguf(tmp_path / "b.gguf", {"q": packed("Q8_0", (2, 64)), "h": packed("F16", (2, 4))})
    index = {**WeightIndex.of_file(tmp_path / "a.safetensors"), **WeightIndex.of_file(tmp_path / "b.gguf")}
    return OriginTable.of({name: (entry, ()) for name, entry in index.items()})


def test_a_table_is_printed_a_line_a_file_and_a_line_a_weight(table: OriginTable) -> None:
    lines = str(table).splitlines()
    assert lines[0].startswith("file 0: a.safetensors (")
    assert " bytes, " in lines[0]
    (weight,) = table.weights["q"].pieces
    assert f"q: Q8_0[2, 64] of 1:{weight[1]}-{weight[2]}" in lines


def test_a_file_that_is_not_there_is_one_clear_error(table: OriginTable, tmp_path: Path) -> None:
    nbytes = (tmp_path / "a.safetensors").stat().st_size
    wanted = (
        rf"none of 1 files here is a.safetensors of {nbytes} bytes, whose weights are needed: copy it to this machine"
    )
    with pytest.raises(WeightError, match=wanted):
        table.located([tmp_path / "b.gguf"])


def test_only_files_with_weights_that_are_needed_have_to_be_there(table: OriginTable, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").unlink()
    part = table.only({"q", "what nobody has"})
    assert part == OriginTable.of_json(part.to_json())
    assert [file.name for file in part.files] == ["b.gguf"]
    assert bytes_of(part.located([tmp_path / "b.gguf"])["q"][0]) == packed("Q8_0", (2, 64))[2].tobytes()
    assert table.only([*table.weights]) == table


def test_another_file_of_the_name_or_the_size_is_said(table: OriginTable, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "a.safetensors"
    for changed in ({"w": torch.zeros(3, 4), "v": torch.ones(2)}, {"w": torch.zeros(3, 4)}):
        write_safetensors(other, changed)
        with pytest.raises(
            WeightError, match=rf"{other} has {other.stat().st_size} bytes and is another file: copy it"
        ):
            table.located([other, tmp_path / "b.gguf"])
    other.write_bytes(b"\0" * (tmp_path / "a.safetensors").stat().st_size)
    with pytest.raises(WeightError, match=f"{other} has .* and is another file"):
        table.located([other, tmp_path / "b.gguf"])
    assert table.located([other, *tmp_path.glob("*.*")])["w"][0].pieces[0].file.path == tmp_path / "a.safetensors"


def test_a_file_that_has_changed_is_in_no_table(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"w": torch.ones(2)})
    entry = WeightIndex.of_file(tmp_path / "a.safetensors")["w"]
    write_safetensors(tmp_path / "a.safetensors", {"w": torch.ones(3)})
    with pytest.raises(WeightError, match="bytes now, it had"):
        OriginTable.of({"w": (entry, ())})


def test_a_file_whose_name_is_no_text_is_in_a_table_by_an_escaped_one(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"n\xff.safetensors")
    write_safetensors(path, {"w": torch.ones(2)})
    table = OriginTable.of({"w": (WeightIndex.of_file(path)["w"], ())})
    assert [file.name for file in table.files] == ["n\\xff.safetensors"]
    assert OriginTable.of_json(table.to_json()) == table
    assert table.located([path])["w"][0].pieces[0].file.path == path
    write_safetensors(path, {"w": torch.ones(3)})
    with pytest.raises(WeightError, match=r"has .* bytes and is another file"):
        table.located([path])


LIES: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "another format": (("format",), "dovetail plan", "format"),
    "another version": (("version",), 2, "version"),
    "a file that is not listed": (("weights", "w", "pieces", 0, 0), 2, "w lies in file 2 of 2"),
    "bytes past the end": (("files", 0, "nbytes"), 8, "has the bytes"),
    "too few bytes": (("weights", "w", "pieces", 0, 1), 0, "pieces have"),
    "bytes before the start": (("weights", "w", "pieces", 0, 1), -1, "has to be at least 0"),
    "a file before the first": (("weights", "w", "pieces", 0, 0), -1, "has to be at least 0"),
    "turned about": (("weights", "w", "pieces"), [[0, 50, 2], [0, 0, 96]], "w has the bytes 50 to 2 of"),
    "bytes past counting": (("weights", "w", "pieces", 0, 2), 2**70, "weights.w.pieces"),
    "a truth": (("weights", "w", "pieces", 0, 0), True, "has to be a whole number"),
    "a fraction": (("weights", "w", "shape", 0), 3.5, "has to be a whole number"),
    "no list": (("weights", "w", "shape"), "3, 4", "weights.w.shape"),
    "a huge shape": (("weights", "w", "shape"), [2**40, 2**40], "no tensor has the shape"),
    "many sizes": (("weights", "w", "shape"), [1] * 65, "no tensor has the shape"),
    "another shape": (("weights", "w", "shape"), [3, 5], "its pieces have 48 bytes, where float32[3, 5] has 60"),
    "half a block": (("weights", "q", "shape"), [4, 33], "no whole number of Q8_0 blocks"),
    "no row of a packed type": (
        ("weights", "q"),
        {"dtype": "uint8", "shape": [], "quant": "Q8_0", "pieces": [[1, 8, 9]]},
        "a row of Q8_0[] has no block",
    ),
    "no block": (
        ("weights", "q"),
        {"dtype": "uint8", "shape": [0], "quant": "Q8_0", "pieces": []},
        "a row of Q8_0[0] has no block",
    ),
    "no dtype": (("weights", "w", "dtype"), "__class__", "there is no type __class__"),
    "another type": (("weights", "q", "quant"), "Q9", "there is no type Q9"),
    "a type read as another": (("weights", "h", "dtype"), "bfloat16", "F16 is not read as bfloat16"),
    "rounded to nothing": (("weights", "w", "through"), ["float17"], "there is no type float17"),
    "what no table has": (("weights", "w", "path"), "/etc/passwd", "is not known here"),
    "no weights": (("weights",), [], "weights"),
    "a weight that is a text": (("weights", "w"), "w" * 10**6, "weights.w"),
}


@pytest.mark.parametrize("what", LIES)
def test_a_table_that_lies_is_refused(table: OriginTable, what: str) -> None:
    (*place, last), lie, why = LIES[what]
    read = json.loads(table.to_json())
    inner = read
    for key in place:
        inner = inner[key]
    inner[last] = lie
    with pytest.raises(WeightError) as caught:
        OriginTable.of_json(json.dumps(read))
    message = str(caught.value)
    assert "the table of weights is damaged" in message
    assert why in message
    assert len(message) < 2000


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", "{}", '{"format":"dovetail weights"}', b"\xff"])
def test_what_is_no_table_is_refused(text: str | bytes) -> None:
    with pytest.raises(WeightError, match=r"the table of weights is damaged: .*: have it written again"):
        OriginTable.of_json(text)


@FRESH
@given(data=st.data())
def test_a_table_that_was_damaged_is_read_or_refused_and_reads_no_byte_outside_its_files(
    table: OriginTable, tmp_path: Path, data: st.DataObject
) -> None:
    text = bytearray(table.to_json().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = OriginTable.of_json(bytes(text)).located(tmp_path.glob("*.*"))
    except WeightError:
        return
    pieces: list[Piece] = [piece for entry, _ in found.values() for piece in entry.pieces]
    assert all(0 <= one.start <= one.end <= one.file.nbytes for one in pieces)

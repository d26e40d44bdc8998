"""What a file is known by between machines: equal copies by the same, and other files by another."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dovetail.compiler.checkpoints import identity
from dovetail.compiler.checkpoints.entries import StoredFile
from dovetail.compiler.checkpoints.identity import FileIdentity
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.errors import WeightError

from .weight_files import dense_weights, packed, packed_weights, with_header, write_gguf, write_safetensors

FRESH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LARGE = settings(FRESH, max_examples=6)
KINDS = ("safetensors", "gguf", "torch", "torch of old")
WEIGHT = 2**19
"""The bytes of one of 64 weights, which are far more together than the blocks of them that are read."""


def known(path: Path) -> FileIdentity:
    return FileIdentity.of(StoredFile.at(path))


def written(kind: str, path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Tensors of bytes in a file of a kind."""
    if kind == "safetensors":
        save_file(tensors, path)
    elif kind == "gguf":
        write_gguf(
            path, {name: ("F32", (one.numel() // 4,), one.numpy().view(np.float32)) for name, one in tensors.items()}
        )
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "torch")
    return path


def with_byte(path: Path, at: int) -> None:
    """Changes one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ 1]))


@pytest.mark.fifth
@FRESH
@given(tensors=dense_weights(), data=st.data())
def test_equal_copies_are_known_by_the_same_and_every_byte_of_a_small_file_counts(
    tmp_path: Path, tensors: dict[str, torch.Tensor], data: st.DataObject
) -> None:
    path, copy = tmp_path / "a.safetensors", tmp_path / "copy"
    write_safetensors(path, tensors)
    shutil.copy(path, copy)
    os.utime(copy, ns=(1, 1))
    assert known(path) == known(copy)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(10 if content[8:9] == b"{" else 0, len(content) - 1))
    content[place] ^= 1
    copy.write_bytes(content)
    try:
        assert known(copy) != known(path)
    except WeightError:  # it is no file of weights any more
        assert place < 8


@FRESH
@given(weights=packed_weights())
def test_copies_of_gguf_files_are_known_by_the_same(tmp_path: Path, weights: dict) -> None:
    write_gguf(tmp_path / "a.gguf", weights)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "copy")
    assert known(tmp_path / "a.gguf") == known(tmp_path / "copy")


@pytest.fixture(scope="module", params=KINDS)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A file of 64 weights of one size, of 32 MiB, where borders of stretches and weights are not the same."""
    torch.manual_seed(0)
    tensors = {f"w{at:02}": torch.randint(0, 256, (WEIGHT,), dtype=torch.uint8) for at in range(64)}
    return request.param, written(request.param, tmp_path_factory.mktemp("large") / "a", tensors)


def data_of(kind: str, path: Path) -> tuple[int, int]:
    """Where the weights of a file begin and end."""
    if kind in ("safetensors", "gguf"):
        pieces = [entry.pieces[0] for entry in WeightIndex.of_file(path).values()]
        return min(one.start for one in pieces), max(one.end for one in pieces)
    content = path.read_bytes()
    tensors = torch.load(path)
    starts = [content.index(one.numpy().tobytes()) for one in tensors.values()]
    return min(starts), max(starts) + WEIGHT


@pytest.mark.fifth
@LARGE
@given(data=st.data())
def test_a_weight_of_a_64th_that_differs_is_told_wherever_it_lies(
    large: tuple[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    kind, path = large
    start, end = data_of(kind, path)
    stretch = -(-(end - start) // 64)
    at = data.draw(st.integers(start, end - stretch))
    other = tmp_path / "other"
    shutil.copy(path, other)
    with other.open("r+b") as file:
        file.seek(at)
        changed = np.frombuffer(file.read(stretch), np.uint8) ^ 255
        file.seek(at)
        file.write(changed.tobytes())
    assert known(other) != known(path)
    assert known(other).nbytes == known(path).nbytes


@pytest.mark.fifth
@LARGE
@given(data=st.data())
def test_every_byte_of_a_header_counts_and_so_do_both_ends_of_the_data(
    large: tuple[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    kind, path = large
    start, end = data_of(kind, path)
    places = st.integers(9, start + 4095) | st.integers(end - 4096, path.stat().st_size - 1)
    other = tmp_path / "other"
    shutil.copy(path, other)
    with_byte(other, data.draw(places))
    try:
        assert known(other) != known(path)
    except WeightError as error:  # a header that is none any more
        assert "is damaged" in str(error) or "supported" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_longer_by_a_byte_is_another(kind: str, tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(64, dtype=torch.uint8)}
    path = written(kind, tmp_path / "a", tensors)
    more = written(kind, tmp_path / "b", {"w": torch.zeros(96, dtype=torch.uint8)})
    assert known(path) != known(more)
    (tmp_path / "c").write_bytes(path.read_bytes() + b"\0")
    if kind.startswith("torch"):
        assert known(tmp_path / "c").digest != known(path).digest


@pytest.mark.parametrize("begin", [with_header(b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}'), b"any"])
def test_what_is_read_of_a_huge_file_is_little(begin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes, path = 2**40, tmp_path / "huge"
    if begin.endswith(b"}}"):
        text = begin[8:] % (nbytes, nbytes)
        begin = with_header(text)
        nbytes += len(begin)
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(nbytes)
    read: list[int] = []
    chunks = identity._chunks
    monkeypatch.setattr(identity, "_chunks", lambda *given: (read.append(len(one)) or one for one in chunks(*given)))
    assert known(path).nbytes == nbytes
    assert sum(read) <= 9 * 2**20
    assert len(read) < 100


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1, 0])
def test_a_header_that_claims_to_be_huge_is_refused_before_it_is_read(length: int, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(struct.pack("<Q", length) + b"{")
        file.truncate(2**42)
    with pytest.raises(WeightError, match="its header would have"):
        known(tmp_path / "a")


def test_a_file_that_is_written_to_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "a.gguf", {"w": packed("Q8_0", (2, 32))})
    stored = StoredFile.at(tmp_path / "a.gguf")
    digest = identity._digest

    def written_meanwhile(*given: object) -> str:
        found = digest(*given)  # type: ignore[arg-type]
        with_byte(tmp_path / "a.gguf", stored.nbytes - 1)
        os.utime(tmp_path / "a.gguf", ns=(1, 1))
        return found

    monkeypatch.setattr(identity, "_digest", written_meanwhile)
    with pytest.raises(WeightError, match="was written to"):
        FileIdentity.of(stored)
    monkeypatch.undo()
    with pytest.raises(WeightError, match="was written to"):
        FileIdentity.of(stored)


@pytest.mark.parametrize("name", ["nothing", "folder", "pipe"])
def test_what_is_no_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # to which nobody writes
    with pytest.raises(WeightError, match=f"{name} cannot be read: .*: name a file of weights that is there"):
        known(tmp_path / name)
    with pytest.raises(WeightError, match=f"{name} cannot be read"):
        FileIdentity.of(StoredFile(tmp_path / name, 0, 0))
    with pytest.raises(WeightError, match=f"{name} (cannot be read|is missing)"):
        WeightIndex.of_file(tmp_path / name)


def test_a_path_that_no_file_can_have_is_one_clear_error(tmp_path: Path) -> None:
    for read in (StoredFile.at, WeightIndex.of_file):
        with pytest.raises(WeightError, match=r"a\\x00b cannot be read: .* null byte.*: name a file of weights"):
            read(tmp_path / "a\0b")

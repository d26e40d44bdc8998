"""Files and the system: larger than memory, changed while they are mapped, read ahead, read in a forked process."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiler.checkpoints.entries import StoredFile
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.probe import probe_host
from dovetail.compiler.errors import WeightError
from dovetail.runtime import sim
from dovetail.runtime.devices.host_memory import host_memory
from dovetail.runtime.store import page_cache, readahead
from dovetail.runtime.store import reader as reading
from dovetail.runtime.store.opened_file import NO_RESERVE, OpenedFile, unreadable
from dovetail.runtime.store.reader import WeightReader

CPU = torch.device("cpu")

if NO_RESERVE:  # only where memory need not be set aside for a map

    def test_a_file_larger_than_memory_is_mapped(tmp_path: Path) -> None:
        path, size = tmp_path / "huge.safetensors", 40 * 2**30
        entry = {"dtype": "BF16", "shape": [size // 2 // 4096, 4096], "data_offsets": [0, size]}
        header = json.dumps({"a": entry}).encode()
        header += b" " * (-len(header) % 8)
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)  # a hole, which takes no room on the disk
        rows = WeightReader().read(WeightIndex.of_file(path)["a"].slice(0, 16), torch.bfloat16, CPU)
        assert rows.sum().item() == 0


def on_the_host(tmp_path: Path) -> tuple[Path, dovetail.CompiledModule, torch.Tensor]:
    torch.manual_seed(0)
    module, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2))).eval(), torch.randn(2, 64)
    path = tmp_path / "w.safetensors"
    save_file(module.state_dict(), path)
    compiled = dovetail.compile(module.to("meta"), (x.to("meta"),), backend="cpu", weights=path)
    compiled.load()
    return path, compiled, x


def test_a_mapped_file_that_is_written_to_or_cut_short_is_refused_at_the_next_call(tmp_path: Path) -> None:
    path, compiled, x = on_the_host(tmp_path)
    compiled(x)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    with pytest.raises(WeightError, match="was written to since its header was read: load it again"):
        compiled(x)
    os.truncate(path, 4096)
    with pytest.raises(WeightError, match="has 4096 bytes now"):
        compiled(x)


@pytest.mark.parametrize("rests", [None, "disk"])
def test_a_mapped_file_that_is_written_to_during_a_call_gives_an_error_and_no_numbers(
    tmp_path: Path, rests: str | None
) -> None:
    path, x = tmp_path / "w.safetensors", torch.randn(2, 64)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    save_file(module.state_dict(), path)
    compiled = dovetail.compile(
        nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval(), (x,), backend="cpu", weights=path,
        params_backend=rests,
    )  # fmt: skip
    compiled(x)
    launch, calls = compiled._executor.__class__.__call__, []

    def overwriting(self: object, values: list[object]) -> list[object]:
        leaves = launch(self, values)  # type: ignore[arg-type]
        calls.append(path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(calls[0] // 2)
            file.write(bytes(8))
        return leaves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(compiled._executor), "__call__", overwriting)
        with pytest.raises(WeightError, match="was written to"):
            compiled(x)
    assert calls


def test_a_mapped_file_that_was_copied_over_with_its_time_kept_is_refused(tmp_path: Path) -> None:
    path, compiled, x = on_the_host(tmp_path)
    compiled(x)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(bytes(before.st_size - before.st_size // 2))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(WeightError, match="was written to since its header was read: load it again"):
        compiled(x)


def test_a_file_that_is_linked_protected_moved_or_removed_stays_what_it_was(tmp_path: Path) -> None:
    path, compiled, x = on_the_host(tmp_path)
    before = compiled(x)
    ways = (
        lambda: os.link(path, tmp_path / "also"),
        lambda: path.chmod(0o400),
        lambda: path.rename(tmp_path / "elsewhere"),
        lambda: (tmp_path / "elsewhere").unlink(),
    )
    for change in ways:
        change()
        assert torch.equal(compiled(x), before)


def test_a_file_that_ends_before_what_is_read_of_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, own, places = tmp_path / "weights", os.preadv, []
    path.write_bytes(bytes(1000))
    with path.open("rb") as file:
        opened = OpenedFile(StoredFile.of(path, file.fileno()))

    def little(file: int, buffers: Any, at: int, end: int = 1000) -> int:
        places.append(at)
        return own(file, [buffers[0][: min(400, end - at)]], at)

    monkeypatch.setattr(page_cache, "_is_cached", lambda *_: False)
    monkeypatch.setattr(os, "preadv", little)
    opened.bring(0, 1000)
    assert places == [0, 400, 800]
    monkeypatch.setattr(os, "preadv", lambda *given: little(*given, end=600))  # cut short since it was looked at
    with pytest.raises(WeightError, match="it ends at byte 600, 400 bytes too early"):
        opened.bring(0, 1000)


def test_a_file_that_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    path, compiled, x = on_the_host(tmp_path)
    before = compiled(x)
    save_file({"w": torch.zeros(9)}, tmp_path / "other")
    os.replace(tmp_path / "other", path)
    assert torch.equal(compiled(x), before)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ENOMEM, errno.EACCES, errno.EMFILE, 77])
def test_only_a_file_that_is_gone_or_damaged_is_to_be_downloaded_again(number: int) -> None:
    error = unreadable(Path("w.safetensors"), OSError(number, "no"))
    assert ("download it again" in str(error)) is (number in (errno.EIO, errno.ENOENT))
    assert ": " in str(error).partition("no")[2]


def test_all_of_a_range_is_read_ahead_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.ones(2**18)}, tmp_path / "w.safetensors")
    entry, asked = WeightIndex.of_file(tmp_path / "w.safetensors")["w"], []
    monkeypatch.setattr(OpenedFile, "_tell", lambda self, advice, start, end: asked.append((start, end)))
    WeightReader().advise([entry])
    readahead.finish()
    (piece,) = entry.pieces
    assert asked[0][0] == piece.start
    assert asked[-1][1] == piece.end
    assert all(one[1] == other[0] for one, other in itertools.pairwise(asked))
    assert max(end - start for start, end in asked) <= 128 * 2**10


def test_the_host_has_the_memory_that_a_rig_says_it_has() -> None:
    assert host_memory() == probe_host()[0]


def test_the_components_of_a_pipeline_share_what_reads_their_files(tmp_path: Path) -> None:
    from dovetail.pipelines.loading.saved import open_pipeline
    from testbed.pipelines import tiny_pipelines

    pipe, _ = tiny_pipelines.sd()
    pipe.save_pretrained(tmp_path)
    _, built = open_pipeline(tmp_path)
    assert len(built) > 1
    assert len({id(origin.reader) for one in built.values() for origin in one.values()}) == 1


if hasattr(os, "fork"):

    @pytest.mark.parametrize("device", ["cpu", "sim:0"])
    def test_a_process_that_was_forked_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
        sim.enable()
        monkeypatch.setattr(reading, "_PIECE", 1024)
        save_file({"w": torch.ones(4096)}, tmp_path / "w.safetensors")
        entry, reader = WeightIndex.of_file(tmp_path / "w.safetensors")["w"], WeightReader()
        target = torch.zeros(4096, device=device)
        reader.read_into(entry, target)
        assert reader._threads is not None
        with reader._lock:  # as a thread may have it that the child does not have
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                reader.read_into(entry, target)
                os._exit(0 if target.cpu().sum().item() == 4096 else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_views_of_a_mapped_file_outlive_its_reader(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4096)}, tmp_path / "w.safetensors")
    view = WeightReader().read(WeightIndex.of_file(tmp_path / "w.safetensors")["w"], torch.float32, CPU)
    assert view.sum().item() == 4096

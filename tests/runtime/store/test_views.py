"""Weights that come for a stage on the host: views of their file, in memory when it begins, and gone after it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dovetail
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.runtime.store.opened_file import OpenedFile
from dovetail.runtime.store.staging import Slot

WIDE, DEPTH = 512, 4
X = torch.linspace(-1, 1, 4 * WIDE).reshape(4, WIDE)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).sin()
        return x


def save_at(path: Path, state: dict[str, torch.Tensor], byte: int) -> None:
    """Writes a file whose numbers begin at such a byte of 64."""
    for pad in range(0, 64, 8):
        save_file(state, path, metadata={"pad": "x" * pad})
        with path.open("rb") as file:
            if (8 + int.from_bytes(file.read(8), "little")) % 64 == byte:
                return
    raise AssertionError(f"no padding makes it begin at byte {byte}")


def over_file(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[dovetail.CompiledModule, nn.Module]:
    """A module compiled over a file in a dtype, from which all weights come anew, and one that has them."""
    torch.manual_seed(0)
    path = folder / "w.safetensors"
    save_at(path, {name: one.to(dtype) for name, one in Layers().state_dict().items()}, 0)
    module = Layers().eval()
    module.load_state_dict({name: one.float() for name, one in load_file(path).items()})
    with torch.device("meta"):
        bare = Layers().eval()
    return dovetail.compile(bare, (X,), weights=path, backend="cpu", params_backend="disk"), module


def mapped_bytes(path: Path) -> int:
    """The bytes of a file that are in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = words[-1] == str(path)
        elif inside and words[0] == "Rss:":
            found += int(words[1]) * 1024
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_change_no_bit_whether_they_are_views_or_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    compiled, module = over_file(tmp_path, dtype)
    with torch.no_grad():
        assert torch.equal(compiled(X), module(X))
        assert torch.equal(compiled(X), module(X))


def test_a_slot_is_not_touched_where_the_file_has_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots: list[Slot] = []
    original = Slot.__init__

    def note(self: Slot, *args: Any) -> None:
        original(self, *args)
        self.memory.fill_(7)
        slots.append(self)

    monkeypatch.setattr(Slot, "__init__", note)
    compiled, module = over_file(tmp_path)
    with torch.no_grad():
        assert torch.equal(compiled(X), module(X))
    assert slots
    assert all(bool((slot.memory == 7).all()) for slot in slots)


@pytest.mark.parametrize("byte", [0, 8, 24, 40])
@pytest.mark.parametrize("backend", ["cpu", "sim0&cpu", "sim0"])
@pytest.mark.parametrize("rests", [None, "cpu", "disk"])
def test_where_a_file_has_them_changes_no_bit_of_a_product_of_one_row(
    tmp_path: Path, byte: int, backend: str, rests: str | None
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 320), nn.SiLU(), nn.Linear(320, 320)).eval()
    save_at(tmp_path / "w.safetensors", module.state_dict(), byte)
    x = torch.randn(1, 256)
    compiled = dovetail.compile(module, (x,), weights=tmp_path / "w.safetensors", backend=backend, params_backend=rests)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


if sys.platform == "linux":

    def test_pages_leave_with_their_stage_though_other_rows_stay_on_another_device(tmp_path: Path) -> None:
        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(8))).eval()
        path = tmp_path / "w.safetensors"
        save_at(path, module.state_dict(), 0)
        budget = f"sim0=40MiB,cpu={4 * 4 * WIDE * WIDE // 2}B"  # the slots of half of the rows, and some values
        compiled = dovetail.compile(
            module, (X,), weights=path, backend="cpu&sim0", split_mode="row", params_backend="disk",
            tensor_split="1,1", max_vram=budget,
        )  # fmt: skip
        for _ in range(2):
            compiled(X)
        loads = [one for one in compiled.schedule if isinstance(one, Load) and one.device.is_host]
        stay = sum(one.lifetime is Lifetime.PROGRAM for one in loads) * 4 * WIDE * WIDE // 2
        assert sum(one.lifetime is Lifetime.STAGE for one in loads) > 3
        around = 2 * 8 * 2**16  # the system maps what is around a page with it
        assert mapped_bytes(path) <= stay + around < path.stat().st_size // 4  # half of it are the rows of the host

    def test_no_more_of_the_file_is_in_memory_than_the_slots_take(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled, _ = over_file(tmp_path)
        path, seen = tmp_path / "w.safetensors", []
        original = OpenedFile.bring

        def bring(self: OpenedFile, start: int, end: int) -> None:
            original(self, start, end)
            seen.append(mapped_bytes(path))

        monkeypatch.setattr(OpenedFile, "bring", bring)
        compiled(X)
        layer = 4 * WIDE * (WIDE + 1)
        pages = 2 * DEPTH * 2 * 4096  # of two weights a layer, at both ends
        assert max(seen) >= 4 * WIDE * WIDE
        assert max(seen) <= 3 * layer + pages
        assert mapped_bytes(path) <= pages

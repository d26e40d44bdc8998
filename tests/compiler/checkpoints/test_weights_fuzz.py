"""Mutated headers: each is read within the file's bounds or refused by one clear error, and takes little to be read."""

from __future__ import annotations

import faulthandler
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dovetail.compiler.checkpoints.gguf_header import read_gguf
from dovetail.compiler.checkpoints.index import WeightEntry
from dovetail.compiler.checkpoints.safetensors_header import read_safetensors
from dovetail.compiler.errors import WeightError

from .weight_files import packed, write_gguf, write_safetensors

DATA = 64 * 2**10
CONSTANT = 512 * 2**10
"""A mutant may take as many bytes as its file has, and these: objects, messages, and what the first read imports."""

HUGE = (0, 1, 7, 31, 33, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FRAGMENTS = (
    b"[" * 40, b"{" * 40, b"[[],[],", b'"a":', b"NaN", b"-Infinity", b"1e999", b"-1", b"true", b"null", b"9" * 30,
    b"\xff\xfe", b"\0" * 8, b"\\ud800", b'"shape":[', b'"data_offsets":[0,0],', b'"dtype":"F4",', b"GGUF",
    b"\x09\0\0\0",
)  # fmt: skip
Mutation = Callable[[bytearray, random.Random, int], None]


def flip_bits(content: bytearray, rng: random.Random, header: int) -> None:
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(header)] ^= 1 << rng.randrange(8)


def change_bytes(content: bytearray, rng: random.Random, header: int) -> None:
    for _ in range(rng.randint(1, 2)):
        content[rng.randrange(header)] = rng.randrange(256)


def cut_off(content: bytearray, rng: random.Random, header: int) -> None:
    del content[rng.choice((rng.randrange(header), rng.randrange(len(content)))) :]


def put_a_number(content: bytearray, rng: random.Random, header: int) -> None:
    at, code = rng.randrange(header), rng.choice("IQ")
    number = struct.pack(f"<{code}", rng.choice(HUGE) % 2 ** (32 if code == "I" else 64))
    content[at : at + len(number)] = number


def put_digits(content: bytearray, rng: random.Random, header: int) -> None:
    digits = [at for at in range(header) if chr(content[at]).isdigit()]
    if digits:
        at = rng.choice(digits)
        content[at : at + 1] = str(rng.choice(HUGE) * rng.choice((1, -1))).encode()


def double_a_stretch(content: bytearray, rng: random.Random, header: int) -> None:
    start = rng.randrange(header)
    end = min(header, start + rng.randint(1, 120))
    content[end:end] = content[start:end]


def move_a_stretch(content: bytearray, rng: random.Random, header: int) -> None:
    start, to = rng.randrange(header), rng.randrange(header)
    stretch = bytes(content[start : start + rng.randint(1, 60)])
    content[to : to + len(stretch)] = stretch


def take_out(content: bytearray, rng: random.Random, header: int) -> None:
    start = rng.randrange(header)
    del content[start : start + rng.randint(1, 40)]


def put_in(content: bytearray, rng: random.Random, header: int) -> None:
    at = rng.randrange(header)
    content[at:at] = rng.choice(FRAGMENTS) * rng.choice((1, 1, 1, 50))


def lengthen(content: bytearray, rng: random.Random, header: int) -> None:
    content += bytes(rng.randrange(1, 100))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, change_bytes, change_bytes, cut_off, put_a_number, put_digits, double_a_stretch,
    move_a_stretch, take_out, put_in, lengthen,
)  # fmt: skip


def safetensors_seed(path: Path) -> int:
    """Writes a good file; returns how many bytes its header has."""
    tensors = {"block.0.weight": torch.ones(64, 128), "block.0.bias": torch.ones(64, dtype=torch.bfloat16)}
    write_safetensors(path, tensors | {"e": torch.ones(0, 3), "s": torch.tensor(1), "u": torch.ones(DATA // 2).char()})
    return 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]


def gguf_seed(path: Path) -> int:
    """Writes a good file; returns about how many bytes its header has."""
    kinds = {"block.0.weight": "Q4_K", "block.0.bias": "F32", "norm": "BF16", "out": "Q8_0"}
    write_gguf(path, {name: packed(quant, (16, 256)) for name, quant in kinds.items()}, alignment=64)
    return path.read_bytes().index(b"out") + 40


READERS = {"safetensors": (safetensors_seed, read_safetensors), "gguf": (gguf_seed, read_gguf)}


def mutants(seed: bytes, header: int, first: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Files of one to three mutations each, the same for a number at any time."""
    for number in range(first, first + count):
        rng, content = random.Random(number), bytearray(seed)
        for _ in range(rng.choice((1, 1, 2, 3))):
            mutation = rng.choice(MUTATIONS)
            mutation(content, rng, max(1, min(header, len(content))))
            content = content or bytearray(b"\0")
        if number % 3 == 0 and content[:1] != b"G" and len(content) >= 8:  # a length that fits, so that more is read
            content[:8] = struct.pack("<Q", max(0, min(header, len(content)) - 8 + rng.choice((-1, 0, 0, 1))))
        yield number, bytes(content)


def lies_within(entry: WeightEntry, size: int) -> bool:
    torch.empty(entry.shape, dtype=entry.dtype, device="meta")  # which fails for what can be no tensor
    inside = all(0 <= piece.start <= piece.end <= size for piece in entry.pieces)
    return inside and (not entry.quant or entry.packed().nbytes == entry.nbytes)


def try_mutants(folder: Path, kind: str, first: int, count: int) -> tuple[int, int]:
    """How many mutants were read and how many refused; fails at one that does anything else."""
    make, read = READERS[kind]
    path = folder / "seed"
    header = make(path)
    seed = path.read_bytes()
    read(path)  # which imports what it needs
    done = {"read": 0, "refused": 0}
    tracemalloc.start()
    try:
        for number, content in mutants(seed, header, first, count):
            path.write_bytes(content)
            outcome = try_one(path, read, number)
            done[outcome] += 1
    finally:
        tracemalloc.stop()
    return done["read"], done["refused"]


def try_one(path: Path, read: Callable[[Path], tuple[dict[str, WeightEntry], object]], number: int) -> str:
    """Reads one mutant, watched: a hang ends the test run and shows where."""
    size = path.stat().st_size
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        entries, _ = read(path)
        assert all(lies_within(entry, size) for entry in entries.values()), f"mutant {number} reaches past the end"
        outcome = "read"
    except WeightError as error:
        assert str(path) in str(error), f"mutant {number}: {error}"
        assert len(str(error)) < 2000, f"mutant {number}: a long message"
        outcome = "refused"
    finally:
        faulthandler.cancel_dump_traceback_later()
    taken = tracemalloc.get_traced_memory()[1] - before
    assert taken <= size + CONSTANT, f"mutant {number} of {size} bytes took {taken}"
    return outcome


@pytest.mark.fifth
@pytest.mark.parametrize("kind", READERS)
def test_a_mutated_header_is_read_within_bounds_or_refused(tmp_path: Path, kind: str) -> None:
    read, refused = try_mutants(tmp_path, kind, 0, 400)
    assert read + refused == 400
    assert refused > 200
    assert read > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_ten_thousand_mutated_headers_are_read_within_bounds_or_refused(tmp_path: Path, kind: str) -> None:
    read, refused = try_mutants(tmp_path, kind, 1_000, 10_000)
    assert read + refused == 10_000
    assert refused > 5_000

"""Programs that an earlier process has traced are taken from disk, and never a wrong one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dovetail
from dovetail.cache import folder, traces
from dovetail.cache.key import Key
from dovetail.compiler.text.printer import print_program

Load = Callable[..., ModuleType]
X = torch.ones(2, 4)


def compiled(model: torch.nn.Module, **options: Any) -> Any:
    found = dovetail.compile(model, (X,), backend="cpu", **options)
    traces.wait()
    return found


def lines(program: Any) -> list[str]:
    return [line for line in print_program(program).splitlines() if not line.startswith("devices")]


def test_a_second_compilation_takes_the_program_of_the_first(load: Load, traced: list[str], cache: Path) -> None:
    model = load().Model()
    first = compiled(model)
    other = load().Model()
    other.load_state_dict(model.state_dict())
    second = compiled(other)
    assert traced == ["Model"]
    assert len(list(cache.iterdir())) == 1
    assert lines(second.base) == lines(first.base)
    assert torch.equal(second(X)["y"], other(X)["y"])
    assert torch.equal(second.base.constants["lifted_tensor_0"], first.base.constants["lifted_tensor_0"])


def test_dynamic_sizes_are_kept_with_their_ranges(load: Load, traced: list[str]) -> None:
    shapes = {"x": {0: torch.export.Dim("n", min=2, max=9)}}
    for _ in range(2):
        model = load().Model()
        program = compiled(model, dynamic_shapes=shapes)
        assert torch.equal(program(torch.ones(7, 4))["y"], model(torch.ones(7, 4))["y"])
        with pytest.raises(dovetail.compiler.errors.CallError):
            program(torch.ones(10, 4))
    assert traced == ["Model"]


def test_an_edited_model_is_traced_again(load: Load, traced: list[str]) -> None:
    compiled(load().Model())
    model = load("x * FACTOR", "x - FACTOR").Model()
    assert torch.equal(compiled(model)(X)["y"], model(X)["y"])
    assert traced == ["Model"] * 2


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    at = data.index(b"aten.linear")
    return data[:at] + b"aten.linaer" + data[at + 11 :]


def _of_another_key(data: bytes) -> bytes:
    first, head, rest = data.split(b"\n", 2)
    return b"\n".join((first, json.dumps({**json.loads(head), "key": "0" * 40}).encode(), rest))


def _of_another_form(data: bytes) -> bytes:
    return b"#!/bin/sh\n" + data


def _of_negative_lengths(data: bytes) -> bytes:
    first, head, rest = data.split(b"\n", 2)
    found = json.loads(head)
    found.update(program=found["program"] + 2 * found["tensors"], tensors=-found["tensors"])
    return b"\n".join((first, json.dumps(found).encode(), rest))


def _of_no_operation(whole: bytes) -> bytes:
    """One whose digest is right, of an operation that PyTorch does not have."""
    form, line, body = whole.split(b"\n", 2)
    head = json.loads(line)
    text, tensors = body[: head["program"]], body[head["program"] :]
    text = text.replace(b" = aten.", b" = aten.no_", 1)
    head |= {"program": len(text), "digest": hashlib.blake2b(text + tensors, digest_size=20).hexdigest()}
    return b"\n".join([form, json.dumps(head).encode(), text + tensors])


@pytest.mark.parametrize(
    "damage",
    [
        _cut, _flipped, _of_another_key, _of_another_form, _of_negative_lengths, _of_no_operation, lambda _: b"",
        lambda _: b"[" * 10**6,
    ],
)  # fmt: skip
def test_a_damaged_entry_is_said_and_written_anew(
    load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    compiled(load().Model())
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    model = load().Model()
    assert torch.equal(compiled(model)(X)["y"], model(X)["y"])
    assert traced == ["Model"] * 2
    (said,) = [one.getMessage() for one in caplog.records if "is not used" in one.getMessage()]
    assert "\n" not in said
    assert entry.read_bytes() == whole


def test_an_entry_with_far_more_bytes_than_its_head_says_is_not_read(
    load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(load().Model())
    (entry,) = cache.iterdir()
    os.truncate(entry, 2**43)  # a hole, which takes no room on the disk
    model = load().Model()
    assert torch.equal(compiled(model)(X)["y"], model(X)["y"])
    assert traced == ["Model"] * 2
    assert "its head speaks of another entry" in caplog.text


if hasattr(os, "mkfifo"):

    def test_what_is_no_ordinary_file_is_no_entry(
        load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        compiled(load().Model())
        (entry,) = cache.iterdir()
        entry.unlink()
        os.mkfifo(entry)
        model = load().Model()
        assert torch.equal(compiled(model)(X)["y"], model(X)["y"])
        assert traced == ["Model"] * 2
        assert "it is no ordinary file" in caplog.text


def test_an_entry_of_other_weights_is_not_taken(load: Load, traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "key_of", lambda *_: Key("f" * 40, "f" * 40))
    compiled(load().Model())
    other = load("nn.Linear(width, width)", "nn.Linear(width, width, bias=False)").Model()
    assert torch.equal(compiled(other)(X)["y"], other(X)["y"])
    assert traced == ["Model"] * 2


def test_switched_off_nothing_is_written_or_read(
    load: Load, traced: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(load().Model())
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    compiled(load().Model())
    assert traced == ["Model"] * 2
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(cache.parent / "other"))
    compiled(load().Model())
    assert not (cache.parent / "other").exists()


def test_a_folder_that_cannot_be_written_is_said_once(
    load: Load, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    for _ in range(2):
        model = load().Model()
        assert torch.equal(compiled(model)(X)["y"], model(X)["y"])
    assert [record.levelname for record in caplog.records].count("WARNING") <= 2
    assert "DOVETAIL_CACHE_DIR" in caplog.text


def test_the_entries_used_longest_ago_leave_first(load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(load().Model())
    size = folder.entries()[0].nbytes
    (oldest,) = cache.iterdir()
    os.utime(oldest, (1, 1))
    compiled(load("FACTOR = 3", "FACTOR = 7").Model())
    (used,) = [one.path for one in folder.entries() if one.path != oldest]
    os.utime(used, (2, 2))
    compiled(load().Model())  # which notes that it was used now
    monkeypatch.setenv("DOVETAIL_CACHE_SIZE", f"{int(2.5 * size)}B")
    compiled(load("FACTOR = 3", "FACTOR = 8").Model())
    assert oldest.exists()
    assert not used.exists()
    assert len(folder.entries()) == 2


def test_what_a_killed_process_left_is_removed(load: Load, cache: Path) -> None:
    cache.mkdir()
    old, new = (f".{number * 16}.{'a' * 40}.trace" for number in "01")
    for name, age in ((old, 1), (new, None)):
        (cache / name).write_text("half")
        os.utime(cache / name, (age, age) if age else None)
    compiled(load().Model())
    assert sorted(one.name for one in cache.glob(".*")) == [new]


def test_an_interrupted_write_leaves_nothing(cache: Path) -> None:
    def parts() -> Any:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write("0" * 40, parts(), 2**20)
    assert list(cache.iterdir()) == []


def test_threads_write_and_read_one_entry_at_once(load: Load, cache: Path) -> None:
    model = load().Model()
    wanted = model(X)["y"]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            assert torch.equal(compiled(model)(X)["y"], wanted)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed
    assert len(list(cache.iterdir())) == 1


SCRIPT = """
import logging, sys, torch, dovetail
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
from models_of_somebody import Model
torch.manual_seed(0)
model = Model()
x = torch.ones(2, 4)
print(torch.equal(dovetail.compile(model, (x,), backend="cpu")(x)["y"], model(x)["y"]))
"""


@pytest.mark.slow
def test_another_process_takes_what_one_has_traced(load: Load, cache: Path) -> None:
    load()
    (cache.parent / "script.py").write_text(SCRIPT)
    told = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=cache.parent, env=environment, capture_output=True, text=True, check=True
        )
        told.append(done.stdout)
        assert "True" in done.stdout
    assert "took the trace" not in told[0]
    assert "took the trace" in told[1]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
def test_no_library_of_models_is_told_by_its_version_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What runs while a tiny model is traced is in its key, function by function."""
    caplog.set_level(logging.ERROR)
    from types import CodeType, MethodType

    from dovetail.cache import content
    from dovetail.cache.key import key_of
    from dovetail.compiler.frontend.trace import trace
    from testbed.zoo.everything import TINY

    for name in ("FluxTransformer2DModel", "Qwen3Model"):
        model, call = TINY[name].make(torch.float32)
        vars(model)["forward"] = MethodType(type(model).forward, model)
        known: set[CodeType] = set()
        ran: dict[CodeType, str] = {}

        def note(code: CodeType, known: set[CodeType] = known) -> str:
            known.add(code)
            for one in code.co_consts:
                if isinstance(one, CodeType):
                    note(one)
            return ""

        def profile(frame: Any, event: str, _: Any, ran: dict[CodeType, str] = ran) -> None:
            if event == "call":
                ran.setdefault(frame.f_code, str(frame.f_globals.get("__name__")))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(content, "digest_of", note)
            assert key_of(model, (), call, None, "cpu") is not None
        sys.setprofile(profile)
        try:
            trace(model, (), call)
        finally:
            sys.setprofile(None)
        models = ("diffusers.models", "transformers.models", "transformers.modeling", "torch.nn.functional")
        missing = {code.co_name for code, home in ran.items() if home.startswith(models) and code not in known}
        assert missing == set()
